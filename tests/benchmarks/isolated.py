"""What a process of its own costs a task: beside the same task without one, in one run.

Run from the project's root: `python -m tests.benchmarks.isolated [--rounds N] [--jobs N]`. Uses the suite's settings.
Forked: what a fork of a process in which Django is set up would cost instead, which is not done (DECISIONS.md says
why). CPU is that of all processes that have ended. Prints a table; asserts nothing about time.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("DELAYQ_TEST_SCRATCH", tempfile.mkdtemp(prefix="delayq-bench-"))
os.environ["DELAYQ_TEST_OPTIONS"] = json.dumps({"TASK_MODULES": ["tasks", "isolated_tasks"]})

from tests.benchmarks import set_up


def cpu() -> float:
    """Return the seconds of CPU of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measured(work: Callable[[], object], rounds: int) -> list[float]:
    """Return the median of ms and of ms of CPU of one call."""
    found = []
    for _ in range(rounds):
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


def work_off(jobs: int, task: Any, threads: int) -> float:
    """Return how many jobs per second one worker executes."""
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    task.enqueue_many([((), {})] * jobs)
    worker = Worker(WorkerOptions(queues=("default",), threads=threads, burst=True))
    began = time.perf_counter()
    worker.run()
    assert worker.recorder.runs == jobs
    return jobs / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    set_up()
    from django_delayq.calls import registry
    from django_delayq.calls.isolation import MARK
    from django_delayq.ledger.rows import RunRow
    from django_delayq.worker import isolated
    from tests.app.tasks import noop
    from tests.faults.isolated_tasks import leak

    registry.get_tasks()
    now = datetime.now(UTC)
    run = RunRow.build_job(leak.module_path, "default", "default", now, "", created_at=now, started_at=now, attempt=1)
    call = SimpleNamespace(run=run, schedule=None)
    held: Any = SimpleNamespace(outcome=call, output=None, limit=None, stopped_by=None, lost=False)
    asked: Any = getattr(leak.func, MARK)
    rows = {"forked (not done)": measured(forked, options.rounds), "in the worker": measured(noop.call, options.rounds)}
    rows["isolated"] = measured(lambda: isolated.call(held, asked), options.rounds)
    rates = {name: work_off(options.jobs, task, options.threads) for name, task in (("isolated", leak), ("not", noop))}
    print("| a call … | ms | ms of CPU |\n|---|---|---|")
    for name, (ms, used) in rows.items():
        print(f"| {name} | {ms:,.2f} | {used:,.1f} |")
    print(f"jobs per second, {options.threads} threads: {rates['isolated']:.2f} isolated, {rates['not']:,.0f} not")


if __name__ == "__main__":
    main()
