"""Compares everything that the database wants in Redis, and rebuilds flushed shards.

Note [What was mirrored goes back as it was]
After a flush, `next_due_at`, written with the last outcome, is the first missing point of nearly every schedule. Such
entries are restored from the columns, without computing a point: this determines how long a rebuild takes.
`read_settled` has the conditions; other schedules are computed as in a sweep. If SQL or new time zone data has
changed when a restored schedule is due, the next full sweep or claim finds out, as before the flush.

Note [One worker rebuilds]
The worker that sets the mark `building:<id>` in place of a missing epoch rebuilds that shard, and all flushed shards.
The mark expires unless it is renewed after each page; then the next worker starts over. A shard is built only if its
mark existed from the first page to the last, because a flush deletes the mark. The layout is claimed after the marks:
a flush between two marks deletes it, and without it workers with another number of shards would trust this index.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain

from .. import ledger
from ..index import Broker, Shard
from ..index.connection import DamagedKeys
from ..ledger.chain import member_of
from .compare import compare
from .layout import ForeignLayout, check_layout
from .missed import last_key, note_all_put
from .pages import PAGE, pages, parts
from .read import queues_of, read_settled
from .runs import put_back, put_runs
from .write import write_wanted

logger = logging.getLogger("django_delayq.sync")

#: Prefix of the epoch of a shard that is being built.
BUILDING = "building:"
#: Maximum time between two pages before another worker may start over, in ms.
TTL_MS = 15_000
#: Interval between progress messages, in seconds.
TELL_SECONDS = 5.0
#: Schedules restored first, by due time: they run while the rebuild continues.
FIRST = 10_000


class Build:
    """A rebuild of the shards whose epoch is absent. See Note [One worker rebuilds]."""

    def __init__(self, broker: Broker, shards: Sequence[Shard]) -> None:
        self.broker = broker
        self._mark = f"{BUILDING}{secrets.token_hex(4)}"
        taken = broker.swap_epochs(shards, None, self._mark, ttl_ms=TTL_MS)
        self.shards = [shard for shard, mine in zip(shards, taken, strict=True) if mine]

    def go_on(self) -> bool:
        """Renew the mark for the next page; return False if Redis was flushed again."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=TTL_MS))

    def give_up(self) -> None:
        """Release the mark, so that the next worker need not wait until it expires."""
        self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=1)

    def finish(self) -> bool:
        """Mark the shards as built; return False if Redis was flushed in between: they are still to be rebuilt."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark.removeprefix(BUILDING)))


def rebuild(broker: Broker, shards: Sequence[Shard], *, go_on: Callable[[], bool] = lambda: True) -> bool:
    """Fill flushed shards from the database; return True if they are built now.

    Return False if there was nothing to do, Redis was flushed again, or `go_on`, called before the first page and
    after each, returned False. Idempotent and safe during claims: see `chain.py`, Note [First missing point].

    Raises:
        BrokerError: Redis failed; the next worker that finds the shards flushed starts over.
        ForeignLayout, OtherLayout: See `check_layout`.
    """
    build = Build(broker, shards)
    if not build.shards or not go_on():
        return False
    count, began = 0, time.monotonic()
    told = began
    try:
        check_layout(broker)
        for schedules in _fill(broker, set(build.shards)):
            count += schedules
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                logger.info("Rebuilding: %d schedules so far, %d a second.", count, count / (told - began))
            if not build.go_on() or not go_on():
                return False
    except (DamagedKeys, ForeignLayout):  # another attempt need not wait until the marks expire
        build.give_up()
        raise
    if not build.finish():
        return False
    logger.info("Rebuilt %s from the database: %d schedules.", ", ".join(map(str, build.shards)), count)
    return True


def unbuilt(broker: Broker) -> list[Shard]:
    """Return the shards that were flushed and are not rebuilt."""
    shards = broker.shards()
    epochs = broker.epochs(shards)
    return [shard for shard, epoch in zip(shards, epochs, strict=True) if not epoch or epoch.startswith(BUILDING)]


def walk(broker: Broker, *, dry_run: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Compare each schedule and open run with Redis, and correct what differs. Other members are left as they are.

    Yield for each page the number of schedules, and one line per change.
    """
    for page in pages(queues_of()):
        yield len(page), compare(broker, dict(page), dry_run=dry_run)
    for runs in ledger.open_pages(PAGE):
        yield 0, put_back(broker, runs, dry_run=dry_run)


def _fill(broker: Broker, flushed: Set[Shard]) -> Iterator[int]:
    """Fill these shards from the database; yield the number of schedules of each page."""
    names = sorted({shard.queue for shard in flushed})
    keys = queues_of(queue__in=names).values_list("pk", flat=True)
    due = keys.filter(enabled=True, state__next_due_at__isnull=False).order_by("state__next_due_at")
    first = list(due[:FIRST])
    done = set(first)
    others = ([pk for pk in page if pk not in done] for page in pages(keys))
    for page in filter(None, chain(parts(first), others)):
        _put_back(broker, flushed, page)
        yield len(page)
    last = last_key()
    for runs in ledger.open_pages(PAGE, names):
        put_runs(broker, runs)
        yield 0
    if names == sorted({shard.queue for shard in broker.shards()}):
        note_all_put(broker, last)


def _put_back(broker: Broker, flushed: Set[Shard], page: Sequence[int]) -> None:
    """Restore schedules without reading Redis. See Note [What was mirrored goes back as it was]."""
    settled, others = read_settled(page)
    write_wanted(broker, [item for item in settled if broker.shard_of(item.member, item.queue) in flushed])
    rest = {pk: queue for pk, queue in others.items() if broker.shard_of(member_of(pk), queue) in flushed}
    if rest:
        compare(broker, rest, flushed=True)
