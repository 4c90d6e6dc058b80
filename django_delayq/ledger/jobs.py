"""Jobs in the database: read, added, recorded, pruned. Never touches Redis.

Note [Unique keys in the database]
A durable job's key is guarded by a unique constraint, not by Redis: whoever enqueues has to know before the commit
which job stands, and a flush must not let a second one in. The row gives its key up when a worker takes the job for the
first time, before that one starts: from then on a change that another caller makes may come too late for it. While that
caller's transaction is open it locks the row that it was told of, and the worker hands the job back for a moment
instead of waiting: so what the caller writes is there when the job starts. Once given up, a key is not taken again by a
worker: for that it would have to wait for whoever is just inserting the same key. Only who revives a dead job takes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL

from ..fields import utcnow
from ..jobs import Callback
from ..models import OPEN_JOBS, Job, JobStatus, Output
from ..models.locks import locked
from .bulk import database, reader, writing
from .callbacks import add_callbacks, call_back_stored
from .changing import Change, change
from .locks import leave_locked
from .outcome import Won
from .outputs import delete_with_outputs, keep_outputs

#: As in the index of open jobs, see `reading._OPEN`.
_OPEN = RawSQL(  # noqa: S611 - no value of anybody's is in it
    f"{Job._meta.db_table}.status IN ('READY', 'RUNNING')", [], output_field=BooleanField()
)
#: What tells one state of a row from another.
VERSION = ("status", "attempt", "fence")
#: Rows that one statement writes.
_BATCH = 1000
#: How often it is asked which job stands for a key before that is given up.
_ROUNDS = 5
_OUTCOME = (
    "status", "attempt", "reclaims", "fence", "unique", "mirrored", "wakes_at", "finished_at", "died_at",
    "expires_at", "state",
)  # fmt: skip


class JobRow(NamedTuple):
    """What a worker reads of a job."""

    pk: int
    member: str
    queue: str
    status: str
    attempt: int
    fence: str
    reclaims: int
    unique: str
    wakes_at: datetime
    state: str

    @property
    def version(self) -> tuple[str, int, str]:
        """What tells this state of the row from another; see `VERSION`."""
        return self.status, self.attempt, self.fence

    @property
    def is_open(self) -> bool:
        """True while there is no outcome."""
        return self.status in OPEN_JOBS


class JobOutcome(NamedTuple):
    """What became of an attempt at the job that looked like `row`; `expires_at` is None while it is open.

    `died_at` is there where that was the last attempt, `said` where it has logged or printed: its number, and what.
    `callback` follows it.
    """

    row: JobRow
    fence: str
    status: str
    attempt: int
    state: str
    wakes_at: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    died_at: datetime | None = None
    said: tuple[int, str] | None = None
    callback: Callback | None = None


def _jobs(using: str | None = None) -> QuerySet[Job]:
    return Job._base_manager.using(using or database())


# -- reading


def load_jobs(members: Iterable[str]) -> dict[str, JobRow]:
    """Return what stands of these jobs, in one query on the primary database."""
    rows = reader(Job, "member", JobRow._fields, database()).read(list(members))
    return {row[1]: JobRow(*row) for row in rows}


def find_job(member: str) -> Job | None:
    """Return the row of a job, None where there is none or it has expired."""
    row = _jobs().filter(member=member).first()
    expired = row is not None and row.expires_at is not None and row.expires_at <= utcnow()
    return None if expired else row


def open_jobs() -> QuerySet[Job]:
    """Return durable jobs that have no outcome, by an index of their own."""
    return _jobs().filter(_OPEN)


def unmirrored_jobs() -> QuerySet[Job]:
    """Return those that no sweep has seen to yet, by an index of their own."""
    return _jobs().filter(mirrored=False)


# -- whoever enqueues


def add_jobs(jobs: Sequence[Job]) -> dict[str, str]:
    """Insert jobs in the current transaction; return, for each that was not added, which member stands for its key.

    See Note [Unique keys in the database].
    """
    using = database()
    standing: dict[str, str] = {}
    with transaction.atomic(using=using, savepoint=False):
        plain = [job for job in jobs if not job.unique]
        _jobs(using).bulk_create(plain, batch_size=_BATCH)
        for job in jobs:
            if job.unique:
                other = _add_unique(job, using)
                if other:
                    standing[job.member] = other
    return standing


def _add_unique(job: Job, using: str) -> str:
    for _ in range(_ROUNDS):
        try:
            with transaction.atomic(using=using):
                job.pk = None
                job.save(using=using, force_insert=True)
            return ""
        except IntegrityError:
            rows = _jobs(using).filter(queue=job.queue, unique=job.unique)
            other = locked(rows).values_list("member", flat=True).first()
            if other is not None:
                return str(other)
    job.unique = ""  # the others start as fast as they come: it is as if each was enqueued after the start of the last
    job.save(using=using, force_insert=True)
    return ""


def give_up_keys(members: Iterable[str]) -> set[str]:
    """Give up the unique keys of jobs that are about to start; return those whose rows nobody has locked.

    See Note [Unique keys in the database].
    """
    using = database()
    with writing(using):
        rows = locked(_jobs(using).filter(member__in=list(members)), skip=True)
        mine = dict(rows.values_list("member", "pk"))
        _jobs(using).filter(pk__in=mine.values()).update(unique="")
    return set(mine)


# -- what people do to a job


def change_job(job: Job, **values: Any) -> bool:
    """Write these values if the job still waits as it was read; the row stays locked until the transaction's end."""
    rows = _jobs(job._state.db).filter(pk=job.pk, status=JobStatus.READY, attempt=job.attempt, fence=job.fence)
    return bool(rows.update(**values))


