"""What a process of its own costs a task: beside the same task without one, in one run.

Run from the project's root: `python -m tests.benchmarks.isolated [--rounds N] [--jobs N]`. Uses the suite's settings.
Warm: the process waits already; cold: it is started for the call; forked: what a fork of a process in which Django is
set up would cost instead, which is not done (DECISIONS.md says why). CPU is that of all processes that have ended.
Memory is the proportional set size (PSS), of Linux only. Prints a table; asserts nothing about time.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DELAYQ_TEST_SCRATCH", tempfile.mkdtemp(prefix="delayq-bench-"))
os.environ["DELAYQ_TEST_OPTIONS"] = json.dumps({"TASK_MODULES": ["tasks", "isolated_tasks"]})

from tests.benchmarks import set_up


def cpu() -> float:
    """Return the seconds of CPU of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measured(work: Callable[[], object], rounds: int, *, before: Callable[[], object] = lambda: None) -> list[float]:
    """Return the median of ms and of ms of CPU of one call."""
    found = []
    for _ in range(rounds):
        before()
        began, used = time.perf_counter(), cpu()
        work()
        found.append(((time.perf_counter() - began) * 1e3, (cpu() - used) * 1e3))
    return [statistics.median(values) for values in zip(*found, strict=True)]


def forked() -> None:
    """Fork, do nothing, and end as an interpreter does that knows no exit handlers."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def pss_mb(pid: int) -> float:
    """Return the MiB of a process, of what it shares its part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def work_off(jobs: int, task: Any, threads: int) -> float:
    """Return how many jobs per second one worker executes."""
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    task.enqueue_many([((), {})] * jobs)
    worker = Worker(WorkerOptions(queues=("default",), threads=threads, burst=True))
    began = time.perf_counter()
    worker.run()
    assert worker.runs == jobs
    return jobs / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    set_up()
    from django_delayq import registry
    from django_delayq.isolation import isolation_of
    from django_delayq.worker import isolated
    from tests.app.tasks import noop
    from tests.faults.isolated_tasks import leak

    registry.get_tasks()
    held: Any = SimpleNamespace(title="", labels={}, output=None, limit=None, stopped_by=None, lost=False)
    asked: Any = isolation_of(leak)
    rows = {"forked (not done)": measured(forked, options.rounds), "in the worker": measured(noop.call, options.rounds)}
    with isolated.opened():
        ready: dict[int, float] = {}

        def wait() -> None:
            pid = isolated._waiting[0].process._guard.pid
            ready[pid] = pss_mb(pid)
            time.sleep(0.2)
            while isolated._waiting[0]._channel.recv(1, 0x2 | 0x40) == b"":  # MSG_PEEK | MSG_DONTWAIT
                time.sleep(0.05)

        def until_ready() -> None:
            while True:
                try:
                    return wait()
                except BlockingIOError:
                    time.sleep(0.05)

        def call() -> None:
            isolated.call(held, leak, asked, [], {})

        rows["warm"] = measured(call, options.rounds, before=until_ready)
        until_ready()
        guard = isolated._waiting[0].process._guard.pid
        child = int(Path(f"/proc/{guard}/task/{guard}/children").read_text().split()[0])
        memory = pss_mb(guard), pss_mb(child)
        isolated._waiting.pop().close()

        def cold() -> None:
            made = isolated.Elsewhere()
            message = {"task": leak.module_path, "args": [], "kwargs": {}, "context": None, "title": "", "labels": {}}
            made.execute(held, isolated.encode({**message, "memory_mb": None, "heard": False, "trace": {}}))

        rows["cold"] = measured(cold, options.rounds)
        rates = {
            name: work_off(options.jobs, task, options.threads) for name, task in (("isolated", leak), ("not", noop))
        }
    print("| a call … | ms | ms of CPU |\n|---|---|---|")
    for name, (ms, used) in rows.items():
        print(f"| {name} | {ms:,.2f} | {used:,.1f} |")
    print(f"one that waits: {memory[1]:.0f} MiB, its guard {memory[0]:.0f} MiB (PSS)")
    print(f"jobs per second, {options.threads} threads: {rates['isolated']:.2f} isolated, {rates['not']:,.0f} not")


if __name__ == "__main__":
    main()
