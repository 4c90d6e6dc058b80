"""Ends open runs that no worker will end, and takes back starts that did not happen."""

from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction

from ..models import Run, Status
from ..models.run import OPEN
from ..recurrence.point import utcnow
from .bulk import get_database, writing
from .locks import leave_locked
from .reading import load_schedules
from .recording import Change, build_stretch, change_rows, record
from .rows import VERSION, Outcome, RunRow, get_version, keep_former


def undo_start(outcomes: Sequence[Outcome], before: Sequence[dict[str, Any]]) -> None:
    """Undo the `running` state of rows whose executions did not begin, so that no take-over is counted."""
    using = get_database()
    changes = []
    for run, values in zip((outcome.run for outcome in outcomes), before, strict=True):
        running = Status.RUNNING, run.attempt, run.fence, run.worker, run.created_at
        after = tuple(values.get(name, getattr(run, name)) for name in VERSION)
        changes.append(Change(run.pk, running, after, tuple(values.values())))
    names = tuple(before[0])
    with writing(using):
        try:
            with transaction.atomic(using=using):
                change_rows(names, changes, using)
        except IntegrityError:  # another job has taken a unique key since: drop the keys, as at a start
            keys = names.index("unique_key")
            changes = [each._replace(values=_remove_item(keys, each.values or ())) for each in changes]
            change_rows(_remove_item(keys, names), changes, using)


def _remove_item(index: int, items: tuple[Any, ...]) -> tuple[Any, ...]:
    return items[:index] + items[index + 1 :]


def close_orphan(run: RunRow, reason: str) -> None:
    """Close an open run whose schedule was deleted. If the row is locked, a later sweep closes it."""
    using = get_database()
    with writing(using):
        if not leave_locked(Run, [run.pk], using):
            row = Run._base_manager.using(using).filter(pk=run.pk, status__in=sorted(OPEN)).first()
            if row is not None:
                keep_former(row)
                row.status, row.reason, row.finished_at = Status.LOST, reason, utcnow()
                row.save(using=using, update_fields=["status", "reason", "finished_at", "attempts"])


def close_abandoned(runs: Sequence[RunRow]) -> None:
    """Close open rows of chains. Their schedules were deleted or disabled, and are not in Redis."""
    schedules = load_schedules({run.schedule_id or 0 for run in runs})
    for run in runs:
        schedule = schedules.get(run.schedule_id or 0)
        if schedule is None:
            close_orphan(run, "the schedule was deleted")
            continue
        seen = get_version(run)
        keep_former(run)
        run.status = Status.FAILED if run.status == Status.RETRYING else Status.LOST
        run.reason, run.finished_at = "paused", utcnow()
        outcomes = [Outcome(run, schedule, seen)]
        if not run.separate and run.due_at < schedule.effective_from:  # points due after it, before the pause
            left = build_stretch(schedule, run.due_at, finished_at=run.finished_at)
            outcomes.append(Outcome(left, schedule, owner=outcomes[0]))
        record(outcomes)
