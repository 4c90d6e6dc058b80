"""Reads what is decided and what is open, always on the primary database."""

from collections.abc import Iterable

from django.db.models import BooleanField, Exists, OuterRef, QuerySet
from django.db.models.expressions import RawSQL

from ..models import Run, Schedule, Status
from .database import database

#: Written out as in the partial index of open rows: SQLite does not use it for a condition with parameters, and would
#: read the whole history of a schedule instead.
_OPEN = RawSQL(  # noqa: S611 - no value of anybody's is in it
    f"{Run._meta.db_table}.status IN ('queued', 'running', 'retrying')", [], output_field=BooleanField()
)


def load_schedules(pks: Iterable[int]) -> dict[int, Schedule]:
    """Return definitions with their states by primary key, in one query on the primary database."""
    rows = Schedule._base_manager.using(database()).filter(pk__in=list(pks)).select_related("state")
    return {row.pk: row for row in rows}


def open_apart() -> QuerySet[Run]:
    """Return the runs apart from their chains that have no outcome yet, by an index of their own."""
    return Run._base_manager.using(database()).filter(_OPEN, apart=True)


def open_chains() -> QuerySet[Run]:
    """Return the rows of chains that have no outcome yet, by an index of their own."""
    rows = Run._base_manager.using(database()).filter(_OPEN, apart=False)
    return rows.filter(status__in=[Status.RUNNING, Status.RETRYING])


def load_open_rows(pks: Iterable[int]) -> dict[int, list[Run]]:
    """Return the open rows of the chains of these schedules, oldest first. Rows apart from the chain are not part."""
    rows = open_chains().filter(schedule_id__in=list(pks))
    found: dict[int, list[Run]] = {}
    for row in rows.order_by("due_at"):
        found.setdefault(row.schedule_id, []).append(row)
    return found


def load_runs(pks: Iterable[int]) -> dict[int, Run]:
    """Return runs by primary key."""
    return {row.pk: row for row in Run._base_manager.using(database()).filter(pk__in=list(pks))}


def find(run: Run) -> Run | None:
    """Return the row of a run's due point as it stands now."""
    rows = Run._base_manager.using(database())
    return rows.filter(schedule_id=run.schedule_id, origin=run.origin, due_at=run.due_at).first()


def load_abandoned() -> list[Run]:
    """Return open rows of chains whose schedule is gone or switched off."""
    using = database()
    enabled = Schedule._base_manager.using(using).filter(pk=OuterRef("schedule_id"), enabled=True)
    return list(open_chains().filter(~Exists(enabled)).order_by("pk")[:1000])
