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
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db import DatabaseError

from .. import failpoints, ledger
from ..broker import claimed_ms
from ..exceptions import UnreadableJob
from ..jobs import IN_DATABASE, attempts_of, decode_lines, encode_state
from ..ledger import JobOutcome, JobRow, Won
from ..models import Job, JobStatus
from ..timing import from_ms, to_ms
from .base import AGAIN_MS, Verdicts
from .held_job import HeldJob

logger = logging.getLogger("django_delayq.worker")

#: A row that only another version can read comes back after so long.
UNREADABLE_MS = 30_000
#: For so long Redis knows of a result that stands in the database, for whoever sends the same job once more.
MARK_MS = 600_000


def admit(jobs: Sequence[HeldJob], verdicts: Verdicts[HeldJob]) -> list[HeldJob]:
    """Look claimed durable jobs up; return those that go on. See Note [Looked up after the claim]."""
    verdicts.asked = True
    try:
        rows = ledger.load_jobs([job.member for job in jobs])
        failpoints.reach("after_judge")
        going, ended, early = _sort(jobs, rows)
        keyed = [job.member for job in going if rows[job.member].unique]
        free = ledger.give_up_keys(keyed) if keyed else set()
    except DatabaseError as error:
        verdicts.error = error
        verdicts.back += [(job, AGAIN_MS) for job in jobs]
        return []
    verdicts.settle += [job.drop() for job in ended]
    locked = set(keyed) - free
    verdicts.back += [*early, *((job, AGAIN_MS) for job in going if job.member in locked)]
    return [job for job in going if job.member not in locked]


def begin(jobs: Sequence[HeldJob], verdicts: Verdicts[HeldJob]) -> list[HeldJob]:
    """Write that these executions begin, which may be repetitions; return those that go on (rule R2b).

    Raises:
        DatabaseError: Nothing was written.
    """
    verdicts.asked = True
    standing = _results_of(jobs)
    durable = [(job, job.row) for job in jobs if job.row is not None]
    written = ledger.start_jobs([(row, job.lease) for job, row in durable])
    started = dict(zip((job for job, _ in durable), written, strict=True))
    going = []
    for job in jobs:
        if job.member in standing:
            verdicts.settle.append(job.drop())
        elif job.row is None:
            going.append(job)
        elif isinstance(row := started[job], Won):
            if row is Won.LOST:
                logger.warning("%s was changed by somebody else; it is looked up again.", job.title)
            verdicts.back.append((job, AGAIN_MS))
        else:
            job.before, job.row = job.row, row
            going.append(job)
    return going


def _results_of(jobs: Sequence[HeldJob]) -> set[str]:
    """Return which of these have a result in the database, without having stood there before."""
    members = [job.member for job in jobs if job.stored and job.row is None]
    return set(ledger.load_jobs(members)) if members else set()


def undo(jobs: Sequence[HeldJob]) -> None:
    """Take back that these begin: they are handed back unstarted."""
    begun = [(job.row, job.before) for job in jobs if job.row and job.before]
    if begun:
        ledger.undo_job_starts(begun)


def show(jobs: Sequence[HeldJob]) -> list[HeldJob] | None:
    """See `Kind.show`: of what is taken over it is written already, and jobs of Redis alone have no row."""
    fresh = [(job, job.row) for job in jobs if job.row is not None and job.row.status != JobStatus.RUNNING]
    if not fresh:
        return None
    refused = []
    written = ledger.start_jobs([(row, job.lease) for job, row in fresh], again=False)
    for (job, _), result in zip(fresh, written, strict=True):
        if isinstance(result, JobRow):
            job.row = result
        elif result is not Won.LOCKED:
            refused.append(job)
    return refused


def _sort(
    jobs: Sequence[HeldJob], rows: dict[str, JobRow]
) -> tuple[list[HeldJob], list[HeldJob], list[tuple[HeldJob, int]]]:
    """Return which go on, with the state of their rows, which have ended, and which are too early by how many ms."""
    going: list[HeldJob] = []
    ended: list[HeldJob] = []
    early: list[tuple[HeldJob, int]] = []
    for job in jobs:
        row = rows.get(job.member)
        if row is not None and row.queue != job.shard.queue:
            logger.warning("Dropped %s from %s: it belongs to the queue %r.", job.title, job.shard, row.queue)
            row = None
        if row is None or not row.is_open:
            ended.append(job)
            continue
        wait_ms = to_ms(row.wakes_at) - (claimed_ms(job.lease) or 0)
        if wait_ms > 0:
            job.entry = job.entry._replace(lapsed=False)  # it has not begun
            early.append((job, wait_ms))
            continue
        try:
            _adopt(job, row)
            going.append(job)
        except UnreadableJob as error:
            logger.error("%s is left to other workers: %s", job.title, error)
            early.append((job, UNREADABLE_MS))
    return going, ended, early


