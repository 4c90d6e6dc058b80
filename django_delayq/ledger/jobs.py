"""Jobs in the ledger: added, found, cancelled, moved, retried. Never touches Redis.

Note [Unique keys]
A job holds its key in a nullable column with a unique constraint, until it starts or until it has ended. A taken key is
no error of the database: the row is not inserted, and the job that has the key is returned, locked for the rest of the
caller's transaction. So what the caller writes in that transaction is there when the job starts: the worker that would
start it finds the row locked, and comes back. Keys of one call are taken in their order. Two open transactions that
take two keys in opposite order wait for each other, and the database ends one of them with an error.

Note [Beside its cause]
A callback is put into the queue of the run that has ended. One transaction writes the outcome and the row of its
callback: so there is one for each outcome that was recorded, and none for others, whichever worker dies when. It has no
callbacks of its own.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from ..calls import new_tokens, registry
from ..calls.call import first_alias
from ..models import Cancellation, Origin, Output, Run, Status
from ..models.locks import locked
from ..recurrence.point import utcnow
from .attempts import keep_former
from .bulk import database, writer
from .reading import count_values, with_status
from .rows import Outcome, RunRow, Won

#: What `enqueue()` writes of a row; all other columns have their defaults.
NEW_JOB = (
    "task", "queue", "origin", "apart", "due_at", "status", "created_at", "token", "backend", "priority", "call",
    "options", "unique_key",
)  # fmt: skip
_values = attrgetter(*NEW_JOB)
#: What is read of the job that has a key.
_STANDS = ("pk", "token", "queue", "backend", "priority", "due_at", "created_at")
#: How often the job that has a key is looked for, before the new one goes without it.
_ROUNDS = 5
#: Rows that one statement inserts.
_BATCH = 1000


def _jobs(using: str | None = None) -> QuerySet[Run]:
    return Run._base_manager.using(using or database()).filter(origin=Origin.JOB)


# -- enqueueing


def add_jobs(rows: Sequence[RunRow]) -> list[RunRow]:
    """Insert jobs in the current transaction, all or none; give them their keys.

    Return for each the row that stands: itself, or the one that has its unique key. See Note [Unique keys].

    Raises:
        DatabaseError: None was inserted.
    """
    using = database()
    if len(rows) == 1 and rows[0].unique_key is None:
        rows[0].pk = writer(Run, NEW_JOB, using).insert_one(_values(rows[0]))
        return list(rows)
    standing = list(rows)
    with transaction.atomic(using=using, savepoint=False):
        plain = [row for row in rows if row.unique_key is None]
        for at in range(0, len(plain), _BATCH):
            part = plain[at : at + _BATCH]
            pks = writer(Run, NEW_JOB, using).insert(map(_values, part))
            for row, pk in zip(part, pks, strict=True):
                row.pk = pk
        keyed = [at for at, row in enumerate(rows) if row.unique_key is not None]
        for at in sorted(keyed, key=lambda at: rows[at].unique_key or ""):
            standing[at] = _add_unique(rows[at], using)
    return standing


def _add_unique(row: RunRow, using: str) -> RunRow:
    for _ in range(_ROUNDS):
        row.pk = writer(Run, NEW_JOB, using).insert_one(_values(row), unless_there="unique_key")
        if row.pk:
            return row
        found = locked(_jobs(using).filter(unique_key=row.unique_key)).values(*_STANDS).first()
        if found is not None:
            return RunRow.job(row.task, **found)
    row.unique_key = None  # the others start as fast as they come: as if each was enqueued after the start of the last
    row.pk = writer(Run, NEW_JOB, using).insert_one(_values(row))
    return row


# -- one job


def find_job(pk: int, token: str) -> Run | None:
    """Return the row of a job; None where there is none, or it has expired."""
    row = _jobs().filter(pk=pk, token=token).first()
    expired = row is not None and row.expires_at is not None and row.expires_at <= utcnow()
    return None if expired else row


def cancel_job(job: Run, expires_at: datetime) -> bool:
    """Write that a job which waits was cancelled, if it stands as it was read; its key is free then."""
    when = "between two attempts" if job.attempt else "before it started"
    keep_former(job)
    values = {"status": Status.FAILED, "reason": "cancelled", "error": f"Cancelled {when}.", "finished_at": utcnow()}
    return _change(job, attempts=job.attempts, started_at=None, unique_key=None, expires_at=expires_at, **values)


def move_job(job: Run, due_at: datetime) -> bool:
    """Write when a job which waits may start, if it stands as it was read; what it has waited so far counts no more."""
    return _change(job, due_at=due_at, claimed_at=None)


def _change(job: Run, **values: Any) -> bool:
    waits = _jobs(job._state.db).filter(pk=job.pk, status__in=(Status.QUEUED, Status.RETRYING))
    return bool(waits.filter(status=job.status, attempt=job.attempt, fence=job.fence).update(**values))


def retry_job(job: Run, now: datetime) -> bool:
    """Let a job that has failed wait again, as it was enqueued but for its history, if it stands as it was read.

    It gets a fence of its own: so no outcome of an attempt from before is taken for one of the new attempts. A stop
    that was asked for then is not meant for these.

    Raises:
        IntegrityError: Another job has its unique key. Nothing was written.
    """
    key = (job.options or {}).get("unique_key")
    failed = job.status
    keep_former(job, ended=True)
    rows = _jobs(job._state.db).filter(pk=job.pk, status=failed, attempt=job.attempt, fence=job.fence)
    with transaction.atomic(using=job._state.db):
        Cancellation.objects.using(job._state.db).filter(run=job.pk).delete()
        return bool(
            rows.update(
                status=Status.QUEUED, attempt=0, reclaims=0, unique_key=key, due_at=now, attempts=job.attempts,
                reason="", error="", result=None, claimed_at=None, started_at=None, finished_at=None, expires_at=None,
                fence=new_tokens(1)[0], generation=job.generation + 1,
            )
        )  # fmt: skip


def taken_by(key: str) -> Run | None:
    """Return the job that has a unique key now."""
    return _jobs().filter(unique_key=key).first()


def count_failed_jobs(most: int) -> Counter[str]:
    """Count the jobs that have failed and are kept, by queue, among the `most` newest failures of each status.

    A job that was cancelled while it waited has not failed.
    """
    rows = [with_status(status).order_by("-pk") for status in (Status.FAILED, Status.LOST)]
    failed = Counter[str]()
    for (queue, origin, reason), count in count_values(most, ("queue", "origin", "reason"), *rows).items():
        if origin == Origin.JOB and reason != "cancelled":
            failed[queue] += count
    return failed


def find_expired(limit: int) -> list[int]:
    """Return the keys of up to so many rows whose time is over."""
    rows = Run._base_manager.using(database()).filter(expires_at__isnull=False, expires_at__lt=utcnow())
    return list(rows.order_by("expires_at").values_list("pk", flat=True)[:limit])


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


def delete_job(job: Run) -> bool:
    """Delete a job that has ended, and what it has said, if it stands as it was read."""
    using = job._state.db or database()
    rows = Run._base_manager.using(using).filter(pk=job.pk, status=job.status, attempt=job.attempt, fence=job.fence)
    with transaction.atomic(using=using):
        gone = bool(rows._raw_delete(using))
        if gone:
            Output._base_manager.using(using).filter(run=job.pk).delete()
    return gone
