"""How long writes of many schedules take, and how long until running worker processes have brought them into Redis.

Run from the project's root: `python -m tests.benchmarks.bulk [--rows N] [--created N] [--part N] [--workers N]`.
Uses the suite's settings with a server of its own, and SQLite on disk
or DATABASE_URL, whose tables must be empty, or are those of an earlier run: then nothing is created, and they are
mirrored first. `bulk_create` makes the first rows, SQL copies the others from them, because Python's validation of a
million takes longer than all the rest. Each step writes `--part` of them. "call" is how long the caller waited, with
what is done after his commit; "mirrored" how long it took after that until nothing was left to be mirrored, and all
entries were there or gone by their number. Meanwhile a request saves one schedule over and over; its times say whether
anybody waits. Prints figures; asserts nothing about time, but that Redis agrees at the end.
"""

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tests.benchmarks import rebuild
from tests.benchmarks.rebuild import due_meanwhile
from tests.benchmarks.servers import Usage, note_chores_done, redis_of_its_own, running_workers

SAVE_EVERY_SECONDS = 0.1


@contextmanager
def saving() -> Iterator[list[float]]:
    """Edit one schedule again and again meanwhile; the list gets how long each `save()` took, in seconds."""
    from django.db import connections

    from django_delayq.models import Schedule

    taken: list[float] = []
    end = threading.Event()
    one = Schedule.objects.get_or_create(
        name="the request's", defaults={"task": "tests.app.tasks.noop", "kind": "cron", "cron": "0 0 1 1 *"}
    )[0]

    def save() -> None:
        while not end.wait(SAVE_EVERY_SECONDS):
            began = time.perf_counter()
            one.description = str(began)
            one.save()
            taken.append(time.perf_counter() - began)
        connections.close_all()

    thread = threading.Thread(target=save)
    thread.start()
    try:
        yield taken
    finally:
        end.set()
        thread.join()


