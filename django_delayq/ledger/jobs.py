"""Jobs in the ledger: inserts, finds, cancels, moves, retries and deletes them. Never touches Redis.

Note [Key holders are locked]
A job holds its key in a nullable column with a unique constraint, until it starts or until it ends. If the key is
taken, the holder's row is returned instead, locked for the rest of the caller's transaction. So no worker starts the
holder before that transaction ends, and its task sees what the caller writes. The keys of a call are locked in sorted
order. Two transactions with several calls may deadlock, and the database ends one of them.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from ..calls import generate_tokens, registry
from ..calls.call import find_first_alias
from ..models import Origin, Output, Run, Status
from ..models.primary import lock_rows
from ..recurrence.point import utcnow
from .bulk import get_database, writer
from .rows import Outcome, RunRow, keep_former

#: Columns that `enqueue()` writes; the others keep their defaults.
NEW_JOB = (
    "task", "queue", "origin", "separate", "due_at", "status", "created_at", "token", "backend", "priority", "call",
    "options", "unique_key",
)  # fmt: skip
_values = attrgetter(*NEW_JOB)
logger = logging.getLogger("django_delayq.worker")
#: Columns that are read of the job that holds a unique key.
_KEY_HOLDER = ("pk", "token", "queue", "backend", "priority", "due_at", "created_at")
#: Attempts to insert a job or find the holder of its unique key; maximum rows per INSERT.
_ROUNDS, _BATCH = 5, 1000


def _query_jobs(using: str | None = None) -> QuerySet[Run]:
    return Run._base_manager.using(using or get_database()).filter(origin=Origin.JOB)


def add_jobs(rows: Sequence[RunRow]) -> list[RunRow]:
    """Insert jobs, all or none; return each one's row, or the holder of its key. Note [Key holders are locked]."""
    using = get_database()
    if len(rows) == 1 and rows[0].unique_key is None:
        rows[0].pk = writer(Run, NEW_JOB, using).insert_one(_values(rows[0]))
        return list(rows)
    unsaved = list(rows)
    with transaction.atomic(using=using, savepoint=False):
        plain = [row for row in rows if row.unique_key is None]
        for at in range(0, len(plain), _BATCH):
            part = plain[at : at + _BATCH]
            pks = writer(Run, NEW_JOB, using).insert(map(_values, part))
            for row, pk in zip(part, pks, strict=True):
                row.pk = pk
        keyed = [at for at, row in enumerate(rows) if row.unique_key is not None]
        for at in sorted(keyed, key=lambda at: rows[at].unique_key or ""):
            unsaved[at] = _add_unique(rows[at], using)
    return unsaved


def _add_unique(row: RunRow, using: str) -> RunRow:
    for _ in range(_ROUNDS):
        row.pk = writer(Run, NEW_JOB, using).insert_one(_values(row), unless_there="unique_key")
        if row.pk:
            return row
        found = lock_rows(_query_jobs(using).filter(unique_key=row.unique_key)).values(*_KEY_HOLDER).first()
        if found is not None:
            return RunRow.build_job(row.task, **found)
    row.unique_key = None  # each holder released the key before it was read: this job gets no key
    row.pk = writer(Run, NEW_JOB, using).insert_one(_values(row))
    return row


def find_job(pk: int, token: str) -> Run | None:
    """Return the row of a job; None if it does not exist or has expired."""
    row = _query_jobs().filter(pk=pk, token=token).first()
    expired = row is not None and row.expires_at is not None and row.expires_at <= utcnow()
    return None if expired else row


def cancel_job(job: Run, expires_at: datetime) -> bool:
    """Record that a waiting job was cancelled, and free its key; return False if the row has changed."""
    when = "between two attempts" if job.attempt else "before it started"
    keep_former(job)
    values = {"status": Status.FAILED, "reason": "cancelled", "error": f"Cancelled {when}.", "finished_at": utcnow()}
    return _change(job, attempts=job.attempts, started_at=None, unique_key=None, expires_at=expires_at, **values)


