"""Jobs as their rows tell of them: enqueued, found, changed in the database. What Redis is to hold of them follows.

Note [Row and Redis together]
Whether a worker has a job only Redis knows, and whether a transaction is committed only the database. So whoever
cancels or moves a job first writes its row, which keeps everybody else from writing it, then puts the job off in Redis
by a minute, which fails where a worker has it (the row is then left as it was), and after the commit does in Redis what
the row says. Whatever is cut off on the way, the job comes due within that minute, and its claimer does what the row
says. Only where the caller's own transaction stays open for longer than that may a worker take the job meanwhile.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction

from .. import ledger, mirror
from ..broker import Broker, JobBroker, NewJob, Shard, held_by
from ..broker.web import ask
from ..compat import AnyResult
from ..exceptions import BrokerError, BrokerUnavailable, JobHeld, UnreadableJob
from ..fields import utcnow
from ..jobs import State, bare, decode_lines, decode_state, encode, encode_state, note_cancelled, parse_id, revived
from ..models import OPEN_JOBS, Job, JobStatus
from ..timing import from_ms, to_ms
from .sending import shared
from .store import Enqueued, JobState, Outcome, SeenJob, tell_enqueued, with_text, without_standing

#: A job that is being cancelled or moved is put off by so long meanwhile.
HOLD_MS = 60_000
#: So often it may come into Redis, or leave it, between two looks.
MOST_LOOKS = 5


class DatabaseStore:
    """Durable jobs, and the results of others that are kept in the database. A `Store`."""

    def enqueue(self, items: Sequence[Enqueued], sender: type) -> None:
        """Insert jobs in the caller's transaction and have them put into Redis after its commit."""
        using = ledger.database()
        with transaction.atomic(using=using):
            standing = ledger.add_jobs([_as_row(result, queue, job) for result, (queue, job) in items])
            fresh = without_standing(items, standing)
            if fresh:
                jobs = [(queue, job._replace(unique="")) for _, (queue, job) in fresh]
                mirror.put_after_commit(jobs, lambda: tell_enqueued(fresh, sender), using=using)

    def find(self, wanted: str) -> SeenJob | None:
        """Asks no Redis."""
        parsed = parse_id(wanted)
        row = None if parsed is None else ledger.find_job(parsed[1])
        return None if row is None or row.result_id != wanted else seen_row(row)

    def for_result(self, seen: SeenJob) -> SeenJob:
        """That it runs is known by Redis in most cases, and not told where that does not answer."""
        row = _row(seen)
        if row.status not in OPEN_JOBS or seen.call is None:
            return seen
        if row.wakes_at > row.enqueued_at:
            seen = replace(seen, call=replace(seen.call, run_after=to_ms(row.wakes_at)))
        worker, claimed = held_by(row.fence if row.status == JobStatus.RUNNING else _holder(row))
        return replace(seen, state=JobState.RUNNING, worker=worker, at_ms=claimed) if worker else seen

    def cancel(self, seen: SeenJob, keep_ms: int) -> Outcome:
        """See Note [Row and Redis together]."""
        _, state = seen.read()
        now = utcnow()
        note_cancelled(state, to_ms(now))
        values = {
            "status": JobStatus.FAILED,
            "state": encode_state(state),
            "finished_at": now,
            "expires_at": now + timedelta(milliseconds=keep_ms),
            "unique": "",
            "mirrored": True,
        }
        return _change(_row(seen), values, "cancel", 1)

    def move(self, seen: SeenJob, at_ms: int) -> Outcome:
        """See Note [Row and Redis together]."""
        return _change(_row(seen), {"wakes_at": from_ms(at_ms)}, "move", at_ms)

    def revive(self, seen: SeenJob) -> Outcome:
        """Let a dead job wait again, in the caller's transaction; after its commit it is put into Redis.

        It is as it was enqueued, with all its attempts and its unique key, and its result keeps its id; of what has
        become of it before, only its history is left, and nothing where that cannot be read. Needs no Redis: sweeps put
        what cannot be put now.
        """
        row = _row(seen)
        try:
            call, _ = decode_lines(row.member, row.call, "")
        except UnreadableJob:
            return Outcome.UNREADABLE
        former, using = _state_of(row), ledger.database()
        anew = None if former is None else revived(former)
        state = "" if anew is None else encode_state(anew)
        with transaction.atomic(using=using):
            try:
                now = from_ms(to_ms(utcnow()))
                if not ledger.revive_job(row, unique=call.unique, now=now, state=state):
                    return _no_more_dead(row)
            except IntegrityError:
                if not call.unique:  # no other job can have it
                    raise
                return Outcome.KEY_TAKEN
            mirror.put_after_commit([_entry(row, 0)], lambda: None, using=using)
        return Outcome.DONE

    def delete(self, seen: SeenJob) -> Outcome:
        """Needs no Redis."""
        row = _row(seen)
        return Outcome.DONE if ledger.delete_job(row) else _no_more_dead(row)


