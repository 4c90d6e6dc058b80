"""Jobs of a backend that stand in the database: enqueued, read, cancelled and moved there. Executes nothing.

Note [Row and Redis together]
Whether a worker has a job only Redis knows, and whether a transaction is committed only the database. So whoever
cancels or moves a job first writes its row, which keeps everybody else from writing it, then puts the job off in Redis
by a minute, which fails where a worker has it (the row is then left as it was), and after the commit does in Redis what
the row says. Whatever is cut off on the way, the job comes due within that minute, and its claimer does what the row
says. Only where the caller's own transaction stays open for longer than that may a worker take the job meanwhile.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from .. import ledger, mirror
from ..broker import JobBroker, JobView, NewJob
from ..compat import AnyResult, task_enqueued
from ..exceptions import BrokerError, BrokerUnavailable, JobHeld
from ..fields import utcnow
from ..jobs import Call, State, bare, decode_lines, encode, encode_state, parse_id, result_id
from ..models import Job, JobStatus
from ..timing import from_ms, to_ms
from .sending import shared

#: A job that is being cancelled or moved is put off by so long meanwhile.
HOLD_MS = 60_000
#: So often it may come into Redis, or leave it, between two looks.
MOST_LOOKS = 5
#: Sends a job on when its transaction is committed: (queue, job) as for Redis, with its result.
Prepared = tuple[AnyResult, tuple[str, NewJob]]


def enqueue(results: Sequence[AnyResult], jobs: Sequence[tuple[str, NewJob]], sender: type) -> None:
    """Insert jobs in the caller's transaction and have them put into Redis after its commit.

    A result whose job another one stands for becomes that one's.
    """
    using = ledger.database()
    with transaction.atomic(using=using):
        standing = ledger.add_jobs(
            [_row(result, queue, job) for result, (queue, job) in zip(results, jobs, strict=True)]
        )
        fresh = []
        for result, (queue, job) in zip(results, jobs, strict=True):
            if job.member in standing:
                object.__setattr__(result, "id", result_id(queue, standing[job.member]))
            else:
                fresh.append((result, (queue, job._replace(unique=""))))
        if fresh:
            mirror.put_after_commit([item for _, item in fresh], lambda: _tell(fresh, sender), using=using)


def _tell(fresh: Sequence[Prepared], sender: type) -> None:
    for result, _ in fresh:
        task_enqueued.send(sender, task_result=result)


def _row(result: AnyResult, queue: str, job: NewJob) -> Job:
    enqueued: Any = result.enqueued_at
    enqueued_at = from_ms(to_ms(enqueued.astimezone()))
    return Job(
        member=job.member,
        queue=queue,
        backend=result.backend,
        task=result.task.module_path[:255],
        priority=job.priority,
        unique=job.unique,
        wakes_at=from_ms(job.wake_ms) if job.wake_ms else enqueued_at,
        enqueued_at=enqueued_at,
        call=bare(job.payload.partition("\n")[2]),
    )


def find(result_id: str, alias: str) -> Job | None:
    """Return the row of a job of this alias; None where there is none."""
    parsed = parse_id(result_id)
    row = None if parsed is None else ledger.find_job(parsed[1])
    return row if row is not None and (row.queue, row.backend) == (parsed and parsed[0], alias) else None


def read(row: Job) -> tuple[Call, State, bool, int | None]:
    """Return a row's call, what has become of it, whether it runs, and when it may start.

    That it runs is known by Redis in most cases, and not told where that does not answer.

    Raises:
        UnreadableJob: It is of a later version, or damaged.
    """
    call, state = decode_lines(row.member, row.call, row.state)
    waits = row.status in (JobStatus.READY, JobStatus.RUNNING)
    wakes_ms = to_ms(row.wakes_at) if waits and row.wakes_at > row.enqueued_at else call.run_after
    running = row.status == JobStatus.RUNNING
    if waits:
        view = JobView("", row.fence, None, None, "") if running else _view(row)
        if view is not None and " " in view.holder:
            running = True
            note_running(state, view)
    return call, state, running, wakes_ms


def note_running(state: State, view: JobView) -> None:
    """Note in a state, in memory, who executes the job since when."""
    worker, claimed = view.held_by
    state.started, state.attempted = state.started or claimed, claimed
    state.workers.append(worker)


def _view(row: Job) -> JobView | None:
    """Return what Redis knows of a job, None where it does not answer."""
    try:
        return mirror.ask(lambda broker: _ask(JobBroker(broker), row))
    except BrokerError:
        return None


def _ask(jobs: JobBroker, row: Job) -> JobView:
    return jobs.view(jobs.place_of(row.member, row.queue), row.member)


def cancel(row: Job, note: Callable[[State], object], expires_in_seconds: float) -> bool:
    """Write the outcome of a job that waits, and take it out of Redis. False where it has ended.

    `note` says in the state what has become of it.

    See Note [Row and Redis together].

    Raises:
        JobHeld: A worker has it.
        BrokerUnavailable: Redis does not answer, so that this is not known.
        UnreadableJob: See `read`.
    """
    now = utcnow()
    _, state = decode_lines(row.member, row.call, row.state)
    note(state)
    values = {
        "status": JobStatus.FAILED,
        "state": encode_state(state),
        "finished_at": now,
        "expires_at": now + timedelta(seconds=expires_in_seconds),
        "unique": "",
        "mirrored": True,
    }
    return _change(row, values, "cancel", 1)


def move(row: Job, when: datetime) -> bool:
    """Let a job that waits start at another time. See `cancel`."""
    when = from_ms(to_ms(when))
    return _change(row, {"wakes_at": when}, "move", to_ms(when))


def _change(row: Job, values: dict[str, Any], what: str, ms: int) -> bool:
    using = ledger.database()
    with transaction.atomic(using=using):
        if not ledger.change_job(row, **values):
            now = ledger.find_job(row.member)
            if now is None or now.status not in (JobStatus.READY, JobStatus.RUNNING):
                return False
            raise _held(row)
        _hold_back(row)
        transaction.on_commit(lambda: _follow(row, what, ms), using=using, robust=True)
    return True


def _held(row: Job) -> JobHeld:
    return JobHeld(f"A worker has the job {row.result_id} already, so that it can be neither cancelled nor moved.")


def _hold_back(row: Job) -> None:
    """Make sure that no worker has the job, nor claims it within HOLD_MS.

    Raises:
        JobHeld: One has it.
        BrokerUnavailable: Redis does not answer, or not twice the same.
    """
    jobs = shared().jobs
    until_ms = jobs.broker.now_ms() + HOLD_MS
    for _ in range(MOST_LOOKS):
        place, _ = shared().view(row.queue, row.member)
        reply = jobs.change(place, row.member, "move", until_ms)
        if reply == "HELD":
            raise _held(row)
        if reply == "OK":
            return
        job = NewJob(row.member, until_ms, row.priority, "", encode(row.queue, row.member, row.call))
        if not shared().send([(row.queue, job)])[0]:
            return
    raise BrokerUnavailable(
        f"Redis is flushed, or its shards change, all the time, so that the job {row.result_id} can be neither "
        "cancelled nor moved. Try again later."
    )


def _follow(row: Job, what: str, ms: int) -> None:
    try:
        place, _ = shared().view(row.queue, row.member)
        shared().jobs.change(place, row.member, what, ms)
    except BrokerError:
        return  # see Note [Row and Redis together]
