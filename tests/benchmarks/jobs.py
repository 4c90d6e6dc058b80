"""How many jobs per second are enqueued, beside what cannot be done without, and executed by one worker process.

Run from the project's root: `python -m tests.benchmarks.jobs [--jobs N] [--threads N] [--rounds N]`.
Uses the suite's settings: an embedded server and SQLite on disk, or DELAYQ_REDIS_URL and DATABASE_URL. No-op tasks.
"Bare" is an INSERT of the same columns beside three indexes, and a script that adds to a sorted set and a hash.
Prints a table; asserts nothing about time. On a small virtual machine `taskset -c 0` in front makes it steady.
"""

import argparse
import secrets
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tests.benchmarks import set_up

SCRIPT = "for i = 1, #ARGV do redis.call('ZADD', KEYS[1], 1, ARGV[i]) redis.call('HSET', KEYS[2], ARGV[i], 1) end"


def bare(broker: Any) -> Callable[[int], None]:
    """Return what inserts so many rows like that of the newest job, and tells Redis of them once."""
    from django.db import connection, transaction

    from django_delayq.index.keys import Shard, build_keys
    from django_delayq.ledger.jobs import NEW_JOB
    from django_delayq.models import Run

    postgresql, names = connection.vendor == "postgresql", [Run._meta.get_field(name).column for name in NEW_JOB]
    newest = f"FROM {Run._meta.db_table} ORDER BY id DESC LIMIT"
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS bare")
        cursor.execute(f"CREATE TABLE bare AS SELECT {', '.join(names)} {newest} 0")
        for of in ("status, due_at", "queue, due_at", "token"):
            cursor.execute(f"CREATE INDEX bare_{of[:5]} ON bare ({of})")
        if postgresql:
            cursor.execute("ALTER TABLE bare ADD id bigserial PRIMARY KEY")
        # SQLite's driver converts no value of an expression: it comes as it is stored.
        cursor.execute(f"SELECT {', '.join(names) if postgresql else '+' + ', +'.join(names)} {newest} 1")
        row = list(cursor.fetchone())
    sql = f"INSERT INTO bare ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(row))})"  # noqa: S608
    token, script = NEW_JOB.index("token"), broker.client.register_script(SCRIPT)
    parts = build_keys(broker.config.prefix, Shard("bare", 0))  # which `purge` takes along

    def enqueue(count: int) -> None:
        members = []
        for _ in range(count):
            row[token] = secrets.token_urlsafe(16)
            with connection.cursor() as cursor:
                cursor.execute(f"{sql} RETURNING id" if postgresql else sql, row)
                members.append(f"j{cursor.fetchone()[0] if postgresql else cursor.lastrowid}")
        transaction.on_commit(lambda: script(keys=[parts["due"], parts["point"]], args=members))

    return enqueue


def enqueue(call: Callable[[int], object], jobs: int, *, at_once: int = 1) -> float:
    """Return how many jobs per second are enqueued in calls, or transactions, of so many."""
    from django.db import transaction

    began = time.perf_counter()
    for _ in range(jobs // at_once):
        with transaction.atomic() if at_once > 1 else nullcontext():
            call(at_once)
    return jobs / (time.perf_counter() - began)


def work(threads: int) -> tuple[int, float, float]:
    """Run what is there; return (jobs, jobs per second, µs of processor time per job)."""
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    worker = Worker(WorkerOptions(queues=("default",), threads=threads, burst=True))
    used, began = time.process_time(), time.perf_counter()
    worker.run()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return worker.recorder.runs, worker.recorder.runs / seconds, used / max(worker.recorder.runs, 1) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    set_up()
    from django_delayq.index import Broker
    from tests.app.tasks import noop

    broker, few = Broker(timeout_seconds=5), options.jobs // 4
    noop.enqueue()  # connects, and reads the registry
    calls = bare(broker), lambda count: [noop.enqueue() for _ in range(count)]
    work(options.threads)
    rows = []
    for _ in range(options.rounds):
        single, hundreds = ([enqueue(call, few, at_once=count) for call in calls] for count in (1, 100))
        together = enqueue(lambda count: noop.enqueue_many([((), {})] * count), options.jobs, at_once=options.jobs)
        done, speed, used = work(options.threads)
        assert done == options.jobs + few + few // 100 * 100
        rows.append((speed, used, together, *single, *hundreds))
        print("  ".join(f"{value:,.0f}" for value in rows[-1]))
        broker.purge()
    speed, used, together, *enqueued = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"medians of {options.rounds} rounds of {options.jobs:,} jobs:")
    print(f"  {'one worker, ' + str(options.threads) + ' threads':<34} {speed:>9,.0f} jobs/s")
    print(f"  {'processor time per job':<34} {used:>9,.0f} us")
    print(f"  {'enqueue_many':<34} {together:>9,.0f} jobs/s")
    for name, least_of, ours in (("one by one", *enqueued[:2]), ("in transactions of 100", *enqueued[2:])):
        print(f"  {'enqueue ' + name:<34} {ours:>9,.0f} jobs/s, {ours / least_of:.2f} of bare")


if __name__ == "__main__":
    main()