def move_job(job: Run, due_at: datetime) -> bool:
    """Set when a waiting job may start, and restart its wait; return False if the row has changed."""
    return _change(job, due_at=due_at, claimed_at=None)


def _change(job: Run, **values: Any) -> bool:
    waits = _query_jobs(job._state.db).filter(pk=job.pk, status__in=(Status.QUEUED, Status.RETRYING))
    return bool(waits.filter(status=job.status, attempt=job.attempt, fence=job.fence).update(**values))


def retry_job(job: Run, now: datetime) -> bool:
    """Enqueue a failed job again, keeping only its history; return False if the row has changed.

    A new fence voids outcomes of older attempts. Raises IntegrityError if another job holds the unique key.
    """
    key = (job.options or {}).get("unique_key")
    failed = job.status
    keep_former(job, ended=True)
    rows = _query_jobs(job._state.db).filter(pk=job.pk, status=failed, attempt=job.attempt, fence=job.fence)
    with transaction.atomic(using=job._state.db):  # a savepoint, for the error
        written = rows.update(
            status=Status.QUEUED, attempt=0, reclaims=0, unique_key=key, due_at=now, attempts=job.attempts,
            reason="", error="", result=None, claimed_at=None, started_at=None, finished_at=None, expires_at=None,
            fence=generate_tokens(1)[0], generation=job.generation + 1, stop_requested_at=None, stop_requested_by="",
        )  # fmt: skip
    return bool(written)


def find_key_holder(key: str) -> Run | None:
    """Return the job that holds a unique key."""
    return _query_jobs().filter(unique_key=key).first()


def find_expired(limit: int) -> list[int]:
    """Return the primary keys of up to `limit` expired rows."""
    rows = Run._base_manager.using(get_database()).filter(expires_at__isnull=False, expires_at__lt=utcnow())
    return list(rows.order_by("expires_at").values_list("pk", flat=True)[:limit])


#: The callback field for each status; other outcomes have no callback.
_AFTER: dict[str, str] = {Status.SUCCEEDED: "on_success", Status.FAILED: "on_failure", Status.LOST: "on_failure"}


def call_back(outcomes: Sequence[Outcome]) -> None:
    """Insert the callbacks of written outcomes, in their transaction: a crash never leaves one without the other."""
    for outcome in outcomes:
        outcome.callback = _build_callback(outcome)
    rows = [outcome.callback for outcome in outcomes if outcome.callback is not None]
    if rows:
        add_jobs(rows)


def _build_callback(outcome: Outcome) -> RunRow | None:
    run = outcome.run
    name = _AFTER.get(run.status)
    path: str = getattr(outcome.call, name) if name else ""
    if not path or outcome.repeated:
        return None
    if run.is_job:
        return _build_row(path, [run.result_id], run.queue, run.backend)
    alias = find_first_alias()
    if not alias:
        text = "The callback %s of %s is not enqueued: no alias of TASKS has the DelayQBackend. Add one."
        logger.error(text, path, run.schedule_name)
        return None
    return _build_row(path, [run.pk, run.due_at.isoformat()], run.queue, alias)


def _build_row(path: str, args: list[Any], queue: str, alias: str) -> RunRow:
    """Return a callback's row. This process need not know the task: a worker that does executes it."""
    task, now = registry.find_task(path), utcnow()
    values = {"call": {"args": args, "kwargs": {}}, "created_at": now, "priority": int(task.priority) if task else 0}
    return RunRow.build_job(path, queue, alias, now, generate_tokens(1)[0], **values)


def delete_job(job: Run) -> bool:
    """Delete a job that has ended, and its output; return False if the row has changed."""
    using = job._state.db or get_database()
    rows = _query_jobs(using).filter(pk=job.pk, status=job.status, attempt=job.attempt, fence=job.fence)
    with transaction.atomic(using=using):
        gone = bool(rows._raw_delete(using))
        if gone:
            Output._base_manager.using(using).filter(run=job.pk).delete()
    return gone
