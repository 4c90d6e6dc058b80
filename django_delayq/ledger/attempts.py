"""The attempts of a run, in memory: former attempts in the column `attempts`, the last one in the row itself."""

from datetime import datetime

from ..calls.attempt import NOT_ENDED, Attempt, followed_by, from_json, to_json
from ..models import Status
from ..recurrence import to_ms
from .rows import AnyRun

#: Statuses without an execution.
_NOT_EXECUTED = frozenset((Status.QUEUED, Status.SKIPPED))


def keep_former(run: AnyRun, lapsed_at: datetime | None = None, *, ended: bool = False) -> None:
    """Add the attempt of an open row to `attempts`, before the next attempt begins or the row is closed.

    `ended`: the row has an outcome and is about to be retried. The worker of a `running` row did not end the attempt;
    if the row is not saved yet, only the time of that worker's claim is known, `lapsed_at`.
    """
    before = from_json(run.attempts)
    worker, started = ("", _ms(lapsed_at)) if not run.pk else (run.worker, _ms(run.started_at))
    if run.status == Status.RETRYING or (ended and started is not None and not _is_kept(before, started)):
        before = followed_by(before, started, _ms(run.finished_at), worker, run.reason, run.error)
    elif run.status == Status.RUNNING:
        before = followed_by(before, started, None, worker, NOT_ENDED)
    else:
        return
    run.attempts = to_json(before)


def attempts_of(run: AnyRun) -> list[Attempt]:
    """Return the attempts of a row, oldest first; the last one may still be running.

    `keep_former` may have kept the last attempt of a closed row too: both then have the same start.
    """
    before = from_json(run.attempts)
    started = _ms(run.started_at)
    if started is None or run.status in _NOT_EXECUTED or _is_kept(before, started):
        return before
    if run.status == Status.RUNNING:
        return followed_by(before, started, None, run.worker, "")
    title = "" if run.status == Status.SUCCEEDED else run.reason
    return followed_by(before, started, _ms(run.finished_at), run.worker, title, run.error)


def _is_kept(before: list[Attempt], started: int) -> bool:
    return bool(before) and before[-1].started == started


def _ms(value: datetime | None) -> int | None:
    return None if value is None else to_ms(value)
