"""The walk through everything that the database wants in Redis, and the rebuild of flushed shards.

Note [What was mirrored goes back as it was]
After a flush nearly every schedule is as Redis knew it: its definition was mirrored, and `next_due_at`, written in the
transaction that recorded the last outcome, is its first missing point. Such entries go back straight from the columns,
without working out a point, for this is what decides how long a large index is gone. `read_settled` names the
conditions; whatever does not meet each of them (never mirrored, an open row of the ledger, parked, exhausted, undecided
since before an edit, moved by SQL) is worked out as a sweep does it. Nothing is trusted that an entry in Redis was not:
where SQL or another release of the time zones has changed when a schedule is due, the next full sweep finds it, or
whoever claims the entry.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from itertools import chain

from .. import failpoints, ledger
from ..broker import Broker, Shard
from ..chain import member_of
from .compare import compare
from .durable import put_back_jobs, put_jobs, waiting_pages
from .pages import pages, parts
from .read import queues_of, read_settled
from .runs import put_back
from .write import write_wanted

logger = logging.getLogger("django_delayq.mirror")

#: How long a rebuild may take between two pages before another worker may begin anew.
TTL_MS = 15_000
#: So many schedules go back before all others, those that are due first: they run while the rebuild goes on.
FIRST = 10_000


class Build:
    """A rebuild of the shards whose epoch is absent. Only who holds its mark from the first page to the last calls them
    built: a flush in between takes the mark away.
    """

    def __init__(self, broker: Broker, shards: Sequence[Shard]) -> None:
        self.broker = broker
        self._id = secrets.token_hex(4)
        self._mark = f"building:{self._id}"
        taken = broker.swap_epochs(shards, None, self._mark, ttl_ms=TTL_MS)
        self.shards = [shard for shard, mine in zip(shards, taken, strict=True) if mine]

    def go_on(self) -> bool:
        """Keep the mark for the next page; False where Redis was flushed again."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=TTL_MS))

    def finish(self) -> bool:
        """Call the shards built; False where Redis was flushed meanwhile, which leaves them to be rebuilt."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._id))


def rebuild(broker: Broker, shards: Sequence[Shard]) -> bool:
    """Fill flushed shards from the database; True if done, False if another worker is at it or Redis was flushed again.

    Idempotent and safe beside claims: entries restart at their first missing point, see `chain.py`, Note [First missing
    point].

    Raises:
        BrokerError: Redis failed on the way; whoever finds the shards flushed begins anew.
    """
    build = Build(broker, shards)
    if not build.shards:
        return False
    count = 0
    for schedules in _fill(broker, build.shards):
        count += schedules
        if not build.go_on():
            return False
    done = build.finish()
    logger.info("Rebuilt %s from the database: %d schedules.", ", ".join(map(str, build.shards)), count)
    return done


def walk(broker: Broker, *, dry_run: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Compare with Redis each schedule, run and durable job that the database wants there, and mend what differs.

    Yields for each page how many schedules it had, and a line for each change. Leaves other members as they are.
    """
    for page in pages(queues_of()):
        yield len(page), compare(broker, dict(page), dry_run=dry_run)
        failpoints.reach("during_rebuild")
    for runs in pages(ledger.open_apart()):
        yield 0, put_back(broker, runs, dry_run=dry_run)
    for jobs in waiting_pages(calls=False):
        yield 0, put_back_jobs(broker, jobs, dry_run=dry_run)


def _fill(broker: Broker, flushed: Sequence[Shard]) -> Iterator[int]:
    """Fill these shards, without asking what they hold; yields for each page how many schedules it had.

    See Note [What was mirrored goes back as it was].
    """
    names, own = sorted({shard.queue for shard in flushed}), set(flushed)
    whole = own == set(broker.shards(names))

    def is_here(pk: int, queue: str) -> bool:
        return queue in names and (whole or broker.shard_of(member_of(pk), queue) in own)

    keys = queues_of(queue__in=names).values_list("pk", flat=True)
    due = keys.filter(enabled=True, state__next_due_at__isnull=False).order_by("state__next_due_at")
    first = list(due[:FIRST])
    known = set(first)
    rest = ([pk for pk in page if pk not in known] for page in pages(keys))
    for page in filter(None, chain(parts(first), rest)):
        settled, others = read_settled(page)
        write_wanted(broker, [item for item in settled if is_here(item.pk, item.queue)])
        if others := {pk: queue for pk, queue in others.items() if is_here(pk, queue)}:
            compare(broker, others, flushed=True)
        yield len(page)
        failpoints.reach("during_rebuild")
    for runs in pages(ledger.open_apart().filter(queue__in=names)):
        put_back(broker, runs)
        yield 0
    for jobs in waiting_pages(names):
        here = [job for job in jobs if whole or broker.shard_of(job.member, job.queue) in own]
        put_jobs(broker, [job.as_new() for job in here])
        yield 0
