"""Rebuilds flushed shards from the database.

Note [Stored points are not recomputed]
After a flush, `next_due_at`, written with the last outcome, is the first missing point of nearly every schedule. Such
entries are restored from the columns, without computing a point: this determines how long a rebuild takes. Other
schedules are computed as in a sweep. The next full sweep or claim finds changes by SQL or by new time zone data.

Note [One worker rebuilds]
The worker that sets the mark `building:<id>` in place of a missing epoch rebuilds that shard, and all flushed shards.
The mark expires unless it is renewed after each page; then the next worker starts over. A shard is built only if its
mark existed from the first page to the last, because a flush deletes the mark. The layout is claimed after the marks:
a flush between two marks deletes it, and without it workers with another number of shards would trust this index.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence, Set

from ..index import Broker, Shard
from ..index.connection import DamagedKeys
from ..index.keys import BUILDING, is_built
from ..ledger.chain import format_member
from .compare import compare
from .layout import ForeignLayout, check_layout
from .missing import note_all_put, read_last_key
from .pages import query_queues, split_pages, walk
from .read import read_settled
from .runs import put_runs
from .write import write_wanted

logger = logging.getLogger("django_delayq.sync")

#: Maximum time between two pages before another worker may start over, in ms.
TTL_MS = 15_000
#: Schedules restored first, by due time: they run while the rebuild continues.
FIRST = 10_000


class Build:
    """The marks of a rebuild on the shards whose epoch was absent. See Note [One worker rebuilds]."""

    def __init__(self, broker: Broker, shards: Sequence[Shard]) -> None:
        self.broker = broker
        self._mark = f"{BUILDING}{secrets.token_hex(4)}"
        taken = broker.swap_epochs(shards, None, self._mark, ttl_ms=TTL_MS)
        self.shards = [shard for shard, mine in zip(shards, taken, strict=True) if mine]

    def go_on(self, ttl_ms: int = TTL_MS) -> bool:
        """Renew the mark for the next page; return False if Redis was flushed again."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=ttl_ms))

    def finish(self) -> bool:
        """Mark the shards as built; return False if Redis was flushed in between: they are still to be rebuilt."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark.removeprefix(BUILDING)))


def rebuild(broker: Broker, shards: Sequence[Shard], *, go_on: Callable[[], bool] = lambda: True) -> bool:
    """Fill flushed shards from the database; return True if they are built now, False also if Redis was flushed again
    or `go_on`, called before the first page and after each, returned False. Idempotent, and safe during claims.
    """
    build = Build(broker, shards)
    if not build.shards or not go_on():
        return False
    try:
        check_layout(broker)
        for _ in _fill(broker, set(build.shards)):
            if not build.go_on() or not go_on():
                return False
    except (DamagedKeys, ForeignLayout):  # another attempt need not wait until the marks expire
        build.go_on(ttl_ms=1)
        raise
    if not build.finish():
        return False
    logger.info("Rebuilt %s from the database.", ", ".join(map(str, build.shards)))
    return True


def find_unbuilt(broker: Broker) -> list[Shard]:
    shards = broker.list_shards()
    return [shard for shard, epoch in zip(shards, broker.read_epochs(shards), strict=True) if not is_built(epoch)]


def _fill(broker: Broker, flushed: Set[Shard]) -> Iterator[object]:
    names = sorted({shard.queue for shard in flushed})
    due = query_queues(queue__in=names, enabled=True, state__next_due_at__isnull=False).order_by("state__next_due_at")
    first = [pk for pk, _ in due[:FIRST]]
    for page in split_pages(first):
        _restore(broker, flushed, page)
        yield page
    last, done = read_last_key(), set(first)

    def restore_others(page: Collection[int]) -> None:
        if others := [pk for pk in page if pk not in done]:
            _restore(broker, flushed, others)

    yield from walk(restore_others, lambda runs: put_runs(broker, runs), names)
    if names == sorted({shard.queue for shard in broker.list_shards()}):
        note_all_put(broker, last)


def _restore(broker: Broker, flushed: Set[Shard], page: Collection[int]) -> None:
    settled, others = read_settled(page)
    write_wanted(broker, [item for item in settled if broker.get_shard(item.definition.member, item.queue) in flushed])
    rest = {pk: queue for pk, queue in others.items() if broker.get_shard(format_member(pk), queue) in flushed}
    if rest:
        compare(broker, rest)
