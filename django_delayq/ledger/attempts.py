"""The attempts of a due point: those before the last one in the column `attempts`, the last one in the row itself.

Fills in rows in memory; writes nothing.
"""

from datetime import datetime

from ..calls import history
from ..calls.history import Attempt
from ..models import Status
from ..recurrence import to_ms
from .rows import AnyRun

#: Rows that tell of no execution of their own.
_NOT_EXECUTED = frozenset((Status.QUEUED, Status.SKIPPED))


def keep_former(run: AnyRun, lapsed_at: datetime | None = None, *, ended: bool = False) -> None:
    """Keep the attempt that an open row tells of, before another one begins or the row is closed.

    `ended`: of a row with an outcome, before it is tried anew.

    A row that runs is one whose worker did not end it. One that is not saved yet says so for a worker of which nothing
    is known but when it claimed: `lapsed_at`.
    """
    before = history.from_json(run.attempts)
    worker, started = ("", _ms(lapsed_at)) if not run.pk else (run.worker, _ms(run.started_at))
    if run.status == Status.RETRYING or (ended and started is not None and not _is_kept(before, started)):
        before = history.followed_by(before, started, _ms(run.finished_at), worker, run.reason, run.error)
    elif run.status == Status.RUNNING:
        before = history.followed_by(before, started, None, worker, history.NOT_ENDED)
    else:
        return
    run.attempts = history.to_json(before)


def attempts_of(run: AnyRun) -> list[Attempt]:
    """Return the attempts of a row, oldest first; the last one may still run.

    Whoever closed the row has kept its last attempt first, so that this one is there twice: it has one start.
    """
    before = history.from_json(run.attempts)
    started = _ms(run.started_at)
    if started is None or run.status in _NOT_EXECUTED or _is_kept(before, started):
        return before
    if run.status == Status.RUNNING:
        return history.followed_by(before, started, None, run.worker, "")
    title = "" if run.status == Status.SUCCEEDED else run.reason
    return history.followed_by(before, started, _ms(run.finished_at), run.worker, title, run.error)


def _is_kept(before: list[Attempt], started: int) -> bool:
    return bool(before) and before[-1].started == started


def _ms(value: datetime | None) -> int | None:
    return None if value is None else to_ms(value)
