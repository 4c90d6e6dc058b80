"""Puts durable jobs into Redis: after their commit where it can, by the sweeps where it could not.

Note [Put again]
Putting a job is harmless however often and however late: one that is there is left as it is, and one that has ended
meanwhile is found out by whoever claims it, because every claimed durable job is looked up in the database first. So
the fast path writes nothing into the row of a single job, and the first sweep that meets it while it still waits puts
it once more and notes that. For many jobs at once that would be more work than one statement.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from django.db import DatabaseError, transaction
from django.db.models import QuerySet

from .. import conf, ledger
from ..broker import Broker, JobBroker, NewJob, Shard, in_parts
from ..exceptions import BrokerUnavailable
from ..fields import utcnow
from ..jobs import encode, result_id
from ..models import Job
from ..timing import to_ms
from .fast import _attempt
from .write import PAGE

logger = logging.getLogger("django_delayq.mirror")

#: A job younger than this is still on the fast path.
YOUNG = timedelta(seconds=2)
#: So often shards may change while jobs are put there.
MOST_ROUNDS = 5
#: A job that no sweep has seen to for so long is told by the status: the sweeps come every 2 s.
STALE = timedelta(seconds=30)


class WaitingJob(NamedTuple):
    """What of a row is needed to put it into Redis."""

    pk: int
    member: str
    queue: str
    priority: int
    wakes_ms: int
    call: str = ""

    def as_new(self) -> tuple[str, NewJob]:
        """Return it as whoever enqueued it had put it, signed with the key of today."""
        payload = encode(self.queue, self.member, self.call)
        return self.queue, NewJob(self.member, self.wakes_ms, self.priority, "", payload)


def put_after_commit(jobs: Sequence[tuple[str, NewJob]], then: Callable[[], object], *, using: str) -> None:
    """Put new jobs into Redis once the current transaction is committed, then call `then`. Never raises for Redis."""
    transaction.on_commit(lambda: _put_new(jobs, then), using=using, robust=True)


def _put_new(jobs: Sequence[tuple[str, NewJob]], then: Callable[[], object]) -> None:
    if conf.get_config().mirror:
        for at in range(0, len(jobs), PAGE):
            part = jobs[at : at + PAGE]
            if not _attempt("A job", partial(_put_page, part)):
                break
    then()


def _put_page(jobs: Sequence[tuple[str, NewJob]], broker: Broker) -> None:
    put_jobs(broker, jobs)
    if len(jobs) > 1:
        with suppress(DatabaseError):  # then a sweep does it
            ledger.note_mirrored([job.member for _, job in jobs])


def put_jobs(broker: Broker, jobs: Sequence[tuple[str, NewJob]]) -> int:
    """Put (queue, job) that are not there into Redis; return how many were added. See Note [Put again].

    Raises:
        BrokerError: Some may have been put.
    """
    own, added = JobBroker(broker), 0
    groups: dict[Shard, list[NewJob]] = {}
    for queue, job in jobs:
        groups.setdefault(own.shard_of(job.member, queue), []).append(job)
    parts = in_parts(groups)
    for _ in range(MOST_ROUNDS):
        shards = list({shard: None for shard, _ in parts})
        epochs = [(epoch or "").removeprefix("building:") for epoch in broker.epochs(shards)]
        replies = own.enqueue_each(parts, dict(zip(shards, epochs, strict=True)), again=False)
        added += sum(found.count("") for _, found in replies if found is not None)
        parts = [part for part, (_, found) in zip(parts, replies, strict=True) if found is None]
        if not parts:
            return added
    raise BrokerUnavailable("Redis is flushed, or its shards change, all the time, so that nothing can be put there.")


def waiting_pages(queues: Sequence[str] | None = None, *, calls: bool = True) -> Iterator[list[WaitingJob]]:
    """Yield pages of durable jobs without an outcome, the oldest first; `calls` says whether their calls are read."""
    rows = ledger.open_jobs()
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    last = 0
    while page := _read(rows.filter(pk__gt=last), calls=calls):
        yield page
        last = page[-1].pk


def _read(rows: QuerySet[Job], *, calls: bool = True) -> list[WaitingJob]:
    names = ("pk", "member", "queue", "priority", "wakes_at", "call")
    found = rows.order_by("pk").values_list(*names if calls else names[:-1])[:PAGE]
    return [
        WaitingJob(pk, member, queue, priority, to_ms(wakes_at), *call)
        for pk, member, queue, priority, wakes_at, *call in found
    ]


def load_unmirrored() -> list[WaitingJob]:
    """Return the oldest that no sweep has seen to yet, but for those that are on the fast path at this moment."""
    now = utcnow()
    return _read(ledger.unmirrored_jobs().exclude(enqueued_at__range=(now - YOUNG, now + YOUNG)))


def put_unmirrored(broker: Broker, jobs: Sequence[WaitingJob]) -> int:
    """Put these where they are missing, and note that it was seen to; return how many they are."""
    if jobs:
        added = put_jobs(broker, [job.as_new() for job in jobs])
        ledger.note_mirrored([job.member for job in jobs])
        if added:
            logger.info("Put %d jobs into Redis that were not there.", added)
    return len(jobs)


def put_back_jobs(broker: Broker, jobs: Sequence[WaitingJob], *, dry_run: bool = False) -> list[str]:
    """Put those back that Redis has lost; return a line for each. Their calls are read where they are needed."""
    missing = _find_missing(broker, jobs)
    if missing and not dry_run:
        still = _read(ledger.open_jobs().filter(pk__in=[job.pk for job in missing]))
        put_jobs(broker, [job.as_new() for job in still])
        kept_out = _find_missing(broker, still)  # by what is left of them
        _clear_away(JobBroker(broker), kept_out)
        put_jobs(broker, [job.as_new() for job in kept_out])
    return [f"job {result_id(job.queue, job.member)}: put back" for job in missing]


def _clear_away(own: JobBroker, jobs: Sequence[WaitingJob]) -> None:
    """Remove what is left of jobs that nothing stands for, unless a worker has one by now."""
    for job in jobs:
        shard = own.shard_of(job.member, job.queue)
        if own.change(shard, job.member, "leave") == "DEAD":
            own.change(shard, job.member, "bury")


def _find_missing(broker: Broker, jobs: Sequence[WaitingJob]) -> list[WaitingJob]:
    """Return those that Redis has not, in a round trip a shard."""
    own = JobBroker(broker)
    groups: dict[Shard, list[WaitingJob]] = {}
    for job in jobs:
        groups.setdefault(own.shard_of(job.member, job.queue), []).append(job)
    missing = []
    for shard, group in groups.items():
        there = own.present(shard, [job.member for job in group])
        missing += [job for job, found in zip(group, there, strict=True) if not found]
    return missing


def prune_pages() -> Iterator[int]:
    """Delete expired results and dead jobs from the database; yield the count of each page."""
    while count := ledger.prune_jobs(PAGE):
        yield count


def count_unmirrored(older_than: timedelta) -> int:
    """Count durable jobs older than this that no sweep has seen to; one that was revived is as old as its revival.

    Only one that was revived has a fence before its first attempt.
    """
    now = utcnow()
    rows = ledger.unmirrored_jobs().filter(enqueued_at__lt=now - older_than)
    return rows.exclude(attempt=0, fence__gt="", wakes_at__range=(now - older_than, now)).count()


def count_missing(broker: Broker) -> int:
    """Count durable jobs that a sweep has seen to and that Redis has no more, among the oldest `PAGE` that are open.

    The oldest are those that a restored database has open again, because they have ended since.
    """
    rows = ledger.open_jobs().filter(mirrored=True, queue__in=broker.config.queues)
    missing = _find_missing(broker, _read(rows, calls=False))
    return rows.filter(pk__in=[job.pk for job in missing]).count() if missing else 0  # without what has just ended
