"""Puts durable jobs into Redis: after their commit where it can, by the sweeps where it could not.

Note [Put again]
Putting a job is harmless however often and however late: one that is there is left as it is, and one that has ended
meanwhile is found out by whoever claims it, because every claimed durable job is looked up in the database first. So
the fast path writes nothing into the row of a single job, and the first sweep that meets it while it still waits puts
it once more and notes that. For many jobs at once that would be more work than one statement.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import QuerySet

from .. import ledger
from ..broker import Broker, JobBroker, NewJob, Shard, in_parts
from ..exceptions import BrokerUnavailable
from ..grouping import grouped
from ..jobs import encode, result_id
from ..models import Job
from ..timing import to_ms
from .pages import PAGE, pages

#: So often shards may change while jobs are put there.
MOST_ROUNDS = 5


class WaitingJob(NamedTuple):
    """What of a row is needed to put it into Redis."""

    pk: int
    member: str
    queue: str
    priority: int
    wakes_at: datetime
    call: str = ""

    def as_new(self) -> tuple[str, NewJob]:
        """Return it as whoever enqueued it had put it, signed with the key of today."""
        payload = encode(self.queue, self.member, self.call)
        return self.queue, NewJob(self.member, to_ms(self.wakes_at), self.priority, "", payload)


def put_jobs(broker: Broker, jobs: Sequence[tuple[str, NewJob]]) -> int:
    """Put (queue, job) that are not there into Redis; return how many were added. See Note [Put again].

    Raises:
        BrokerError: Some may have been put.
    """
    own = JobBroker(broker)
    groups = grouped(jobs, lambda item: own.shard_of(item[1].member, item[0]))
    standing = put_in_shards(own, {shard: [job for _, job in group] for shard, group in groups.items()})
    return list(standing.values()).count("")


def put_in_shards(own: JobBroker, groups: Mapping[Shard, Sequence[NewJob]]) -> dict[str, str]:
    """Add jobs, whatever the epochs of their shards are; return what `JobBroker.enqueue_each` says of each member.

    Raises:
        BrokerError: Some may have been put.
    """
    standing: dict[str, str] = {}
    parts = in_parts(groups)
    for _ in range(MOST_ROUNDS):
        shards = list({shard: None for shard, _ in parts})
        epochs = [(epoch or "").removeprefix("building:") for epoch in own.broker.epochs(shards)]
        replies = own.enqueue_each(parts, dict(zip(shards, epochs, strict=True)), again=False)
        left = []
        for (shard, group), (_, found) in zip(parts, replies, strict=True):
            if found is None:
                left.append((shard, group))
            else:
                standing |= {job.member: member for job, member in zip(group, found, strict=True)}
        if not left:
            return standing
        parts = left
    raise BrokerUnavailable("Redis is flushed, or its shards change, all the time, so that nothing can be put there.")


def waiting_pages(queues: Sequence[str] | None = None, *, calls: bool = True) -> Iterator[list[WaitingJob]]:
    """Yield pages of durable jobs without an outcome, the oldest first; `calls` says whether their calls are read."""
    rows = ledger.open_jobs()
    for page in pages(_columns(rows if queues is None else rows.filter(queue__in=queues), calls=calls)):
        yield [WaitingJob(*row) for row in page]


def load_waiting(rows: QuerySet[Job], *, calls: bool = True) -> list[WaitingJob]:
    """Return the oldest page of these rows."""
    return [WaitingJob(*row) for row in _columns(rows, calls=calls).order_by("pk")[:PAGE]]


def _columns(rows: QuerySet[Job], *, calls: bool) -> "QuerySet[Job, Any]":
    names = WaitingJob._fields if calls else WaitingJob._fields[:-1]
    return rows.values_list(*names, named=True)


def put_back_jobs(broker: Broker, jobs: Sequence[WaitingJob], *, dry_run: bool = False) -> list[str]:
    """Put those back that Redis has lost; return a line for each. Their calls are read where they are needed."""
    missing = find_missing(broker, jobs)
    if missing and not dry_run:
        still = load_waiting(ledger.open_jobs().filter(pk__in=[job.pk for job in missing]))
        put_jobs(broker, [job.as_new() for job in still])
        own, kept_out = JobBroker(broker), find_missing(broker, still)  # by what is left of them
        for job in kept_out:  # it goes, unless a worker has the job by now
            shard = own.shard_of(job.member, job.queue)
            if own.change(shard, job.member, "leave") == "DEAD":
                own.change(shard, job.member, "bury")
        put_jobs(broker, [job.as_new() for job in kept_out])
    return [f"job {result_id(job.queue, job.member)}: put back" for job in missing]


def find_missing(broker: Broker, jobs: Sequence[WaitingJob]) -> list[WaitingJob]:
    """Return those that Redis has not, in a round trip a shard."""
    own = JobBroker(broker)
    missing = []
    for shard, group in grouped(jobs, lambda job: own.shard_of(job.member, job.queue)).items():
        there = own.present(shard, [job.member for job in group])
        missing += [job for job, found in zip(group, there, strict=True) if not found]
    return missing
