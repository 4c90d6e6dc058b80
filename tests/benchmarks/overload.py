"""What one worker does where more falls due than it can do: executions, explained points and waits by policy.

Run from the project's root: `python -m tests.benchmarks.overload [--schedules N] [--seconds S] [--threads N]`.
Each schedule is due every second. Uses the suite's settings: an embedded server and SQLite on disk, or DELAYQ_REDIS_URL
and DATABASE_URL. Prints a table, with the executions as a share of those of `missed = all`; asserts nothing about time.
"""

import argparse
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta

from tests.benchmarks import set_up

#: overlap and missed; the first one is what the others are compared with.
POLICIES = (
    ("queue_all", "all"),
    ("skip", "latest"),
    ("queue_one", "latest"),
    ("queue_all", "latest"),
    ("skip", "skip"),
)


def prepare(count: int, overlap: str, missed: str) -> datetime:
    """Make the schedules anew, with nothing behind them; return when they begin."""
    from django_delayq.models import Run, Schedule, ScheduleState

    for model in (Run, ScheduleState, Schedule):
        model._base_manager.all().delete()
    begin = datetime.now(UTC)
    values = {"task": "tests.app.tasks.noop", "kind": "every", "every": timedelta(seconds=1), "created_at": begin}
    rows = [Schedule(name=f"s{n}", overlap=overlap, missed=missed, **values) for n in range(count)]
    Schedule.objects.bulk_create(rows, batch_size=1000)
    Schedule.objects.update(effective_from=begin)
    return begin


def play(threads: int, seconds: float) -> tuple[datetime, datetime]:
    """Run one worker for so long; return from when to when it claimed."""
    from django_delayq import mirror
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    worker = Worker(WorkerOptions(queues=("default",), threads=threads))
    mirror.rebuild(worker.broker, worker.shards)
    begin = datetime.now(UTC)
    timer = threading.Timer(seconds, worker.stop)
    timer.start()
    worker.run()
    timer.join()
    return begin, datetime.now(UTC)


def measure(count: int, begin: datetime, end: datetime) -> tuple[int, int, float, int]:
    """Return executions, explained points, the longest wait of a schedule for an execution, schedules without any."""
    from django_delayq.models import Run

    started = defaultdict(list)
    points = 0
    for pk, number, at in Run.objects.finished().values_list("schedule", "points", "started_at"):
        points += number
        if at is not None:
            started[pk].append(at)
    waits = [
        max(b - a for a, b in zip([begin, *times], [*times, end], strict=True))
        for times in map(sorted, started.values())
    ]
    return (
        sum(map(len, started.values())),
        points,
        max(waits, default=end - begin).total_seconds(),
        count - len(started),
    )


def main() -> None:
    """Measure each policy and print a line about it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()

    set_up()
    from django.db import connection

    from django_delayq.broker import Broker

    print(f"{options.schedules} schedules each second, one worker, {options.seconds:g} s, {connection.vendor}")
    heads = ("overlap", "missed", "executions", "per s", "share", "points", "longest wait", "never")
    print("{:<10} {:<7} {:>11} {:>6} {:>6} {:>8} {:>13} {:>6}".format(*heads))
    most = 0
    for overlap, missed in POLICIES:
        prepare(options.schedules, overlap, missed)
        began = time.perf_counter()
        times = play(options.threads, options.seconds)
        seconds = time.perf_counter() - began
        executions, points, wait, never = measure(options.schedules, *times)
        most = most or executions
        print(
            f"{overlap:<10} {missed:<7} {executions:>11,} {executions / seconds:>6,.0f} "
            f"{executions / max(most, 1):>6.0%} {points:>8,} {wait:>11.1f} s {never:>6}",
            flush=True,
        )
        Broker(timeout_seconds=5).purge()


if __name__ == "__main__":
    main()
