"""Jobs as rows of the ledger: enqueued, found, cancelled, moved, retried, and Redis after them. Checks no task.

Note [Row and Redis together]
Whether a worker has a job only Redis knows, and whether a transaction is committed only the database. So a cancellation
or a move first puts the job off in Redis by a minute, which fails where a worker has it; then it writes the row; and
after the commit it does in Redis what the row says. Whatever is cut off on the way, the job comes due within that
minute, and the worker that claims it does what the row says.
"""

import warnings
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import IntegrityError, connections, transaction

from .. import conf, ledger, sync
from ..calls import as_called, parse_id
from ..calls.compat import AnyResult, TaskResultDoesNotExist, task_enqueued
from ..calls.side_channels import send
from ..exceptions import JobHeld, KeyTaken
from ..index import Broker
from ..ledger.rows import RunRow
from ..models import Run, Status
from ..recurrence import from_ms, to_ms
from ..recurrence.point import utcnow

#: A job that is being cancelled or moved is put off by so long meanwhile.
HOLD = timedelta(minutes=1)


def enqueue(items: Sequence[tuple[AnyResult, RunRow]], sender: type) -> None:
    """Insert jobs in the caller's transaction, have them put into Redis after its commit, and give the results ids.

    Raises:
        DatabaseError: None was inserted.
    """
    using = ledger.database()
    if not connections[using].in_atomic_block:
        _warn_of_others(using)
    rows = ledger.add_jobs([row for _, row in items])
    fresh = []
    for (result, own), row in zip(items, rows, strict=True):
        object.__setattr__(result, "id", row.result_id)
        if row is own:
            fresh.append((result, row))
        else:  # of the job that has the key, which may be one of another alias
            object.__setattr__(result, "task", as_called(result.task, row))
            object.__setattr__(result, "backend", row.backend)
    if fresh:
        tell = partial(_tell_enqueued, [result for result, _ in fresh], sender)
        sync.put_after_commit([row for _, row in fresh], using=using, then=tell)


def _warn_of_others(using: str) -> None:
    """Warn where a transaction is open on another database only: it does not cover the job."""
    for other in connections.all(initialized_only=True):
        if other.alias != using and other.in_atomic_block:
            warnings.warn(
                f"A job is enqueued at once, although a transaction is open on the database {other.alias!r}: jobs "
                f"are in {using!r}, and only a transaction there covers them. Open one there too, or enqueue later.",
                RuntimeWarning,
                stacklevel=7,
            )


def _tell_enqueued(results: Sequence[AnyResult], sender: type) -> None:
    for result in results:
        send(task_enqueued, "task_enqueued", sender=sender, task_result=result)


def find(result_id: str) -> Run:
    """Return the row of a job.

    Raises:
        TaskResultDoesNotExist: No job has this id, or its time is over.
    """
    parsed = parse_id(result_id)
    row = None if parsed is None else ledger.find_job(*parsed)
    if row is None:
        raise TaskResultDoesNotExist(result_id)
    return row


def cancel(job: Run, keep_seconds: float) -> bool:
    """Cancel a job that waits; False where it has ended. See Note [Row and Redis together].

    Raises:
        JobHeld: A worker has it.
        BrokerUnavailable: Redis does not answer; nothing was changed.
    """
    expires_at = utcnow() + timedelta(seconds=keep_seconds)
    return _change(job, lambda: ledger.cancel_job(job, expires_at), lambda broker: sync.forget_run(broker, job))


def move(job: Run, when: datetime) -> bool:
    """Let a job that waits start at another time; False where it has ended. Raises what `cancel` does."""
    due_at = from_ms(to_ms(max(when, utcnow())))

    def follow(broker: Broker) -> None:
        job.due_at = due_at
        sync.move_run(broker, job, due_at)

    return _change(job, lambda: ledger.move_job(job, due_at), follow)


def _change(job: Run, write: Any, follow: Any) -> bool:
    if not Status(job.status).is_open:
        return False
    if job.status == Status.RUNNING:
        raise _held(job)
    if conf.get_config().mirror and not sync.move_now(job, utcnow() + HOLD):
        raise _held(job)
    using = ledger.database()
    with transaction.atomic(using=using):
        if not write():
            fresh = Run._base_manager.using(using).filter(pk=job.pk).first()
            if fresh is not None and fresh.status == Status.RUNNING:
                raise _held(job)
            return False
        sync.follow_after_commit(follow, using=using)
    return True


def _held(job: Run) -> JobHeld:
    return JobHeld(f"A worker has the job {job.result_id} already, so that it can be neither cancelled nor moved.")


def retry(job: Run) -> bool:
    """Let a job that has failed wait again, in the caller's transaction; False where it does not stand as it was read.

    Needs no Redis: a sweep puts what cannot be put now.

    Raises:
        KeyTaken: Another job has its unique key.
    """
    if job.status not in (Status.FAILED, Status.LOST):
        return False
    using, now = ledger.database(), from_ms(to_ms(utcnow()))
    with transaction.atomic(using=using):
        try:
            if not ledger.retry_job(job, now):
                return False
        except IntegrityError:
            other = ledger.taken_by((job.options or {}).get("unique_key", ""))
            name = "another job" if other is None else f"the job {other.result_id}"
            raise KeyTaken(
                f"The job {job.result_id} is not retried: {name} has its unique key. Wait for its end."
            ) from None
        job.status, job.due_at, job.generation = Status.QUEUED, now, job.generation + 1
        sync.put_after_commit([job], using=using)
    return True
