"""Jobs that stand in the database, in the worker: looked up after the claim, written before Redis is settled.

Jobs of Redis alone never come here, so that they cost no query. The rules are those of due points (ARCHITECTURE.md, R1,
R2b, R3, R5, R6); a durable job's retries, errors and take-overs stand in its row, and its entry in Redis only says when
to look again.

Note [Looked up after the claim]
What Redis holds of a durable job may be left over: of a transaction that a restored database has forgotten, of a job
that was cancelled, put off or deleted while Redis was down, or that was recorded by a worker which died before it
settled. The row decides: without one, or with an outcome, the entry is dropped; one that is to wait is put off; all
others go on with the state of the row. An entry in a queue that is not the row's was put there by somebody else, and is
dropped there: in its own queue the job stands, or a sweep puts it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from django.db import DatabaseError, InterfaceError

from ... import failpoints, ledger
from ...broker import JobSettlement, claimed_ms
from ...compat import AnyTask
from ...exceptions import UnreadableJob
from ...fields import utcnow
from ...jobs import IN_DATABASE, decode_lines, encode_state
from ...ledger import JobOutcome, JobRow, Won
from ...models import Job, JobStatus
from ...timing import from_ms, to_ms
from ..trouble import Trouble
from .entry import FinishedJob, HeldJob

logger = logging.getLogger("django_delayq.worker")

#: After a failure of the database, its jobs come back after so long; so do those whose row somebody writes just now.
AGAIN_MS = 1_000
#: A row that only another version can read comes back after so long.
UNREADABLE_MS = 30_000
#: For so long Redis knows of a result that stands in the database, for whoever sends the same job once more.
MARK_MS = 600_000

Ready = tuple[HeldJob, AnyTask]


class JobRows:
    """Used by the loop's thread only."""

    def __init__(
        self,
        trouble: Trouble,
        *,
        drop: Callable[[HeldJob], None],
        release: Callable[[Iterable[HeldJob], int], None],
    ) -> None:
        """`drop` settles a job that is not to be executed, `release` hands jobs back unstarted after so many ms."""
        self._trouble, self._drop, self._release = trouble, drop, release

    def stored(self, members: Iterable[str]) -> set[str] | None:
        """Return which of these stand in the database, done or not; None where it cannot be asked now."""
        try:
            return set(ledger.load_jobs(members))
        except (DatabaseError, InterfaceError):
            return None

    def admit(self, items: Sequence[Ready]) -> list[Ready]:
        """Look claimed durable jobs up; return those that go on. See Note [Looked up after the claim]."""
        try:
            rows = ledger.load_jobs([job.member for job, _ in items])
            failpoints.reach("after_judge")
            going, ended, early = _sort(items, rows)
            keyed = [job.member for job, _ in going if rows[job.member].unique]
            free = ledger.give_up_keys(keyed) if keyed else set()
        except DatabaseError as error:
            self._trouble.database_failed(error)
            self._release([job for job, _ in items], AGAIN_MS)
            return []
        self._trouble.database_worked()
        for job in ended:
            self._drop(job)
        for job, delay_ms in early:
            self._release([job], delay_ms)
        locked = set(keyed) - free
        if locked:
            self._release([job for job, _ in going if job.member in locked], AGAIN_MS)
        return [(job, task) for job, task in going if job.member not in locked]

    def begin(self, jobs: Sequence[HeldJob]) -> list[HeldJob]:
        """Write that these executions begin, which may be repetitions; return those that go on (rule R2b).

        Raises:
            DatabaseError: Nothing was written.
        """
        standing = self._results_of(jobs)
        durable = [(job, job.row) for job in jobs if job.row is not None]
        written = ledger.start_jobs([(row, job.fence) for job, row in durable])
        started = dict(zip((job for job, _ in durable), written, strict=True))
        going = []
        for job in jobs:
            if job.member in standing:
                job.stored = False
                self._drop(job)
            elif job.row is None:
                going.append(job)
            elif isinstance(row := started[job], Won):
                if row is Won.LOST:
                    logger.warning("%s was changed by somebody else; it is looked up again.", job.title)
                self._release([job], AGAIN_MS)
            else:
                job.before, job.row = job.row, row
                going.append(job)
        return going

    def _results_of(self, jobs: Sequence[HeldJob]) -> set[str]:
        """Return which of these have a result in the database, without having stood there before."""
        members = [job.member for job in jobs if job.stored and job.row is None]
        return set(ledger.load_jobs(members)) if members else set()

    def undo(self, jobs: Sequence[HeldJob]) -> None:
        """Take back that these begin: they are handed back unstarted."""
        try:
            ledger.undo_job_starts([(job.row, job.before) for job in jobs if job.row and job.before])
        except DatabaseError as error:
            self._trouble.database_failed(error)


