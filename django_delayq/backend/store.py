"""Jobs as rows of the ledger, then in Redis: enqueue, find, cancel, move, retry. Checks no task.

Note [A change delays the job in Redis first]
Only Redis knows whether a worker has a job, only the database whether a transaction is committed. So a cancellation or
a move first delays the job in Redis by a minute, which fails if a worker has it, then writes the row, and updates Redis
after the commit. If this is interrupted, the job comes due within that minute, and its worker follows the row.
"""

import sys
import warnings
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from traceback import walk_stack
from typing import Any

from django.db import IntegrityError, connections, transaction

from .. import conf, ledger, sync
from ..calls import parse_id, restore_task
from ..calls.compat import AnyResult, TaskResultDoesNotExist, task_enqueued
from ..calls.side_channels import send
from ..exceptions import JobHeld, KeyTaken
from ..index import Broker
from ..ledger.rows import RunRow
from ..models import Run, Status
from ..recurrence import from_ms, to_ms
from ..recurrence.point import utcnow

#: Delay of a job in Redis while it is being cancelled or moved.
HOLD = timedelta(minutes=1)


def enqueue(items: Sequence[tuple[AnyResult, RunRow]], sender: type) -> None:
    """Insert jobs in the caller's transaction, put them into Redis after its commit, set the ids of the results."""
    using = ledger.get_database()
    if not connections[using].in_atomic_block:
        _warn_of_others(using)
    rows = ledger.add_jobs([row for _, row in items])
    fresh = []
    for (result, own), row in zip(items, rows, strict=True):
        object.__setattr__(result, "id", row.result_id)
        if row is own:
            fresh.append((result, row))
        else:  # another job has the key; its alias may differ
            object.__setattr__(result, "task", restore_task(result.task, row))
            object.__setattr__(result, "backend", row.backend)
    if fresh:
        announce = partial(_announce, [result for result, _ in fresh], sender)
        sync.put_after_commit([row for _, row in fresh], using=using, then=announce)


def _warn_of_others(using: str) -> None:
    for other in connections.all(initialized_only=True):
        if other.alias != using and other.in_atomic_block:
            warnings.warn(
                f"A job is enqueued at once: a transaction is open on the database {other.alias!r}, but jobs are rows "
                f"of {using!r}. Open a transaction on {using!r} too, or enqueue after the commit.",
                RuntimeWarning,
                stacklevel=_find_caller_depth(),
            )


def _find_caller_depth() -> int:
    """Return the `stacklevel` of the code that enqueues, from the function that calls this one."""
    frames, names = walk_stack(sys._getframe(1)), ("django_delayq", "django.tasks", "django_tasks", "contextlib")
    found = (depth for depth, (frame, _) in enumerate(frames, 1) if not frame.f_globals["__name__"].startswith(names))
    return next(found, 1)


def _announce(results: Sequence[AnyResult], sender: type) -> None:
    for result in results:
        send(task_enqueued, "task_enqueued", sender=sender, task_result=result)


def find(result_id: str, alias: str) -> Run:
    """Return the row of a job of this alias; raise TaskResultDoesNotExist if there is none, or it has expired."""
    parsed = parse_id(result_id)
    row = None if parsed is None else ledger.find_job(*parsed)
    if row is None or row.backend != alias:
        raise TaskResultDoesNotExist(result_id)
    return row


def cancel(job: Run, keep_seconds: float) -> bool:
    """Cancel a waiting job; False if it has ended. See Note [A change delays the job in Redis first].

    Raises JobHeld, or BrokerUnavailable, when nothing was changed.
    """
    expires_at = utcnow() + timedelta(seconds=keep_seconds)
    return _change(job, lambda: ledger.cancel_job(job, expires_at), lambda broker: sync.forget_run(broker, job))


def move(job: Run, when: datetime) -> bool:
    """Move the start of a waiting job; False if it has ended. Raises what `cancel` does."""
    due_at = from_ms(to_ms(max(when, utcnow())))

    def follow(broker: Broker) -> None:
        job.due_at = due_at
        sync.move_run(broker, job, due_at)

    return _change(job, lambda: ledger.move_job(job, due_at), follow)


def _change(job: Run, write: Any, follow: Any) -> bool:
    if not Status(job.status).is_open:
        return False
    if job.status == Status.RUNNING:
        raise _build_held_error(job)
    if conf.get_config().mirror and not sync.move_now(job, utcnow() + HOLD):
        raise _build_held_error(job)
    using = ledger.get_database()
    with transaction.atomic(using=using):
        if not write():
            fresh = Run._base_manager.using(using).filter(pk=job.pk).first()
            if fresh is not None and fresh.status == Status.RUNNING:
                raise _build_held_error(job)
            return False
        sync.follow_after_commit(follow, using=using)
    return True


def _build_held_error(job: Run) -> JobHeld:
    return JobHeld(f"A worker already has the job {job.result_id}, so it can be neither cancelled nor moved.")


def retry(job: Run) -> bool:
    """Requeue a failed job; False if it has not failed or its row has changed since. Raises KeyTaken."""
    if job.status not in (Status.FAILED, Status.LOST):
        return False
    using, now = ledger.get_database(), from_ms(to_ms(utcnow()))
    with transaction.atomic(using=using):
        try:
            if not ledger.retry_job(job, now):
                return False
        except IntegrityError:
            other = ledger.find_key_holder((job.options or {}).get("unique_key", ""))
            name = "another job" if other is None else f"the job {other.result_id}"
            text = f"The job {job.result_id} is not retried: {name} has its unique key. Wait for its end."
            raise KeyTaken(text) from None
        job.status, job.due_at, job.generation = Status.QUEUED, now, job.generation + 1
        sync.put_after_commit([job], using=using)
    return True
