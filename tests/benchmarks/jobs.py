"""How many jobs per second are enqueued, and executed by one worker process, beside a bare loop of the same shape.

Run from the project's root: `python -m tests.benchmarks.jobs [--jobs N] [--threads N] [--rounds N] [--profile]`.
Uses the suite's settings: an embedded server and SQLite on disk, or DELAYQ_REDIS_URL and DATABASE_URL. No-op tasks,
default options: every job is a row, every result is kept, Django's signals are sent.
The bare loop has the same claim and acknowledgement in batches and the same number of threads, but no rows, leases that
are renewed, results, signals or time-outs: it is what Redis and Python's threads allow at most.
Prints a table; asserts nothing about time. On a small virtual machine, where each round trip wakes another processor,
the figures of one round differ by a factor of two: `taskset -c 0` in front makes them steady.
"""

import argparse
import cProfile
import pstats
import queue
import statistics
import threading
import time
from typing import Any

from tests.benchmarks import set_up

CLAIM = """
local members = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[3])
if #members == 0 then return {{}, {}} end
local scores = {}
for i, member in ipairs(members) do scores[2 * i - 1], scores[2 * i] = ARGV[2], member end
redis.call('ZADD', KEYS[1], unpack(scores))
return {members, redis.call('HMGET', KEYS[2], unpack(members))}
"""
DONE = """
redis.call('ZREM', KEYS[1], unpack(ARGV))
redis.call('HDEL', KEYS[2], unpack(ARGV))
"""
BATCH = 100


def bare_loop(client: Any, prefix: str, jobs: int, threads: int) -> float:
    """Return the jobs per second of the simplest loop of our shape."""
    names = [f"{{{prefix}}}:z", f"{{{prefix}}}:h"]
    for at in range(0, jobs, 1000):
        client.zadd(names[0], {f"j{n}": 1 for n in range(at, min(jobs, at + 1000))})
        client.hset(names[1], mapping={f"j{n}": '["noop",[]]' for n in range(at, min(jobs, at + 1000))})
    claim, done = client.script_load(CLAIM), client.script_load(DONE)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def slot() -> None:
        while (member := inbox.get()) is not None:
            outbox.put(member)

    pool = [threading.Thread(target=slot, daemon=True) for _ in range(threads)]
    for thread in pool:
        thread.start()
    began, finished = time.perf_counter(), 0
    while finished < jobs:
        now = int(time.time() * 1000)
        members, _ = client.evalsha(claim, 2, *names, now, now + 30_000, BATCH)
        for member in members:
            inbox.put(member)
        ended = [outbox.get() for _ in members]
        client.evalsha(done, 2, *names, *ended)
        finished += len(ended)
    seconds = time.perf_counter() - began
    for _ in pool:
        inbox.put(None)
    return jobs / seconds


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


def work(threads: int, profile: cProfile.Profile | None) -> tuple[int, float, float]:
    """Run what is there; return (jobs, jobs per second, µs of processor time per job)."""
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    worker = Worker(WorkerOptions(queues=("default",), threads=threads, burst=True))
    used, began = time.process_time(), time.perf_counter()
    if profile:
        profile.runcall(worker.run)
    else:
        worker.run()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    return worker.runs, worker.runs / seconds, used / max(worker.runs, 1) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()

    prefix = set_up()
    from django_delayq.broker import Broker
    from tests.app.tasks import noop

    broker = Broker(timeout_seconds=5)
    noop.enqueue()  # connects, and reads the registry
    work(options.threads, None)
    profile = cProfile.Profile() if options.profile else None
    rows = []
    for _ in range(options.rounds):
        bare = bare_loop(broker.client, prefix, options.jobs, options.threads)
        single = one_by_one(noop, options.jobs // 4)
        together = many(noop, options.jobs)
        done, speed, used = work(options.threads, profile)
        assert done == options.jobs + options.jobs // 4
        rows.append((bare, single, together, speed, used))
        print("  ".join(f"{value:,.0f}" for value in rows[-1]))
        broker.purge()
    bare, single, together, speed, used = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"medians of {options.rounds} rounds of {options.jobs:,} jobs:")
    print(f"  {'bare loop, ' + str(options.threads) + ' threads':<34} {bare:>9,.0f} jobs/s")
    print(f"  {'one worker, ' + str(options.threads) + ' threads':<34} {speed:>9,.0f} jobs/s  {speed / bare:.0%} of it")
    print(f"  {'processor time per job':<34} {used:>9,.0f} us")
    print(f"  {'enqueue one by one':<34} {single:>9,.0f} jobs/s")
    print(f"  {'enqueue_many':<34} {together:>9,.0f} jobs/s")
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    broker.client.delete(f"{{{prefix}}}:z", f"{{{prefix}}}:h")


if __name__ == "__main__":
    main()
