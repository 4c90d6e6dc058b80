"""Brings the layout of a new release, or another number of shards, into Redis once no worker uses the former one.

Note [Drained, then built anew]
Nothing is moved while workers run: the database is the truth, and an index of another layout is one that is rebuilt as
after a flush. A worker whose layout is not the one in place waits, and says for which workers; these end because they
are restarted, or, where `migrate` has raised the layout, by themselves. What they held comes due again as the ledger
has it. A lease outlives a worker that was killed, and until it has ended it looks like that of a worker which only does
not say that it lives. So leases are waited for too, and no point is executed beside its holder.

Note [Said before it is looked]
A worker says that it lives before it looks at the layout for the last time. A worker that switches says so in the
layout before it looks for the last time which workers live. So one of the two sees the other: no worker begins with an
index that is about to go. A switch that was interrupted leaves `switching` behind, and the next waiting worker goes on.

Note [Web processes]
A process that only mirrors may have another layout than the index. It looks at the layout before a write (of jobs and
orders once a second), and leaves what it cannot write to the sweeps of the workers, as it does where Redis is away.
What it writes in the very moment of a switch was committed before the rebuild reads it, so that the rebuild has it too;
in a wrong shard it is dropped.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace

from ..index import Broker, Shard
from .layout import Layout, OtherLayout, check_layout, check_others, check_release, checked, own_layout, store_layout

logger = logging.getLogger("django_delayq.sync")

#: Workers say that they live every 30 s; who was not heard of for three times as long is taken for dead.
LIVE_SECONDS = 90.0
#: So many of the workers that are waited for are named.
NAMES_SHOWN = 5


def take_layout(broker: Broker) -> None:
    """Return once the index has the layout of this process; switch to it where no worker uses another one.

    See Note [Drained, then built anew]. To be called before this worker says that it lives.

    Raises:
        OtherLayout: A worker does; says for which to wait. Call again in a while.
        OutdatedRelease, PendingMigrations: See `check_release`.
        ForeignLayout: See `check_layout`.
    """
    check_release()
    try:
        check_layout(broker)
        return
    except OtherLayout:
        _check_unused(broker, checked(broker, broker.layout()))
    if broker.take_upkeep():
        raise OtherLayout("Waiting until another process has ended its upkeep, or its switch to another layout.")
    try:
        _switch(broker)
    finally:
        broker.end_upkeep()


def _switch(broker: Broker) -> None:
    """Take the index away and write the layout of this process: workers then find it flushed, and rebuild it."""
    standing, own = checked(broker, broker.layout()), own_layout(broker)
    if not (difference := standing.differs(own)):  # another worker was faster
        return
    broker.write_layout(replace(standing, switching=True).text())
    try:
        _check_unused(broker, standing)
    except OtherLayout:
        broker.write_layout(standing.text())
        raise
    broker.drop(_former_shards(standing, own))
    store_layout(broker)
    broker.note_sweep(None)
    logger.info("%s No worker uses that any more: the index is built anew.", difference)


def _check_unused(broker: Broker, standing: Layout) -> None:
    """Refuse to switch while a worker lives that works by another layout, or leases are left of one that died."""
    own = own_layout(broker)
    check_others(broker, standing)
    difference = standing.differs(own)
    if names := sorted(_find_others(broker, own)):
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        raise OtherLayout(
            f"{difference} Waiting until these workers, which work by another layout, have ended: "
            f"{', '.join(names[:NAMES_SHOWN])}{more}. Restart them with the release and the settings of this one."
        )
    if left := broker.count_leases(_former_shards(standing, own)):
        raise OtherLayout(f"{difference} Waiting until the leases of workers that are gone have ended, {left} of them.")


def _find_others(broker: Broker, own: Layout) -> Iterator[str]:
    """Yield the live workers that work by another layout, or do not say by which."""
    since_ms = broker.now_ms() - LIVE_SECONDS * 1000
    for name, (beat_ms, details) in broker.workers().items():
        if name != broker.worker and beat_ms >= since_ms:
            try:
                told = json.loads(details)
                if Layout(own.database, told["layout"], dict(told["shards"])).differs(own):
                    yield name
            except (ValueError, TypeError, KeyError, RecursionError):
                yield name


def _former_shards(standing: Layout, own: Layout) -> list[Shard]:
    """Return the shards that are not as this process lays them out: those that were, and those that will be."""
    counts = {
        queue: max(count, own.shards.get(queue, 0))
        for queue, count in (own.shards | standing.shards).items()
        if standing.version != own.version or own.shards.get(queue, count) != count
    }
    return [Shard(queue, number) for queue, count in counts.items() for number in range(count)]
