"""What it costs to claim and settle a due point by the size of the shard that it is in: Redis alone, no database.

Run from the project's root: `python -m tests.benchmarks.claims [--members 10000 100000 1000000] [--points N]
[--rounds N]`. Of each shard so many members are due, spread over all; each is claimed, and settled to a point years
away, in batches of the default size. Prints the medians of the rounds: microseconds a point, of the caller and
those of the server for the scripts alone (INFO commandstats). Asserts nothing about time.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

from tests.benchmarks import set_up

YEAR_MS = 365 * 86_400_000


def fill(broker: Any, shard: Any, members: int, points: int) -> None:
    """Have so many members in the shard, of which some are due."""
    from django_delayq.index.keys import EntryDefinition

    broker.swap_epochs([shard], None, "bench")
    now, every = broker.read_now_ms(), members // points
    for at in range(0, members, 1000):
        page = []
        for number in range(at, min(members, at + 1000)):
            due = now - 1000 if number % every == 0 else now + YEAR_MS + number * 1000
            page.append(EntryDefinition(f"s{number}", 1, due, due))
        broker.upsert(shard, page)


def trip(broker: Any, shard: Any, requests: Iterator[int]) -> tuple[float, float]:
    """Claim and settle all that is due; return the microseconds a point, of the caller and of the server."""
    from django_delayq.index.keys import Settlement

    broker.client.config_resetstat()
    limit, done, began = broker.config.batch_size, 0, time.perf_counter()
    while True:
        claim = broker.claim(shard, limit=limit, lease_ms=30_000, request=next(requests))
        if not claim.entries:
            break
        later = claim.now_ms + 2 * YEAR_MS
        broker.settle(shard, [Settlement(each.member, claim.holder, "next", later, 1, later) for each in claim.entries])
        done += len(claim.entries)
    seconds = time.perf_counter() - began
    return seconds / done * 1e6, broker.client.info("commandstats")["cmdstat_evalsha"]["usec"] / done


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--points", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    set_up()
    from django_delayq.index import Broker

    broker = Broker(timeout_seconds=30, worker="bench")
    (shard,) = broker.list_shards(["default"])
    requests = itertools.count(1)
    for members in options.members:
        costs = []
        for _ in range(options.rounds):
            fill(broker, shard, members, options.points)
            costs.append(trip(broker, shard, requests))
            broker.drop([shard])
        seen, spent = (statistics.median(column) for column in zip(*costs, strict=True))
        print(f"{members:>9,} members: {seen:6.1f} us a point, {spent:6.1f} of them of the server", flush=True)
    broker.purge()


if __name__ == "__main__":
    main()
