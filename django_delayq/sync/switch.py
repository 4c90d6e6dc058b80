"""Switches the index in Redis to the layout of a new release, or to other shards, once no worker uses the old one.

Note [Older workers must end first]
An index of another layout is rebuilt as after a flush. A worker with another layout first waits until the workers that
use the old one, and the leases of killed workers, have ended: so no point is executed twice at the same time.

Note [Report, then check]
A worker reports that it is alive before its last check of the layout. A worker that switches marks the layout before
its last check for live workers. So one of the two sees the other, and no worker starts with an index that is about to
be dropped. An interrupted switch leaves `switching` behind, and the next waiting worker continues.

Note [Sweeps write for web processes]
A web process leaves what it cannot write to the sweeps. A write during a switch is harmless: its row is committed.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace

from ..index import Broker, Shard
from .layout import Layout, OtherLayout, check_layout, check_release, get_own_layout, read_layout, store_layout

logger = logging.getLogger("django_delayq.sync")

#: Age of the last report after which a worker counts as dead, in seconds. Workers report every 30 s.
LIVE_SECONDS = 90.0


def take_layout(broker: Broker) -> None:
    """Switch the index to the layout of this process if no worker uses another one; raises OtherLayout if one does.
    Call it before this worker reports that it is alive. Raises what `check_layout` and `check_release` do.
    """
    check_release()
    try:
        check_layout(broker)
        return
    except OtherLayout:
        _check_unused(broker, read_layout(broker, broker.read_layout()))
    if broker.take_upkeep():
        raise OtherLayout("Waiting until another process has ended its upkeep, or its switch to another layout.")
    try:
        _switch(broker)
    finally:
        broker.end_upkeep()


def _switch(broker: Broker) -> None:
    """Drop the index and write the layout of this process: workers then rebuild it as after a flush."""
    stored, own = read_layout(broker, broker.read_layout()), get_own_layout(broker)
    if not (difference := stored.find_difference(own)):  # another worker has switched
        return
    broker.write_note("layout", replace(stored, switching=True).to_json())
    try:
        _check_unused(broker, stored)
    except OtherLayout:
        broker.write_note("layout", stored.to_json())
        raise
    broker.drop(_list_former_shards(stored, own))
    store_layout(broker)
    broker.forget_sweep()
    logger.info("%s No worker uses that any more: the index is built anew.", difference)


def _check_unused(broker: Broker, stored: Layout) -> None:
    own = get_own_layout(broker)
    difference = stored.find_difference(own)
    if names := sorted(_find_others(broker, own)):
        raise OtherLayout(
            f"{difference} Waiting until these workers, which work by another layout, have ended: "
            f"{', '.join(names)}. Restart them with the release and the settings of this one."
        )
    if left := broker.count_leases(_list_former_shards(stored, own)):
        raise OtherLayout(f"{difference} Waiting until the leases of workers that are gone have ended, {left} of them.")


def _find_others(broker: Broker, own: Layout) -> Iterator[str]:
    since_ms = broker.read_now_ms() - LIVE_SECONDS * 1000
    for name, (beat_ms, details) in broker.read_workers().items():
        if name != broker.worker and beat_ms >= since_ms:
            try:
                found = json.loads(details)
                if Layout(own.database, found["layout"], dict(found["shards"])).find_difference(own):
                    yield name
            except (ValueError, TypeError, KeyError, RecursionError):
                yield name


def _list_former_shards(stored: Layout, own: Layout) -> list[Shard]:
    counts = {
        queue: max(count, own.shards.get(queue, 0))
        for queue, count in (own.shards | stored.shards).items()
        if stored.version != own.version or own.shards.get(queue, count) != count
    }
    return [Shard(queue, number) for queue, count in counts.items() for number in range(count)]
