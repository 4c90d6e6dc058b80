"""Reads what is decided, what is open and what was recorded of late, always on the primary database.

Note [Overload]
Points are missed after an outage and at a start too, and then it is over. What falls due while the workers are at it,
and is skipped all the same, is more than they can do. So only stretches count that began after the first outcome that
is looked at, and nothing is said of less than LEAST_SECONDS, but where so much is recorded that the rows do not reach
back that far.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import BooleanField, Exists, OuterRef, QuerySet
from django.db.models.expressions import RawSQL
from django.utils.translation import gettext_noop

from ..fields import utcnow
from ..grouping import grouped
from ..models import Origin, Run, Schedule, Status
from ..rows import RunRow, ScheduleRow, StateRow
from .bulk import database, reader

#: Written out as in the partial index of open rows: SQLite does not use it for a condition with parameters, and would
#: read the whole history of a schedule instead.
_OPEN_SQL = f"{Run._meta.db_table}.status IN ('queued', 'running', 'retrying')"
_OPEN = RawSQL(_OPEN_SQL, [], output_field=BooleanField())  # noqa: S611 - no value of anybody's is in it
_OPEN_OF_CHAIN = f" AND {_OPEN_SQL} AND NOT {Run._meta.db_table}.apart"
DEFINITION = tuple(field.name for field in fields(ScheduleRow) if field.init and field.name != "state")
STATE = tuple(field.name for field in fields(StateRow) if field.name != "stored")
RUN = tuple(field.name for field in fields(RunRow))


def load_schedules(pks: Iterable[int]) -> dict[int, ScheduleRow]:
    """Return definitions with their states by primary key, in one query on the primary database.

    `range(a, b)` means all of these, which the database answers faster.
    """
    names = (*DEFINITION, *(f"state__{name}" for name in STATE))
    found = {}
    for row in reader(Schedule, "id", names, database()).read(pks if isinstance(pks, range) else list(pks)):
        definition, state = row[: len(DEFINITION)], row[len(DEFINITION) :]
        pk = definition[0]
        blank = state[0] is None
        found[pk] = ScheduleRow(StateRow(pk) if blank else stored_state(state), *definition)
    return found


def stored_state(values: Sequence[Any]) -> StateRow:
    """Return a state that was read; `values` are those of STATE."""
    row = StateRow(*values)
    row.stored = True
    return row


def find_schedule(pk: int) -> Schedule | None:
    """Return the instance of a schedule with its state, as they stand now."""
    return Schedule._base_manager.using(database()).filter(pk=pk).select_related("state").first()


def _runs(key: str, keys: Collection[int], where: str = "") -> list[RunRow]:
    return [RunRow(*row) for row in reader(Run, key, RUN, database()).read(keys, where)]


def open_apart() -> QuerySet[Run]:
    """Return the runs apart from their chains that have no outcome yet, by an index of their own."""
    return Run._base_manager.using(database()).filter(_OPEN, apart=True)


def open_chains() -> QuerySet[Run]:
    """Return the rows of chains that have no outcome yet, by an index of their own."""
    rows = Run._base_manager.using(database()).filter(_OPEN, apart=False)
    return rows.filter(status__in=[Status.RUNNING, Status.RETRYING])


def load_open_rows(pks: Collection[int]) -> dict[int, list[RunRow]]:
    """Return the open rows of the chains of these schedules, oldest first. Rows apart from the chain are not part."""
    rows = [row for row in _runs("schedule", pks, _OPEN_OF_CHAIN) if row.status != Status.QUEUED]
    return grouped(sorted(rows, key=lambda row: row.due_at), lambda row: row.schedule_id)


def load_oldest_open(pks: Collection[int]) -> dict[int, datetime]:
    """Return the oldest due point without an outcome of each of these chains that has one."""
    where = f"{_OPEN_OF_CHAIN} AND {Run._meta.db_table}.status <> '{Status.QUEUED.value}'"
    rows = reader(Run, "schedule", ("schedule_id", "due_at"), database()).read(pks, where)
    return dict(sorted(((pk, due) for pk, due in rows), key=lambda row: row[1], reverse=True))


def load_queued(points: Collection[tuple[int, datetime]]) -> list[RunRow]:
    """Return the rows apart from their chains of these points, (schedule, due_at) each, that nobody has begun."""
    pks, dues = zip(*points, strict=True)
    rows = open_apart().filter(schedule_id__in=pks, due_at__in=dues, origin=Origin.DUE, status=Status.QUEUED)
    return list(load_runs(rows.values_list("pk", flat=True)).values())


def load_runs(pks: Collection[int]) -> dict[int, RunRow]:
    """Return runs by primary key."""
    return {row.pk: row for row in _runs("id", pks)}


def find(run: RunRow) -> RunRow | None:
    """Return the row of a run's due point as it stands now."""
    rows = Run._base_manager.using(database())
    key = {"schedule_id": run.schedule_id, "origin": run.origin, "due_at": run.due_at}
    pk = rows.filter(**key).values_list("pk", flat=True).first()
    return None if pk is None else load_runs([pk]).get(pk)


