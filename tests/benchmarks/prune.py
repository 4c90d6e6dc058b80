"""How many rows of the ledger are pruned a second, with a worker's rests and without, and how long a lock lasts.

Run from the project's root, with an empty PostgreSQL database in DATABASE_URL:
`python -m tests.benchmarks.prune [--schedules N] [--rows N]`. Each schedule has so many old rows, made by SQL. Prints a
table; asserts nothing about time. What recording loses to it meanwhile tells `herd --history-days`.
"""

import argparse
import time
from datetime import UTC, datetime, timedelta
from statistics import median

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


def prepare(name: str, schedules: int, rows: int) -> None:
    """Make schedules with so many old rows each."""
    from django.db import connection

    from django_delayq.models import Schedule, ScheduleState

    found = Schedule.objects.bulk_create(
        [
            Schedule(name=f"{name} {n}", task="tests.app.tasks.noop", kind="every", every=timedelta(hours=1))
            for n in range(schedules)
        ],
        batch_size=1000,
    )
    ScheduleState.objects.filter(schedule__name__startswith=name).delete()
    now = datetime.now(UTC)
    ScheduleState.objects.bulk_create([ScheduleState(schedule=row, last_due_at=now) for row in found], batch_size=1000)
    with connection.cursor() as cursor:
        cursor.execute(HISTORY, [1, rows, f"{name} %"])
        cursor.execute("VACUUM ANALYZE")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=100, help="old rows of each schedule")
    options = parser.parse_args()
    set_up()
    from django.conf import settings
    from django.test.utils import override_settings

    from django_delayq import ledger, pruning
    from django_delayq.models import Run

    override_settings(DELAYQ={**settings.DELAYQ, "HISTORY_DAYS": 30}).enable()
    prune, taken = ledger.prune, list[float]()

    def timed(rows: list[ledger.OldRun]) -> ledger.Pruned:
        began = time.perf_counter()
        try:
            return prune(rows)
        finally:
            if rows:
                taken.append((time.perf_counter() - began) * 1000)

    ledger.prune = timed  # type: ignore[assignment]
    for rests in (pruning.RESTS, 0.0):
        prepare(f"rests {rests}", options.schedules, options.rows)
        began, before = time.perf_counter(), Run.objects.count()
        for _ in pruning.prune_batches(rests=rests):
            pass
        seconds, count = time.perf_counter() - began, before - Run.objects.count()
        print(
            f"{'with' if rests else 'without'} rests: {count:,} rows in {seconds:.1f} s, {count / seconds:,.0f} rows/s"
        )
        taken.sort()
        high = taken[int(len(taken) * 0.99)]
        print(f"  a transaction: median {median(taken):.1f} ms, 99% {high:.1f} ms, longest {taken[-1]:.1f} ms")
        taken.clear()


if __name__ == "__main__":
    main()
