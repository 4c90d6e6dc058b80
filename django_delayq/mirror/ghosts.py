"""Removes from Redis what nothing in the database stands behind. Adds nothing."""

from collections.abc import Iterator

from .. import chain, ledger
from ..broker import Broker, Shard
from ..models import Run
from . import rows

#: Greater than any generation in ms: removes whatever stands there.
BEYOND = 10**15


def remove_ghosts(broker: Broker, shard: Shard, *, dry_run: bool = False) -> Iterator[list[str]]:
    """Remove members without a row, and what is left of lost ones; yield a line for each, page by page.

    Jobs are not looked at. An entry of which a part was lost is no ghost: comparing the definitions mends it.
    """
    for page in broker.scan(shard):
        ghosts = _find(broker, shard, page)
        if ghosts and not dry_run:
            broker.remove(shard, [(member, BEYOND, "") for member in ghosts], gone=True)
        yield [f"{member!r} in {shard}: removed, nothing in the database stands behind it" for member in ghosts]


def _find(broker: Broker, shard: Shard, page: set[str]) -> list[str]:
    parsed = {member: chain.parse_member(member) for member in sorted(page)}
    homes = rows.load_homes_of([item[1] for item in parsed.values() if item and item[0] == "s"])
    runs = [item[1] for item in parsed.values() if item and item[0] == "r"]
    live: dict[int, str] = {}
    if runs:
        live.update(Run.objects.using(ledger.database()).filter(pk__in=runs).open().values_list("pk", "queue"))
    queues = {"s": homes, "r": live}
    ghosts = []
    for member, item in parsed.items():
        queue = queues[item[0]].get(item[1]) if item else None
        if queue is None or broker.shard_of(member, queue) != shard:
            ghosts.append(member)
    return ghosts
