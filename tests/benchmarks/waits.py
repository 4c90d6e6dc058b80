"""How long after the end of a job a wait for its result returns.

Run from the project's root: `python -m tests.benchmarks.waits [--waits N]`. One worker is a process of its own, with a
server of its own. Prints the median, the 99th percentile and the maximum of (return of `wait` - end of the job as the
worker recorded it, a whole ms); asserts nothing about time.
"""

import argparse
import statistics
import time

from tests.benchmarks.servers import redis_of_its_own, running_workers


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waits", type=int, default=200)
    options = parser.parse_args()
    with redis_of_its_own(shards=1, cluster=False):
        from django_delayq.broker import Broker
        from tests.app.tasks import noop

        late = []
        with running_workers(Broker(timeout_seconds=5), 1):
            for _ in range(options.waits):
                result = noop.enqueue()
                result.wait(60)
                late.append((time.time() - result.finished_at.timestamp()) * 1000)
    late.sort()
    p99 = late[int(len(late) * 0.99) - 1]
    print(f"{len(late):,} waits: median {statistics.median(late):.1f} ms, p99 {p99:.1f}, max {late[-1]:.1f}")


if __name__ == "__main__":
    main()