# -- what rows say


def seen_row(row: Job) -> SeenJob:
    """Return a job as its row tells of it. One that is open waits, as far as the database knows."""
    if row.died_at is not None:
        state, at = JobState.DEAD, row.died_at
    elif row.status in OPEN_JOBS:
        state, at = JobState.WAITING, row.wakes_at
    else:
        state, at = JobState.ENDED, row.finished_at
    at_ms = None if at is None else to_ms(at)
    seen = SeenJob(Shard(row.queue, 0), row.member, state, at_ms, len(row.call) + len(row.state), row=row)
    return with_text(seen, lambda: (row.call, *decode_lines(row.member, row.call, row.state)))


def tells_all(seen: SeenJob) -> bool:
    """Say whether nothing that Redis holds could tell more: of a plain job that failed it may hold a dead one."""
    return seen.state == JobState.DEAD or _row(seen).status == JobStatus.SUCCESSFUL


def with_states(jobs: Sequence[SeenJob]) -> list[SeenJob]:
    """Return jobs that were seen in Redis with what their rows say has become of them: Redis does not know that.

    One query, and none where no durable job is among them.
    """
    members = [seen.member for seen in jobs if seen.call is not None and seen.call.durable]
    states = {member: _state_of(row) for member, row in ledger.load_jobs(members).items()}
    return [replace(seen, record=states.get(seen.member) or seen.record) for seen in jobs]


def _state_of(row: Job | ledger.JobRow) -> State | None:
    try:
        return decode_state(row.member, row.state)
    except UnreadableJob:
        return None


def _no_more_dead(row: Job) -> Outcome:
    """Return what became of a dead job that is not as it was read any more."""
    return Outcome.GONE if ledger.find_job(row.member) is None else Outcome.NOT_DEAD


def _row(seen: SeenJob) -> Job:
    assert seen.row is not None  # noqa: S101 - it was found here
    return seen.row


def _as_row(result: AnyResult, queue: str, job: NewJob) -> Job:
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


def _entry(row: Job, wake_ms: int) -> tuple[str, NewJob]:
    return row.queue, NewJob(row.member, wake_ms, row.priority, "", encode(row.queue, row.member, row.call))


# -- what Redis is told and asked


def _holder(row: Job) -> str:
    """Return who has a job in Redis, '' where nobody does or Redis does not answer."""

    def read(broker: Broker) -> str:
        jobs = JobBroker(broker)
        return jobs.view(jobs.shard_of(row.member, row.queue), row.member).holder

    with suppress(BrokerError):
        return ask(read)
    return ""


def _change(row: Job, values: dict[str, Any], what: str, ms: int) -> Outcome:
    using = ledger.database()
    try:
        with transaction.atomic(using=using):
            if not ledger.change_job(row, **values):
                now = ledger.find_job(row.member)
                return Outcome.HELD if now is not None and now.status in OPEN_JOBS else Outcome.GONE
            _hold_back(row)
            transaction.on_commit(lambda: _follow(row, what, ms), using=using, robust=True)
    except JobHeld:
        return Outcome.HELD
    return Outcome.DONE


def _hold_back(row: Job) -> None:
    """Make sure that no worker has the job, nor claims it within HOLD_MS.

    Raises:
        JobHeld: One has it.
        BrokerUnavailable: Redis does not answer, or not twice the same.
    """
    jobs = shared().jobs
    until_ms = jobs.broker.now_ms() + HOLD_MS
    for _ in range(MOST_LOOKS):
        shard, _ = shared().view(row.queue, row.member)
        reply = jobs.change(shard, row.member, "move", until_ms)
        if reply == "HELD":
            raise JobHeld(row.result_id)
        if reply == "OK":
            return
        if not shared().send([_entry(row, until_ms)])[0]:
            return
    raise BrokerUnavailable(
        f"Redis is flushed, or its shards change, all the time, so that the job {row.result_id} can be neither "
        "cancelled nor moved. Try again later."
    )


def _follow(row: Job, what: str, ms: int) -> None:
    with suppress(BrokerError):  # see Note [Row and Redis together]
        shard, _ = shared().view(row.queue, row.member)
        shared().jobs.change(shard, row.member, what, ms)
