"""How long after the end of a job a wait for its result returns, and what open waits ask of Redis and the database.

Run from the project's root: `python -m tests.benchmarks.waits [--waits N] [--seconds N]`.
One worker is a process of its own; those who wait are in this one: one after the other; all at once in threads, for
jobs that end spread over so many seconds; all at once in one event loop. Prints for each the median, the 99th
percentile and the maximum of (return of `wait` - end of the job as the worker recorded it, a whole ms), and the queries
that the waits made; then what as many idle waits send to Redis. Asserts nothing.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from tests.benchmarks import set_up

QUERIES: list[str] = []


@contextmanager
def worker(threads: int) -> Iterator[None]:
    """Run a worker in a process of its own."""
    from django.db import connection

    environment = {**os.environ, "DELAYQ_TEST_DATABASE": str(connection.settings_dict["NAME"])}
    command = [sys.executable, "-m", "django", "delayq_worker", "--threads", str(threads)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def late(result: Any) -> float:
    """Return the ms since the end of a job."""
    return (time.time() - result.finished_at.timestamp()) * 1000


@contextmanager
def counting() -> Iterator[None]:
    """Count the queries of this thread."""
    from django.db import connection

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        QUERIES.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield


def one_by_one(task: Any, waits: int) -> list[float]:
    """Enqueue and wait, so many times."""
    found = []
    for _ in range(waits):
        result = task.enqueue()
        with counting():
            result.wait(60)
        found.append(late(result))
    return found


def spread(task: Any, waits: int, seconds: float) -> list[Any]:
    """Enqueue so many jobs that fall due over so many seconds, after a while."""
    first = max(3.0, waits / 250)
    return [task.using(run_after=timedelta(seconds=first + seconds * n / waits)).enqueue() for n in range(waits)]


def in_threads(task: Any, waits: int, seconds: float) -> list[float]:
    """Wait for all in a thread each."""
    found: list[float] = []

    def wait(result: Any) -> None:
        from django.db import connection

        with counting():
            result.wait(seconds + 120)
        found.append(late(result))
        connection.close()

    threads = [threading.Thread(target=wait, args=[result]) for result in spread(task, waits, seconds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def in_a_loop(task: Any, waits: int, seconds: float) -> list[float]:
    """Wait for all in one event loop."""
    results = spread(task, waits, seconds)

    async def wait(result: Any) -> float:
        await result.await_(seconds + 120)
        return late(result)

    async def main() -> list[float]:
        return list(await asyncio.gather(*map(wait, results)))

    return asyncio.run(main())


def idle(task: Any, broker: Any, waits: int, seconds: float) -> tuple[float, float]:
    """Return how many commands a second the server gets without waits and with so many open ones."""

    def rate() -> float:
        before, began = broker.client.info("stats")["total_commands_processed"], time.monotonic()
        time.sleep(seconds)
        now = broker.client.info("stats")["total_commands_processed"]
        return float(now - before) / (time.monotonic() - began)

    def wait(result: Any) -> None:
        from django_delayq.exceptions import ResultTimeout

        with suppress(ResultTimeout):
            result.wait(seconds + 10)

    without = rate()
    results = [task.using(run_after=timedelta(days=1)).enqueue() for _ in range(waits)]
    threads = [threading.Thread(target=wait, args=[result]) for result in results]
    for thread in threads:
        thread.start()
    time.sleep(3)
    found = rate()
    for thread in threads:
        thread.join()
    return without, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waits", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    set_up()
    from django_delayq.broker import Broker
    from tests.app.tasks import noop

    task, broker = noop, Broker(timeout_seconds=5)
    with worker(options.threads):
        task.enqueue().wait(60)
        ways = (
            ("one after the other", lambda: one_by_one(task, options.waits)),
            ("at once, a thread each", lambda: in_threads(task, options.waits, options.seconds)),
            ("at once, one event loop", lambda: in_a_loop(task, options.waits, options.seconds)),
        )
        print(f"{options.waits:,} waits, ms after their ends:")
        for name, way in ways:
            QUERIES.clear()
            found = sorted(way())
            p99 = found[int(len(found) * 0.99) - 1]
            queries = f"{len(QUERIES):,} queries" if "loop" not in name else ""
            print(
                f"  {name:<24} median {statistics.median(found):6.1f}  p99 {p99:6.1f}  max {found[-1]:6.1f}  {queries}"
            )
        without, with_waits = idle(task, broker, options.waits, 15)
        print(f"  idle: {without:.1f} commands/s without, {with_waits:.1f} with {options.waits:,} open waits")
    broker.purge()


if __name__ == "__main__":
    main()
