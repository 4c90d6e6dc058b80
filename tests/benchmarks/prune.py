"""How many rows of the ledger are pruned a second, how long a lock lasts, and what recording loses to it meanwhile.

Run from the project's root, with an empty PostgreSQL database in DATABASE_URL: `python -m tests.benchmarks.prune
[--schedules N] [--rows N] [--threads N] [--rounds N]`. Each schedule has so many old rows, made by SQL, and one point
that is due. One worker records the points: alone, while a thread of its process prunes the same schedules' rows, as
its own sweeping thread would, and while another process does (`delayq_prune`). Prints tables; asserts nothing about
time.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from tests.benchmarks import set_up

HISTORY = """
    INSERT INTO django_delayq_run (schedule_id, schedule_name, task, queue, generation, origin, apart, due_at, status,
        reason, attempt, reclaims, fence, claimed_at, started_at, finished_at, worker, error, points, created_at)
    SELECT s.id, s.name, s.task, s.queue, s.generation, 'due', false, t, 'succeeded', '', 1, 0, '1.bench', t, t,
        t + interval '1 second', 'bench:1', '', 1, t
    FROM django_delayq_schedule s, generate_series(%s, %s) n,
        LATERAL (SELECT now() - interval '400 days' + n * interval '1 hour' AS t) x
    WHERE s.name LIKE %s
"""
#: How long each transaction of pruning took, in ms.
LOCKS: list[float] = []


def prepare(name: str, schedules: int, rows: int) -> None:
    """Make schedules with so many old rows each, and a point that came due a second ago."""
    from django.db import connection

    from django_delayq.models import Schedule, ScheduleState

    made = (datetime.now(UTC) - timedelta(hours=1, seconds=1)).replace(microsecond=0)
    values: dict[str, Any] = {"task": "tests.app.tasks.noop", "kind": "every", "every": timedelta(hours=1)}
    found = Schedule.objects.bulk_create(
        [Schedule(name=f"{name} {n}", created_at=made, **values) for n in range(schedules)], batch_size=1000
    )
    Schedule.objects.filter(name__startswith=name).update(effective_from=made)
    ScheduleState.objects.filter(schedule__name__startswith=name).delete()
    states = [ScheduleState(schedule=row, last_due_at=made, next_due_at=made + values["every"]) for row in found]
    ScheduleState.objects.bulk_create(states, batch_size=1000)
    with connection.cursor() as cursor:
        cursor.execute(HISTORY, [1, rows, f"{name} %"])
        cursor.execute("VACUUM ANALYZE")


def record(threads: int, beside: Callable[[], None] | None = None) -> tuple[float, int]:
    """Run what is due in one worker; return (points a second, rows pruned meanwhile)."""
    from django_delayq import mirror
    from django_delayq.models import Run
    from django_delayq.pruning import LastPass
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions

    worker = Worker(WorkerOptions(queues=("default",), threads=threads, burst=True))
    last = LastPass(mirror.fingerprint(), worker.broker.now_ms(), after=None)
    worker.broker.note_pruning(json.dumps(asdict(last)))  # so that it prunes nothing itself
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    worker.upkeep.begin = lambda **_: None  # type: ignore[method-assign]
    helper = threading.Thread(target=beside) if beside else None
    if helper:
        helper.start()
        time.sleep(0.2 if beside is in_a_thread else 2.5)  # until it prunes
    before, began = Run.objects.count(), time.perf_counter()
    worker.run()
    seconds, done = time.perf_counter() - began, worker.runs
    pruned = before + done - Run.objects.count()
    STOP.set()
    if helper:
        helper.join()
    STOP.clear()
    return done / seconds, pruned


STOP = threading.Event()


def in_a_thread() -> None:
    """Prune until it is all gone or the worker has ended."""
    from django.db import connections

    from django_delayq import pruning

    for _ in pruning.prune_batches(rests=pruning.RESTS):
        if STOP.is_set():
            break
    connections.close_all()


def in_a_process() -> None:
    """Prune as a person does, with the settings of this process."""
    code = (
        "from tests.benchmarks.prune import configure; configure(False); "
        "from django.core.management import call_command; call_command('delayq_prune')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    while process.poll() is None and not STOP.wait(0.05):
        pass
    process.kill()
    process.wait()


def configure(anew: bool = True) -> None:
    """Set Django up, with a history of 30 days, and have `ledger.prune` measured."""
    if anew:
        set_up()
    else:
        import django

        django.setup()
    from django.conf import settings
    from django.test.utils import override_settings

    from django_delayq import ledger

    override_settings(DELAYQ={**settings.DELAYQ, "HISTORY_DAYS": 30}).enable()
    prune = ledger.prune

    def timed(rows: Any) -> Any:
        began = time.perf_counter()
        try:
            return prune(rows)
        finally:
            if rows:
                LOCKS.append((time.perf_counter() - began) * 1000)

    ledger.prune = timed  # type: ignore[assignment]


def clear() -> None:
    """Leave nothing to the next measurement."""
    from django_delayq.broker import Broker
    from django_delayq.models import Run, Schedule, ScheduleState, Tombstone

    for model in (Run, ScheduleState, Schedule, Tombstone):
        model._base_manager.all()._raw_delete("default")
    Broker(timeout_seconds=5).purge()


def told(what: str) -> str:
    """Return how long the transactions of pruning took, and forget them."""
    ordered = sorted(LOCKS) or [0.0]
    LOCKS.clear()
    high = ordered[int(len(ordered) * 0.99)]
    return f"{what}: median {median(ordered):.1f} ms, 99% {high:.1f} ms, longest {ordered[-1]:.1f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=100, help="old rows of each schedule")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    configure()
    from django_delayq import pruning
    from django_delayq.models import Run

    for rests in (pruning.MOST_REST_SECONDS, 0.0):
        prepare(f"alone {rests}", options.schedules, options.rows)
        pruning.MOST_REST_SECONDS, kept = rests, pruning.MOST_REST_SECONDS
        began, before = time.perf_counter(), Run.objects.count()
        in_a_thread()
        seconds, count = time.perf_counter() - began, before - Run.objects.count()
        pruning.MOST_REST_SECONDS = kept
        name = "with rests" if rests else "without rests"
        print(f"pruned alone, {name}: {count:,} rows in {seconds:.1f} s, {count / seconds:,.0f} rows/s")
        print("  " + told("a transaction"), flush=True)
        clear()
    ways: dict[str, Callable[[], None] | None] = {
        "nobody prunes": None, "its own process prunes": in_a_thread, "another process prunes": in_a_process,
    }  # fmt: skip
    for number in range(options.rounds):
        for name, beside in ways.items():
            prepare(f"{name} {number}", options.schedules, options.rows)
            speed, pruned = record(options.threads, beside)
            longest = f"; {told('a transaction')}" if beside is in_a_thread else ""
            print(f"{speed:7,.0f} points/s, {name} ({pruned:,} rows meanwhile{longest})", flush=True)
            clear()


if __name__ == "__main__":
    main()
