"""The walk through everything that the database wants in Redis, and the rebuild of flushed shards.

Note [What was mirrored goes back as it was]
After a flush nearly every schedule is as Redis knew it: its definition was mirrored, and `next_due_at`, written in the
transaction that recorded the last outcome, is its first missing point. Such entries go back straight from the columns,
without working out a point, for this is what decides how long a large index is gone. `read_settled` names the
conditions; whatever does not meet each of them (never mirrored, an open row of the ledger, parked, exhausted, undecided
since before an edit, moved by SQL) is worked out as a sweep does it. Nothing is trusted that an entry in Redis was not:
where SQL or another release of the time zones has changed when a schedule is due, the next full sweep finds it, or
whoever claims the entry.

Note [One worker rebuilds]
The worker that sets the mark `building:<id>` in the place of a missing epoch rebuilds that shard, and with it all that
were flushed. The mark ends by itself if it is not renewed after each page, so that the next worker begins anew. A shard
is called built only if its mark stood from the first page to the last: a flush in between takes the mark away. The
worker claims the layout after it has set the marks. A flush between two marks removes the layout too, and without a
layout, workers with another number of shards would use the shards that are built here.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain

from .. import ledger
from ..broker import Broker, Shard
from ..chain import member_of
from ..exceptions import DamagedKeys, ForeignLayout
from .compare import compare
from .layout import check_layout
from .missed import last_key, note_all_put
from .pages import PAGE, pages, parts
from .read import queues_of, read_settled
from .runs import put_back, put_runs
from .write import write_wanted

logger = logging.getLogger("django_delayq.mirror")

#: How the epoch of a shard begins that is being built.
BUILDING = "building:"
#: How long a rebuild may take between two pages before another worker may begin anew.
TTL_MS = 15_000
#: So often a rebuild that lasts tells how far it is.
TELL_SECONDS = 5.0
#: So many schedules go back before all others, those that are due first: they run while the rebuild goes on.
FIRST = 10_000


class Build:
    """A rebuild of the shards whose epoch is absent. See Note [One worker rebuilds]."""

    def __init__(self, broker: Broker, shards: Sequence[Shard]) -> None:
        self.broker = broker
        self._mark = f"{BUILDING}{secrets.token_hex(4)}"
        taken = broker.swap_epochs(shards, None, self._mark, ttl_ms=TTL_MS)
        self.shards = [shard for shard, mine in zip(shards, taken, strict=True) if mine]

    def go_on(self) -> bool:
        """Keep the mark for the next page; False where Redis was flushed again."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=TTL_MS))

    def give_up(self) -> None:
        """Let go of the mark: a worker that begins anew need not wait for its end."""
        self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=1)

    def finish(self) -> bool:
        """Call the shards built; False where Redis was flushed meanwhile, which leaves them to be rebuilt."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark.removeprefix(BUILDING)))


def rebuild(broker: Broker, shards: Sequence[Shard], *, go_on: Callable[[], bool] = lambda: True) -> bool:
    """Fill those of the shards that were flushed from the database.

    `go_on` is asked before the first page and after each; where it says no, the rebuild ends.

    True if they are built now, False if there was nothing to do, the rebuild ended, or Redis was flushed again.
    Idempotent and safe beside claims: entries restart at their first missing point, see `chain.py`, Note [First missing
    point].

    Raises:
        BrokerError: Redis failed on the way; the next worker that finds the shards flushed begins anew.
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
    except (DamagedKeys, ForeignLayout):  # another attempt need not wait for the end of the marks
        build.give_up()
        raise
    if not build.finish():
        return False
    logger.info("Rebuilt %s from the database: %d schedules.", ", ".join(map(str, build.shards)), count)
    return True


def unbuilt(broker: Broker) -> list[Shard]:
    """Return the shards that were flushed and are not rebuilt.

    Raises:
        BrokerError: Redis does not answer.
    """
    shards = broker.shards()
    epochs = broker.epochs(shards)
    return [shard for shard, epoch in zip(shards, epochs, strict=True) if not epoch or epoch.startswith(BUILDING)]


def walk(broker: Broker, *, dry_run: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Compare with Redis each schedule and run that the database wants there, and mend what differs.

    Yields for each page how many schedules it had, and a line for each change. Leaves other members as they are.
    """
    for page in pages(queues_of()):
        yield len(page), compare(broker, dict(page), dry_run=dry_run)
    for runs in ledger.open_pages(PAGE):
        yield 0, put_back(broker, runs, dry_run=dry_run)


def _fill(broker: Broker, flushed: Set[Shard]) -> Iterator[int]:
    """Fill these shards from the database; yield for each page how many schedules it had."""
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
    """Put schedules there without asking what is there. See Note [What was mirrored goes back as it was]."""
    settled, others = read_settled(page)
    write_wanted(broker, [item for item in settled if broker.shard_of(item.member, item.queue) in flushed])
    rest = {pk: queue for pk, queue in others.items() if broker.shard_of(member_of(pk), queue) in flushed}
    if rest:
        compare(broker, rest, flushed=True)