def _sort(
    items: Sequence[Ready], rows: dict[str, JobRow]
) -> tuple[list[Ready], list[HeldJob], list[tuple[HeldJob, int]]]:
    """Return which go on, with the state of their rows, which have ended, and which are too early by how many ms."""
    going: list[Ready] = []
    ended: list[HeldJob] = []
    early: list[tuple[HeldJob, int]] = []
    for job, task in items:
        row = rows.get(job.member)
        if row is not None and row.queue != job.place.queue:
            logger.warning("Dropped %s from %s: it belongs to the queue %r.", job.title, job.place, row.queue)
            row = None
        if row is None or not row.is_open:
            job.stored = False
            ended.append(job)
            continue
        wait_ms = to_ms(row.wakes_at) - (claimed_ms(job.fence) or 0)
        if wait_ms > 0:
            job.entry = job.entry._replace(lapsed=False)  # it has not begun
            early.append((job, wait_ms))
            continue
        try:
            _adopt(job, row)
            going.append((job, task))
        except UnreadableJob as error:
            logger.error("%s is left to other workers: %s", job.title, error)
            early.append((job, UNREADABLE_MS))
    return going, ended, early


def _adopt(job: HeldJob, row: JobRow) -> None:
    _, job.state = decode_lines(job.member, job.line, row.state)
    job.row = row
    lapsed = job.entry.lapsed or row.status == JobStatus.RUNNING
    job.entry = job.entry._replace(lapsed=lapsed, reclaims=row.reclaims)


def record(batch: Sequence[FinishedJob]) -> tuple[list[FinishedJob], list[FinishedJob]]:
    """Write what has become of these, in one transaction for all with a row.

    Return those to be settled in Redis, and those whose rows somebody else has locked.

    Raises:
        DatabaseError: The same call may be repeated.
    """
    durable = [(item, item.held.row) for item in batch if item.held.row is not None]
    others = [item for item in batch if item.held.row is None]
    failpoints.reach("before_ledger")
    won = ledger.record_jobs([_outcome(item, row) for item, row in durable])
    ledger.store_results([_result(item) for item in others if _settled(item).what != "retry"])
    failpoints.reach("after_ledger")
    settling, locked = [], []
    for (item, _), result in zip(durable, won, strict=True):
        if result is Won.LOCKED:
            locked.append(item)
            continue
        if result is Won.LOST:  # its lease ends, and who claims it then looks it up
            logger.warning("%s was decided by another worker.", item.held.title)
            continue
        old = _settled(item)
        if result is Won.YES and old.what == "retry":
            item.settlement = old._replace(text=item.held.entry.payload)
        else:
            item.settlement = JobSettlement(old.member, old.holder, "done")
        settling.append(item)
    for item in others:
        old = _settled(item)
        if old.what == "done" and old.text:
            item.settlement = old._replace(ms=min(old.ms, MARK_MS), text=IN_DATABASE)
        settling.append(item)
    return settling, locked


def _settled(item: FinishedJob) -> JobSettlement:
    assert item.settlement is not None  # noqa: S101 - what never started is not recorded
    return item.settlement


def _outcome(item: FinishedJob, row: JobRow) -> JobOutcome:
    held, settlement = item.held, _settled(item)
    state, options = held.state, held.backend.settings
    retry = settlement.what == "retry"
    finished = None if retry else from_ms(state.finished or to_ms(utcnow()))
    seconds = options.result_ttl if settlement.what == "done" else options.dead_ttl
    # By the server's clock, as whoever claims it compares it.
    ended_ms = (claimed_ms(held.fence) or 0) + int(item.seconds * 1000)
    return JobOutcome(
        row=row,
        fence=held.fence,
        status=JobStatus.READY.value if retry else state.status,
        attempt=len(state.workers),
        state=encode_state(state),
        wakes_at=from_ms(ended_ms + settlement.ms) if retry else row.wakes_at,
        finished_at=finished,
        expires_at=None if retry else utcnow() + timedelta(seconds=seconds),
        died_at=finished if settlement.what == "dead" else None,
    )


def _result(item: FinishedJob) -> Job:
    held, call, state = item.held, item.held.call, item.held.state
    assert call is not None  # noqa: S101 - it was executed
    options = held.backend.settings
    finished = from_ms(state.finished or to_ms(utcnow()))
    seconds = options.result_ttl if state.status == JobStatus.SUCCESSFUL else options.dead_ttl
    return Job(
        member=held.member,
        queue=held.place.queue,
        backend=call.backend,
        task=call.task[:255],
        priority=call.priority,
        status=state.status,
        attempt=len(state.workers),
        fence=held.fence,
        mirrored=True,
        wakes_at=from_ms(call.run_after or call.enqueued),
        enqueued_at=from_ms(call.enqueued),
        finished_at=finished,
        expires_at=utcnow() + timedelta(seconds=seconds),
        call=held.line,
        state=encode_state(state),
    )