class Bench:
    """Makes the steps, each in the state in which the one before has left the tables."""

    def __init__(self, options: argparse.Namespace, broker: Any, pids: list[int]) -> None:
        self.options, self.broker, self.pids = options, broker, pids

    def step(self, name: str, write: Callable[[], Any], *, sweep: bool = False) -> None:
        """Write, wait and print; `sweep`: make the full sweep that is due within ten minutes else."""
        from django_delayq import sync
        from django_delayq.models import Schedule, Tombstone

        note_chores_done(self.broker)
        usage, began_at = Usage(self.pids), datetime.now(UTC)

        def is_mirrored() -> bool:
            left = list(Schedule.objects.unmirrored().order_by("generation").values_list("pk")[:1])
            return not left and not Tombstone.objects.exists() and sync.count_differences(self.broker).total == 0

        with saving() as saves:
            began = time.monotonic()
            write()
            call = time.monotonic() - began
            if sweep:
                sync.sweep_now(self.broker)
            while not is_mirrored():
                time.sleep(0.2)
            mirrored = time.monotonic() - began - call
        print(f"{name}: call {call:.1f} s, mirrored {mirrored:.1f} s; workers: {usage}")
        median, longest = (sorted(saves)[len(saves) // 2], max(saves)) if saves else (0, 0)
        print(f"  {len(saves)} saves meanwhile: median {median * 1000:.0f} ms, longest {longest:.1f} s")
        print(f"  {due_meanwhile(began_at, datetime.now(UTC))}", flush=True)

    def create(self) -> None:
        """Fill the empty tables."""
        from django_delayq.models import Schedule

        options = self.options
        new = rebuild.definitions(options.created, options.rows // rebuild.BUSY, different=True)
        self.step(f"bulk_create of {options.created}", lambda: Schedule.objects.bulk_create(new, batch_size=1000))
        last = Schedule.objects.exclude(name="the request's").latest("pk").pk
        copies = range(1, options.rows // options.created)
        if copies:
            rows = options.rows - options.created
            self.step(f"INSERT of {rows} by SQL", lambda: rebuild.copy(last, copies, different=True))

    def rest(self) -> None:
        """Edit and delete."""
        from django_delayq.models import Schedule

        count = self.options.part
        first = Schedule.objects.filter(name__startswith="bench").earliest("pk").pk
        half = count // 2
        paused, edited, deleted = (
            Schedule.objects.filter(pk__range=span(first + n * count, count), name__startswith="bench")
            for n in range(3)
        )
        ends, gone = span(first + 3 * count, count), first + 4 * count
        values = {"kind": "cron", "cron": "7 3 * * *", "every": None, "at": None}
        ones, others = span(gone, half), span(gone + half, half)
        self.step(f"update(enabled=False) of {count}", lambda: paused.update(enabled=False))
        self.step(f"update(enabled=True) of {count}", lambda: paused.update(enabled=True))
        self.step(f"update(cron=…) of {count}", lambda: edited.update(**values))
        self.step(f"delete() of {count}", deleted.delete)
        self.step(f"UPDATE of {count} by SQL, full sweep", lambda: update_by_sql(ends, "3"), sweep=True)
        self.step(f"UPDATE of {count} by SQL that marks them", lambda: update_by_sql(ends, "4", mark=True))
        self.step(f"DELETE of {half} by SQL, full sweep", lambda: delete_by_sql(ones), sweep=True)
        self.step(f"DELETE of {half} by SQL with tombstones", lambda: delete_by_sql(others, mark=True))


def span(first: int, count: int) -> tuple[int, int]:
    """Return the first and the last of so many primary keys."""
    return first, first + count - 1


def update_by_sql(ends: tuple[int, int], hour: str, *, mark: bool = False) -> None:
    """Edit as `psql` would."""
    from django.db import connection

    more = ", generation = generation + 1" if mark else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE django_delayq_schedule SET kind = 'cron', cron = '7 {hour} * * *', every = NULL, at = NULL{more} "  # noqa: S608
            "WHERE id BETWEEN %s AND %s AND name LIKE 'bench%%'",
            ends,
        )


def delete_by_sql(ends: tuple[int, int], *, mark: bool = False) -> None:
    """Delete as `psql` would."""
    from django.db import connection, transaction

    which = "id BETWEEN %s AND %s AND name LIKE 'bench%%'"
    chosen = f"SELECT id FROM django_delayq_schedule WHERE {which}"  # noqa: S608
    with transaction.atomic(), connection.cursor() as cursor:
        if mark:
            cursor.execute(
                "INSERT INTO django_delayq_tombstone (member, queue, generation, created_at) "  # noqa: S608
                f"SELECT 's' || id, queue, generation + 1, CURRENT_TIMESTAMP FROM django_delayq_schedule WHERE {which}",
                ends,
            )
        cursor.execute(f"DELETE FROM django_delayq_schedulestate WHERE schedule_id IN ({chosen})", ends)  # noqa: S608
        cursor.execute(f"DELETE FROM django_delayq_schedule WHERE {which}", ends)  # noqa: S608


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--created", type=int, default=50_000, help="so many of them by bulk_create")
    parser.add_argument("--part", type=int, default=100_000, help="so many are edited or deleted in each step")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    with redis_of_its_own(shards=1, cluster=False):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Make all steps."""
    from django_delayq import sync
    from django_delayq.index import Broker
    from django_delayq.models import Schedule

    broker = Broker(timeout_seconds=30)
    sync.check_layout(broker)
    sync.rebuild(broker, broker.list_shards())
    note_chores_done(broker)
    with running_workers(broker, options.workers) as pids:
        bench = Bench(options, broker, pids)
        if not Schedule.objects.filter(name__startswith="bench").exists():
            bench.create()
        bench.rest()
    began = time.monotonic()
    report = sync.sweep_fully(broker, dry_run=True)
    print(f"compared in {time.monotonic() - began:.1f} s: {report.checked} entries, {len(report.lines)} differ")
    if report.lines:
        raise SystemExit("\n".join(report.lines[:10]))


if __name__ == "__main__":
    main()