def _adopt(job: HeldJob, row: JobRow) -> None:
    _, job.state = decode_lines(job.member, job.line, row.state)
    job.row = row
    lapsed = job.entry.lapsed or row.status == JobStatus.RUNNING
    job.entry = job.entry._replace(lapsed=lapsed, reclaims=row.reclaims)


def record(batch: Sequence[HeldJob]) -> Verdicts[HeldJob]:
    """See `Kind.record`: in one transaction for all with a row.

    A job that somebody else has decided is gone: its lease ends, and who claims it then looks it up.
    """
    verdicts: Verdicts[HeldJob] = Verdicts(asked=True)
    durable = [(job, _outcome(job, job.row)) for job in batch if job.row is not None]
    others = [job for job in batch if job.row is None]
    failpoints.reach("before_ledger")
    won = ledger.record_jobs([outcome for _, outcome in durable])
    _store_results([job for job in others if job.settled.what != "retry"])
    failpoints.reach("after_ledger")
    for (job, _), result in zip(durable, won, strict=True):
        if result is Won.LOCKED:
            verdicts.locked.append(job)
        elif result is Won.LOST:
            logger.warning("%s was decided by another worker.", job.title)
            verdicts.gone.append(job)
        else:
            job.taken = result is Won.YES
            verdicts.settle.append(_settled(job, result))
    for job in others:
        job.taken = job.settled.what != "retry"
        if job.settled.what == "done" and job.settled.text:
            job.settle("done", min(job.settled.ms, MARK_MS), IN_DATABASE)
        verdicts.settle.append(job)
    return verdicts


def _store_results(ended: Sequence[HeldJob]) -> None:
    ledger.store_results(
        list(map(_result, ended)),
        {job.member: said for job in ended if (said := _said(job))},
        {job.member: job.callback for job in ended if job.callback is not None},
    )


def _settled(job: HeldJob, won: Won) -> HeldJob:
    """Return a job with a row whose outcome stands, told to leave Redis, or to come back for its next attempt."""
    if won is Won.YES and job.settled.what == "retry":
        return job.settle("retry", job.settled.ms, job.entry.payload)
    if won is Won.GONE:
        job.callback = None
    return job.drop()


def _outcome(held: HeldJob, row: JobRow) -> JobOutcome:
    settlement, state, options = held.settled, held.state, held.backend.settings
    retry = settlement.what == "retry"
    finished = None if retry else from_ms(state.finished or to_ms(datetime.now(UTC)))
    kept_seconds = options.result_ttl if settlement.what == "done" else options.dead_ttl
    # By the server's clock, as whoever claims it compares it.
    ended_ms = (claimed_ms(held.lease) or 0) + int(held.seconds * 1000)
    return JobOutcome(
        row=row,
        fence=held.lease,
        status=JobStatus.READY.value if retry else state.status,
        attempt=len(state.workers),
        state=encode_state(state),
        wakes_at=from_ms(ended_ms + settlement.ms) if retry else row.wakes_at,
        finished_at=finished,
        expires_at=None if retry else datetime.now(UTC) + timedelta(seconds=kept_seconds),
        died_at=finished if settlement.what == "dead" else None,
        said=_said(held),
        callback=held.callback,
    )


def _said(held: HeldJob) -> tuple[int, str] | None:
    return (attempts_of(held.state)[-1].number, held.said) if held.said else None


def _result(held: HeldJob) -> Job:
    call, state, options = held.read, held.state, held.backend.settings
    finished = from_ms(state.finished or to_ms(datetime.now(UTC)))
    seconds = options.result_ttl if state.status == JobStatus.SUCCESSFUL else options.dead_ttl
    return Job(
        member=held.member,
        queue=held.shard.queue,
        backend=call.backend,
        task=call.task[:255],
        priority=call.priority,
        status=state.status,
        attempt=len(state.workers),
        fence=held.lease,
        mirrored=True,
        wakes_at=from_ms(call.run_after or call.enqueued),
        enqueued_at=from_ms(call.enqueued),
        finished_at=finished,
        expires_at=datetime.now(UTC) + timedelta(seconds=seconds),
        call=held.line,
        state=encode_state(state),
    )