def load_abandoned() -> list[RunRow]:
    """Return open rows of chains whose schedule is gone or switched off."""
    using = database()
    enabled = Schedule._base_manager.using(using).filter(pk=OuterRef("schedule_id"), enabled=True)
    pks = open_chains().filter(~Exists(enabled)).order_by("pk").values_list("pk", flat=True)
    return list(load_runs(pks[:1000]).values())


def count_up_to(most: int, *questions: QuerySet[Any]) -> list[int]:
    """Count the rows of each, in one query; none further than `most + 1`, which means more than `most`.

    An order of the rows says by which index to find them: told a limit, PostgreSQL would rather read the table.
    """
    using, parts, values = database(), list[str](), list[Any]()
    for rows in questions:
        ordered = rows if rows.query.order_by else rows.order_by()
        limited = ordered.using(using).values("pk")[: most + 1]
        sql, params = limited.query.get_compiler(using).as_sql()
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) counted)")  # noqa: S608 - Django's
        values += params
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(parts)}", values)
        return list(cursor.fetchone())


def find_values(most: int, *questions: QuerySet[Any, Any]) -> set[tuple[Any, ...]]:
    """Return the different values of the first `most` rows of each, in one query."""
    using, parts, values = database(), list[str](), list[Any]()
    for rows in questions:
        sql, params = rows.using(using)[:most].query.get_compiler(using).as_sql()
        parts.append(f"SELECT * FROM ({sql}) found")  # noqa: S608 - Django's
        values += params
    with connections[using].cursor() as cursor:
        cursor.execute(" UNION ".join(parts), values)
        return set(cursor.fetchall())


#: What was recorded in the last so many seconds is looked at, and at most so many rows of it.
SECONDS = 300.0
MOST_ROWS = 5000
LEAST_SECONDS = 30.0
#: From this share of missed points on, and from so many, it is overload.
SHARE, FEWEST = 0.1, 10
#: Why points are skipped that came too late.
REASONS = ("missed", "max_catch_up", "catch_up_window")
#: What is told of it, see `Load.told`.
OVERLOAD = gettext_noop(
    "More falls due than the workers can do: in %(seconds)d s %(missed)d due points were skipped because they "
    "came too late, and %(executed)d executed; the longest wait was %(wait)d s. Needed: %(needed).1f "
    "executions/s, done: %(done).1f. Start more workers or threads, or let schedules fall due less often."
)


class Load(NamedTuple):
    """What was recorded in `seconds`: due points that were executed, and that were missed; the longest wait of one.

    `enough` says whether that is enough to tell overload by.
    """

    seconds: float
    executed: int
    missed: int
    longest_wait: float
    enough: bool

    @property
    def overloaded(self) -> bool:
        """True where more falls due than is executed. See Note [Overload]."""
        return self.enough and self.missed >= max(FEWEST, SHARE * (self.executed + self.missed))

    @property
    def told(self) -> dict[str, float]:
        """What `OVERLOAD` says: also the executions a second that would miss nothing, and those that were made."""
        needed, done = (self.executed + self.missed) / self.seconds, self.executed / self.seconds
        return {**self._asdict(), "wait": self.longest_wait, "needed": needed, "done": done}


def read_load() -> Load:
    """Return the load of late, from the newest rows."""
    now = utcnow()
    rows = Run._base_manager.using(database())
    newest = rows.order_by("-pk").values_list("pk", flat=True).first() or 0
    late = rows.filter(pk__gt=newest - MOST_ROWS, origin=Origin.DUE, claimed_at__isnull=False)
    late = late.filter(finished_at__gte=now - timedelta(seconds=SECONDS)).order_by("finished_at")
    found = list(late.values_list("status", "reason", "points", "due_at", "claimed_at", "finished_at"))
    first: datetime = found[0][-1] or now if found else now
    seconds = max(1.0, (now - first).total_seconds())
    executed = [row for row in found if row[0] != Status.SKIPPED]
    skipped = [row for row in found if row[0] == Status.SKIPPED and row[1] in REASONS]  # a task's error may say so too
    waits = [(claimed_at or now) - due_at for _, _, _, due_at, claimed_at, _ in executed]
    missed = sum(points for _, _, points, due_at, _, _ in skipped if due_at >= first)
    enough = seconds >= LEAST_SECONDS or len(found) > MOST_ROWS // 2
    return Load(seconds, len(waits), missed, max(waits, default=timedelta(0)).total_seconds(), enough)