# -- what a worker does


def record_jobs(outcomes: Sequence[JobOutcome]) -> list[Won]:
    """Write outcomes in one transaction; GONE where the row is gone or has an outcome already, LOCKED as in `record`.

    A row that has its outcome is never written again. After an exception nothing is written, and the same call may be
    repeated.
    """
    if not outcomes:
        return []
    using = database()
    changes = [
        Change(item.row.pk, item.row.version, (item.status, item.attempt, item.fence), _values(item))
        for item in outcomes
    ]
    with writing(using):
        changed = change(Job, VERSION, _OUTCOME, changes, using)
        mine = [item for item, (won, *_) in zip(outcomes, changed, strict=True) if won is Won.YES]
        said = [(item.row.pk, item.said) for item in mine]
        keep_outputs([Output(job_id=pk, attempt=it[0], text=it[1]) for pk, it in said if it], using)
        add_callbacks([item.callback for item in mine if item.callback is not None], using)
    return [
        Won.GONE if won is Won.LOST and stands is not None and stands[0] not in OPEN_JOBS else won
        for won, stands, _ in changed
    ]


def _values(item: JobOutcome) -> tuple[Any, ...]:
    """Return the values of `_OUTCOME`: an ended attempt leaves no take-over and no unique key."""
    times = item.wakes_at, item.finished_at, item.died_at, item.expires_at
    return item.status, item.attempt, 0, item.fence, "", True, *times, item.state


def start_jobs(starting: Sequence[tuple[JobRow, str]], *, again: bool = True) -> list[JobRow | Won]:
    """Write `RUNNING` under these fences, in one transaction: `again` where the executions may be repetitions.

    Return the rows as they stand now; LOST for each that is not as it was read any more, LOCKED as in `record`.
    """
    running = JobStatus.RUNNING.value
    started = [
        (row, row._replace(status=running, fence=fence, reclaims=row.reclaims + again)) for row, fence in starting
    ]
    return [
        new if won is Won.YES else Won.LOCKED if won is Won.LOCKED else Won.LOST
        for (_, new), won in zip(started, _move(started), strict=True)
    ]


def undo_job_starts(started: Iterable[tuple[JobRow, JobRow]]) -> None:
    """Take (started, before) back, so that what did not start counts no take-over."""
    _move(list(started))


def _move(rows: Sequence[tuple[JobRow, JobRow]]) -> list[Won]:
    """Write over rows that look like the first one of a pair what the second one has of who executes it."""
    using = database()
    with writing(using):
        changes = [
            Change(seen.pk, seen.version, new.version, (new.status, new.fence, new.reclaims)) for seen, new in rows
        ]
        return [won for won, _, _ in change(Job, VERSION, ("status", "fence", "reclaims"), changes, using)]


def store_results(
    jobs: Sequence[Job],
    said: Mapping[str, tuple[int, str]] | None = None,
    callbacks: Mapping[str, Callback] | None = None,
) -> None:
    """Insert the results of jobs that had no row, and by member what they have said. Where one stands, it stays.

    `callbacks`, by member, are inserted with those results that stand now as they are given.
    """
    if jobs:
        using = database()
        with writing(using):
            _jobs(using).bulk_create(jobs, batch_size=_BATCH, ignore_conflicts=True)
            if callbacks:
                call_back_stored({job.member: job.fence for job in jobs}, callbacks, using)
            if said:
                pks = _jobs(using).filter(member__in=list(said)).values_list("member", "pk")
                outputs = [Output(job_id=pk, attempt=said[it][0], text=said[it][1]) for it, pk in pks]
                keep_outputs(outputs, using)


def take_result(queue: str, member: str) -> Job | None:
    """Delete the result of a plain job; return it, so that `store_results` can put it back, None where there is none.

    Where a result stands, no other is written: whoever lets the job run again takes it away first.
    """
    ended = [JobStatus.SUCCESSFUL, JobStatus.FAILED]
    row = _jobs().filter(queue=queue, member=member, status__in=ended, died_at=None).first()
    if row is not None:
        _jobs(row._state.db).filter(pk=row.pk).delete()
    return row


# -- what the sweeps do


def note_mirrored(members: Sequence[str]) -> None:
    """Note that Redis has these; rows that somebody has locked are left to the next sweep."""
    using = database()
    with writing(using):
        rows = locked(_jobs(using).filter(member__in=members), skip=True)
        _jobs(using).filter(pk__in=list(rows.values_list("pk", flat=True))).update(mirrored=True)


def prune_jobs(limit: int) -> int:
    """Delete up to so many expired rows that nobody has locked; return how many there were."""
    using = database()
    rows = _jobs(using).filter(Q(expires_at__isnull=False) & Q(expires_at__lt=utcnow())).order_by("expires_at")
    pks = set(rows.values_list("pk", flat=True)[:limit])
    if pks:
        with writing(using):
            pks -= leave_locked(Job, pks, using)
            delete_with_outputs(Job, pks, using)
    return len(pks)
