"""Reads schedules, open rows, recent outcomes and the controls of users, always from the primary database."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from django.db import connections
from django.db.models import BooleanField, Exists, Model, OuterRef, QuerySet
from django.db.models.expressions import RawSQL

from ..calls.registry import resolve_path
from ..index.keys import group_by
from ..models import Control, Run, Schedule, ScheduleState, Status
from .bulk import get_database, reader
from .rows import RunRow, ScheduleRow, StateRow

# Literals as in the partial indexes: with parameters, SQLite would scan the whole history instead. No index has a
# condition on a boolean, which releases of Django write differently.
_TABLE = Run._meta.db_table
_OPEN_OF_CHAIN = (
    f" AND {_TABLE}.schedule_id IS NOT NULL AND {_TABLE}.status IN ('queued', 'running', 'retrying')"
    f" AND NOT {_TABLE}.separate"
)
_IS_OPEN_OF_CHAIN = RawSQL(_OPEN_OF_CHAIN.removeprefix(" AND "), [], output_field=BooleanField())  # noqa: S611 - ours
_NOT_SUCCEEDED = RawSQL(f"NOT ({_TABLE}.status = 'succeeded')", [], output_field=BooleanField())  # noqa: S611 - ours
DEFINITION = tuple(field.name for field in fields(ScheduleRow) if field.init and field.name != "state")
STATE = tuple(field.name for field in fields(StateRow) if field.name != "stored")
RUN = tuple(field.name for field in fields(RunRow))
OPEN_STATUSES = (Status.QUEUED.value, Status.RUNNING.value, Status.RETRYING.value)
_WAITING = (
    "pk", "schedule_id", "schedule_name", "task", "queue", "generation", "due_at", "status", "origin", "created_at",
    "priority", "token",
)  # fmt: skip
OF_JOBS = ("token", "backend", "call", "options", "unique_key", "expires_at")


def load_schedules(pks: Iterable[int]) -> dict[int, ScheduleRow]:
    """Return definitions with their states by primary key, in one query. A `range` of keys is faster than a list."""
    names = (*DEFINITION, *(f"state__{name}" for name in STATE))
    found = {}
    for row in reader(Schedule, "id", names, get_database()).read(pks if isinstance(pks, range) else list(pks)):
        definition, state = row[: len(DEFINITION)], row[len(DEFINITION) :]
        pk = definition[0]
        blank = state[0] is None
        found[pk] = ScheduleRow(StateRow(pk, stored=False) if blank else StateRow(*state), *definition)
    return found


def find_schedule(pk: int) -> Schedule | None:
    """Return the current instance of a schedule with its state, or None."""
    return Schedule._base_manager.using(get_database()).filter(pk=pk).select_related("state").first()


def _read_runs(key: str, keys: Collection[int], where: str = "") -> list[RunRow]:
    return [RunRow(*row) for row in reader(Run, key, RUN, get_database()).read(keys, where)]


def query_status(status: str) -> QuerySet[Run]:
    """Return the rows with a status other than `succeeded`; by primary key, an index returns them."""
    return Run._base_manager.using(get_database()).filter(_NOT_SUCCEEDED, status=status)


def read_open_pages(size: int, queues: Collection[str] | None = None) -> Iterator[list[RunRow]]:
    """Yield pages of the open rows outside chains, which include all jobs. Each page takes short queries only."""
    for status in OPEN_STATUSES:
        rows, last = query_status(status).filter(separate=True), 0
        if queues is not None:
            rows = rows.filter(queue__in=queues)
        while pks := list(rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:size]):
            yield list(load_waiting(pks))
            last = pks[-1]


def load_waiting(pks: Collection[int]) -> list[RunRow]:
    """Return the columns of open rows that Redis needs, without their calls and results."""
    rows = reader(Run, "id", _WAITING, get_database()).read(pks)
    return [RunRow(**dict(zip(_WAITING, row, strict=True))) for row in rows]


def load_open_rows(pks: Collection[int]) -> dict[int, list[RunRow]]:
    """Return the open rows in the chains of these schedules, by schedule, oldest first."""
    rows = [row for row in _read_runs("schedule", pks, _OPEN_OF_CHAIN) if row.status != Status.QUEUED]
    return group_by(sorted(rows, key=lambda row: row.due_at), lambda row: row.schedule_id or 0) if rows else {}


def load_oldest_open(pks: Collection[int]) -> dict[int, datetime]:
    """Return for each of these schedules the oldest point of its chain with an open row, if any."""
    where = f"{_OPEN_OF_CHAIN} AND {_TABLE}.status <> '{Status.QUEUED.value}'"
    rows = reader(Run, "schedule", ("schedule_id", "due_at"), get_database()).read(pks, where)
    return dict(sorted(((pk, due) for pk, due in rows), key=lambda row: row[1], reverse=True))


def load_runs(pks: Collection[int]) -> dict[int, RunRow]:
    return {row.pk: row for row in _read_runs("id", pks)}


def load_abandoned() -> list[RunRow]:
    """Return up to 1000 open rows of chains whose schedule was deleted or disabled."""
    using = get_database()
    enabled = Schedule._base_manager.using(using).filter(pk=OuterRef("schedule_id"), enabled=True)
    rows = Run._base_manager.using(using).filter(_NOT_SUCCEEDED, separate=False, status__in=OPEN_STATUSES[1:])
    pks = rows.filter(~Exists(enabled)).order_by("pk").values_list("pk", flat=True)
    return list(load_runs(pks[:1000]).values())


def count_up_to(most: int, *questions: QuerySet[Any]) -> list[int]:
    """Count up to `most + 1` rows of each query. Each must be sorted by its index, else PostgreSQL scans the table."""
    keys, values = _build_limited(most + 1, [rows if rows.query.order_by else rows.order_by() for rows in questions])
    with connections[get_database()].cursor() as cursor:
        counts = ", ".join(f"(SELECT COUNT(*) FROM {each} counted)" for each in keys)  # noqa: S608 - Django's
        cursor.execute(f"SELECT {counts}", values)
        return list(cursor.fetchone())


def _build_limited(most: int, questions: Iterable[QuerySet[Any]]) -> tuple[list[str], list[Any]]:
    """Return the SQL of the first `most` keys of each query, and the parameters of all."""
    using = get_database()
    compiled = [rows.using(using).values("pk")[:most].query.get_compiler(using).as_sql() for rows in questions]
    return [f"({sql})" for sql, _ in compiled], [value for _, params in compiled for value in params]


def query_open_separate() -> QuerySet[Run]:
    """Return the open rows outside chains, which include all jobs."""
    rows = Run._base_manager.using(get_database()).filter(_NOT_SUCCEEDED, separate=True)
    return rows.filter(status__in=OPEN_STATUSES)


def count_open_separate(most: int) -> tuple[int, bool]:
    """Count open rows outside chains, `most` per status; return also whether there are more."""
    rows = [query_status(status).order_by("pk") for status in OPEN_STATUSES]
    chains = Run._base_manager.using(get_database()).filter(_IS_OPEN_OF_CHAIN)
    *counts, of_chains = count_up_to(most, *rows, chains)
    return sum(counts) - of_chains, max(*counts, of_chains) > most


def count_values(
    most: int, names: Sequence[str], *questions: QuerySet[Run], before: datetime | None = None
) -> dict[Any, int]:
    """Count the first `most` runs of each query, created `before`, by the values of these columns."""
    # A subquery selects the keys by an index: otherwise PostgreSQL would walk all runs by primary key.
    using, columns, (keys, values) = get_database(), ", ".join(names), _build_limited(most, questions)
    found = " UNION ALL ".join(f"SELECT * FROM {each} counted" for each in keys)  # noqa: S608 - Django's
    sql = f"SELECT {columns}, COUNT(*) FROM ({found}) found JOIN {_TABLE} ON {_TABLE}.id = found.pk"  # noqa: S608
    if before is not None:
        sql += " WHERE created_at < %s"
        values.append(Run._meta.get_field("created_at").get_db_prep_value(before, connections[using]))
    with connections[using].cursor() as cursor:
        cursor.execute(f"{sql} GROUP BY {columns}", values)
        return {row[:-1]: row[-1] for row in cursor.fetchall()}


Instance = TypeVar("Instance", bound=Model)


def build_schedule(row: ScheduleRow) -> Schedule:
    """Return an instance of the definition with its state; fields that were not read are loaded on access."""
    schedule = _build_instance(Schedule, DEFINITION, row)
    if row.state.stored:
        schedule.state = _build_instance(ScheduleState, STATE, row.state)
    return schedule


def build_run(row: RunRow) -> Run:
    """Return an instance of the run, which may be unsaved."""
    if row.pk:
        return _build_instance(Run, RUN, row)
    run = Run(**{name: getattr(row, name) for name in RUN if name != "pk"})  # other fields have their defaults
    run._state.db = get_database()
    return run


def _build_instance(model: type[Instance], names: tuple[str, ...], row: RunRow | ScheduleRow | StateRow) -> Instance:
    attnames = {"id" if name == "pk" else name: name for name in names}
    in_order = [field.attname for field in model._meta.concrete_fields if field.attname in attnames]
    return model.from_db(get_database(), in_order, [getattr(row, attnames[name]) for name in in_order])


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The paused queues and tasks, by current names, each with the reason; and the limits of queues."""

    queues: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)

    @property
    def paused(self) -> Collection[tuple[str, str]]:
        return {("queue", name) for name in self.queues} | {("task", name) for name in self.tasks}


def load_controls() -> list[Control]:
    return list(Control.objects.using(get_database()).in_force())


def read_held_back() -> HeldBack:
    """Return the pauses and limits that are in force, by name, with one query."""
    queues, tasks, most = dict[str, str](), dict[str, str](), dict[str, int]()
    for row in load_controls():
        if row.is_paused():
            if row.kind == Control.Target.QUEUE:
                queues[row.name] = row.reason
            else:
                tasks[resolve_path(row.name)] = row.reason
        if row.most is not None and row.kind == Control.Target.QUEUE:
            most[row.name] = row.most
    return HeldBack(queues, tasks, most)


def read_stop_requests(runs: Collection[int]) -> dict[int, str]:
    """Return which of these runs to stop, by primary key, each with the user who requested it."""
    rows = Run._base_manager.using(get_database()).filter(pk__in=list(runs), stop_requested_at__isnull=False)
    return dict(rows.values_list("pk", "stop_requested_by"))
