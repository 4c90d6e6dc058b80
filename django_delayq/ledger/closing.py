"""Closes open rows that nobody will come back to."""

from collections.abc import Sequence

from ..fields import utcnow
from ..models import Run, Status
from ..models.run import OPEN
from ..rows import RunRow
from .attempts import keep_former
from .bulk import database, writing
from .locks import leave_locked
from .outcome import Outcome, version_of
from .reading import load_schedules
from .recording import left_behind, record


def close_orphan(run: RunRow, reason: str) -> None:
    """Close an open run whose schedule is gone: nobody is left to execute it for. The sweeps find what is locked."""
    using = database()
    with writing(using):
        if not leave_locked(Run, [run.pk], using):
            row = Run._base_manager.using(using).filter(pk=run.pk, status__in=sorted(OPEN)).first()
            if row is not None:
                keep_former(row)
                row.status, row.reason, row.finished_at = Status.LOST, reason, utcnow()
                row.save(using=using, update_fields=["status", "reason", "finished_at", "attempts"])


def close_abandoned(runs: Sequence[RunRow]) -> None:
    """Close open rows of chains that will not come back: their schedule is gone or switched off, Redis forgot them."""
    schedules = load_schedules({run.schedule_id or 0 for run in runs})
    for run in runs:
        schedule = schedules.get(run.schedule_id or 0)
        if schedule is None:
            close_orphan(run, "the schedule was deleted")
            continue
        seen = version_of(run)
        keep_former(run)
        run.status = Status.FAILED if run.status == Status.RETRYING else Status.LOST
        run.reason, run.finished_at = "paused", utcnow()
        outcomes = [Outcome(run, schedule, seen)]
        if not run.apart and run.due_at < schedule.effective_from:  # what fell due behind it before the pause
            left = left_behind(schedule, run.due_at, finished_at=run.finished_at)
            outcomes.append(Outcome(left, schedule, owner=outcomes[0]))
        record(outcomes)
