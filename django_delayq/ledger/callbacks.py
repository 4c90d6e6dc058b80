"""Rows of what follows an outcome: jobs of `on_success` and `on_failure`, written with it. Never touches Redis.

Note [Beside its cause]
A callback waits in the queue of what has ended. One transaction writes the outcome and the row of its callback: so
there is one for each outcome that was recorded, and none for others, whichever worker dies when. It has no callbacks of
its own.
"""

import logging
from collections.abc import Sequence
from typing import Any

from .. import registry
from ..fields import utcnow
from ..jobs import new_tokens
from ..jobs.aliases import first_alias
from ..models import Status
from ..rows import RunRow
from .jobs import add_jobs
from .outcome import Outcome, Won

logger = logging.getLogger("django_delayq.worker")

#: What is called after an outcome; after all others nothing is.
_AFTER: dict[str, str] = {Status.SUCCEEDED: "on_success", Status.FAILED: "on_failure", Status.LOST: "on_failure"}


def call_back(outcomes: Sequence[Outcome], written: Sequence[Won]) -> None:
    """Insert what follows the runs that were won, within their transaction, and note it in their outcomes."""
    for outcome, got in zip(outcomes, written, strict=True):
        outcome.callback = _after(outcome) if got is Won.YES else None
    rows = [outcome.callback for outcome in outcomes if outcome.callback is not None]
    if rows:
        add_jobs(rows)


def _after(outcome: Outcome) -> RunRow | None:
    """Return what follows a run that was won just now, None where nothing does."""
    run = outcome.run
    name = _AFTER.get(run.status)
    path: str = getattr(outcome.call, name) if name else ""
    if not path or outcome.repeated:
        return None
    if run.is_job:
        return _row(path, [run.result_id], run.queue, run.backend)
    alias = first_alias()
    if not alias:
        logger.error("%s calls back %s, but TASKS has no alias of django_delayq: it is not.", run.schedule_name, path)
        return None
    return _row(path, [run.pk, run.due_at.isoformat()], run.queue, alias)


def _row(path: str, args: list[Any], queue: str, alias: str) -> RunRow:
    """Where this code does not know the task, a worker that does will execute it."""
    task, now = registry.find_task(path), utcnow()
    values = {"call": {"args": args, "kwargs": {}}, "created_at": now, "priority": int(task.priority) if task else 0}
    return RunRow.job(path, queue, alias, now, new_tokens(1)[0], **values)
