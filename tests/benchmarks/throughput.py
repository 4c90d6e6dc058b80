"""How many no-op due points one worker process records per second, and where the time goes.

Run from the project's root: `python -m tests.benchmarks.throughput [--points N] [--threads N]`.
Uses the suite's settings: an embedded server and SQLite on disk, or DELAYQ_REDIS_URL and DATABASE_URL.
Prints a table; asserts nothing about time.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.benchmarks import set_up

PREPARING = "preparing"
SPENT: dict[str, float] = defaultdict(float)
CALLS: dict[str, int] = defaultdict(int)


def timed(owner: Any, name: str, label: str) -> None:
    """Measure every call of a function in the loop's thread."""
    function: Callable[..., Any] = getattr(owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[label] += time.perf_counter() - began
            CALLS[label] += 1

    setattr(owner, name, wrapper)


def prepare(points: int) -> None:
    """Create the schedules, each with one point that came due a second ago."""
    from django_delayq.models import Schedule

    made = datetime.now(UTC) - timedelta(hours=1, seconds=1)
    rows = [
        Schedule(
            name=f"bench {n}", task="tests.app.tasks.noop", kind="every", every=timedelta(hours=1), created_at=made
        )
        for n in range(points)
    ]
    Schedule.objects.bulk_create(rows, batch_size=1000)
    Schedule.objects.update(effective_from=made)


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()

    set_up()
    from django_delayq import conf, ledger, sync
    from django_delayq.calls.capture import capture_output
    from django_delayq.index import Broker
    from django_delayq.models import Run
    from django_delayq.worker import trip, upkeep
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    prepare(options.points)
    for owner, name, label in (
        (Broker, "claim", "claim (Redis)"),
        (trip, "judge", "definitions and policies"),
        (ledger, "record", "ledger (database)"),
        (Broker, "settle", "settle (Redis)"),
        (upkeep.Upkeep, "begin", PREPARING),
    ):
        timed(owner, name, label)
    worker = Worker(WorkerOptions(queues=("default",), threads=options.threads, burst=True))
    began = time.perf_counter()
    sync.rebuild(worker.broker, worker.shards)
    print(f"rebuild of {options.points} schedules: {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    with capture_output(conf.get_config().max_output_bytes):  # as the command does
        worker.run()
    seconds = time.perf_counter() - began - SPENT.pop(PREPARING)  # the sweep that comes before all work
    done = Run.objects.finished().count()
    report(options, done, seconds)
    Broker(timeout_seconds=5).purge()


def report(options: argparse.Namespace, done: int, seconds: float) -> None:
    """Print the table."""
    print(f"{done} points recorded in {seconds:.2f} s by one process with {options.threads} threads:")
    print(f"  {done / seconds:,.0f} points/s")
    for label, spent in sorted(SPENT.items(), key=lambda item: -item[1]):
        each = spent / max(done, 1) * 1e6
        print(f"  {label:<26} {spent:6.2f} s  {spent / seconds:5.0%}  {each:6.0f} us/point  {CALLS[label]:5} calls")
    rest = seconds - sum(SPENT.values())
    print(f"  {'execution and the rest':<26} {rest:6.2f} s  {rest / seconds:5.0%}")


if __name__ == "__main__":
    main()
