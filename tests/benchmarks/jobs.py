"""How many jobs per second are enqueued, and executed by one worker process.

Run from the project's root: `python -m tests.benchmarks.jobs [--jobs N] [--threads N] [--rounds N]`.
Uses the suite's settings: an embedded server and SQLite on disk, or DELAYQ_REDIS_URL and DATABASE_URL. No-op tasks.
Prints a table; asserts nothing about time. On a small virtual machine `taskset -c 0` in front makes it steady.
"""

import argparse
import statistics
import time
from typing import Any

from tests.benchmarks import set_up


def one_by_one(task: Any, jobs: int) -> float:
    """Return how many jobs per second are enqueued by one call each."""
    began = time.perf_counter()
    for _ in range(jobs):
        task.enqueue()
    return jobs / (time.perf_counter() - began)


def many(task: Any, jobs: int) -> float:
    """Return how many jobs per second are enqueued by one call for all."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), {})] * jobs
    began = time.perf_counter()
    task.enqueue_many(calls)
    return jobs / (time.perf_counter() - began)


def work(threads: int) -> tuple[int, float, float]:
    """Run what is there; return (jobs, jobs per second, µs of processor time per job)."""
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    worker = Worker(WorkerOptions(queues=("default",), threads=threads, burst=True))
    used, began = time.process_time(), time.perf_counter()
    worker.run()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return worker.runs, worker.runs / seconds, used / max(worker.runs, 1) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    set_up()
    from django_delayq.broker import Broker
    from tests.app.tasks import noop

    broker = Broker(timeout_seconds=5)
    noop.enqueue()  # connects, and reads the registry
    work(options.threads)
    rows = []
    for _ in range(options.rounds):
        single = one_by_one(noop, options.jobs // 4)
        together = many(noop, options.jobs)
        done, speed, used = work(options.threads)
        assert done == options.jobs + options.jobs // 4
        rows.append((single, together, speed, used))
        print("  ".join(f"{value:,.0f}" for value in rows[-1]))
        broker.purge()
    single, together, speed, used = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"medians of {options.rounds} rounds of {options.jobs:,} jobs:")
    print(f"  {'one worker, ' + str(options.threads) + ' threads':<34} {speed:>9,.0f} jobs/s")
    print(f"  {'processor time per job':<34} {used:>9,.0f} us")
    print(f"  {'enqueue one by one':<34} {single:>9,.0f} jobs/s")
    print(f"  {'enqueue_many':<34} {together:>9,.0f} jobs/s")


if __name__ == "__main__":
    main()
