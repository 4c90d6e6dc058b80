"""How long running worker processes take to rebuild Redis after a FLUSHALL, while they also run what is due.

Run from the project's root: `python -m tests.benchmarks.rebuild [--schedules N] [--shards N] [--cluster]
[--workers 1 2] [--different]`. Uses the suite's settings with a server of its own, or a cluster of three
primaries, and SQLite on disk or DATABASE_URL, whose tables must be empty, or are those of an earlier run and taken as
they are. Prints figures; asserts nothing about time, but that every entry is back as it should be.
"""

import argparse
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.benchmarks.servers import (
    Usage,
    note_chores_done,
    redis_of_its_own,
    running_workers,
    scripts_and_pings,
    servers_of,
    wait_for,
)

ZONES = ("UTC", "Europe/Riga", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo")
#: So many, spread over all, come due every second: what is claimed while the rebuild runs.
BUSY = 20
#: At most 60 times as many: each copy begins its cron expressions with another minute, where they are to differ.
BASE = 20_000


def prepare(schedules: int, *, different: bool) -> None:
    """Create schedules of all kinds; the first BASE of them are copied in SQL."""
    from django_delayq.models import Schedule

    base = min(schedules, BASE)
    copies = schedules // base
    rows = definitions(base, base * copies // BUSY, different=different)
    Schedule.objects.bulk_create(rows, batch_size=1000)
    copy(Schedule.objects.latest("pk").pk, range(1, copies), different=different)


def definitions(count: int, busy: int, *, different: bool) -> list[Any]:
    """Return six of ten with cron expressions in several zones, three intervals, one a single point.

    One of `busy` comes due every second.
    """
    from django_delayq.models import Schedule

    now, rows = datetime.now(UTC), []
    for n in range(count):
        values: dict[str, Any] = {"name": f"bench {n}", "task": "tests.app.tasks.noop"}
        if n % busy == 0:
            values |= {"kind": "every", "every": timedelta(seconds=1)}
        elif n % 10 < 6:
            times = f"{n % 60},{n // 60 % 60} {n // 3600}" if different else f"{n % 60} {n % 24}"
            days = "*" if n % 3 else "1-5"
            values |= {"kind": "cron", "cron": f"{times} * * {days}", "timezone": ZONES[n % len(ZONES)]}
        elif n % 10 < 9:
            jitter = timedelta(seconds=10 if n % 2 else 0)
            values |= {"kind": "every", "every": timedelta(minutes=60 + n % 600), "jitter": jitter}
        else:
            values |= {"kind": "once", "at": now + timedelta(hours=100 + n % 1000)}
        rows.append(Schedule(**values))
    return rows


def copy(last: int, numbers: Iterable[int], *, different: bool) -> None:
    """Copy the schedules up to this key in SQL, as no way through Python makes a million in minutes."""
    from django.db import connection

    from django_delayq.models import Schedule

    columns = [field.column for field in Schedule._meta.concrete_fields if not field.primary_key]
    changed = {"name": "name || ' %s'", "synced_generation": "0"}
    if different:
        changed["cron"] = "CASE WHEN kind = 'cron' THEN '%s,' || cron ELSE cron END"
    for number in numbers:
        chosen = ", ".join(changed.get(column, f'"{column}"').replace("%s", str(number)) for column in columns)
        into, table = ", ".join(f'"{column}"' for column in columns), Schedule._meta.db_table
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} ({into}) SELECT {chosen} FROM {table} WHERE id <= {last} ORDER BY id")  # noqa: S608


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--cluster", action="store_true", help="a Redis Cluster of three primaries")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="one measurement for each number")
    parser.add_argument("--different", action="store_true", help="no cron expression is there twice")
    options = parser.parse_args()
    with redis_of_its_own(shards=options.shards, cluster=options.cluster):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Fill the database where it is empty, and measure with each number of workers."""
    from django_delayq import sync
    from django_delayq.index import Broker
    from django_delayq.models import Schedule

    began = time.monotonic()
    if not Schedule.objects.exists():
        prepare(options.schedules, different=options.different)
        print(f"{options.schedules} schedules created in {time.monotonic() - began:.1f} s", flush=True)
    broker = Broker(timeout_seconds=30)
    sync.check_layout(broker)
    began = time.monotonic()
    sync.rebuild(broker, broker.list_shards())
    note_chores_done(broker)
    print(f"mirrored at first in {time.monotonic() - began:.1f} s", flush=True)
    for number in options.workers:
        with running_workers(broker, number) as pids:
            flush(options, broker, pids)
        began = time.monotonic()
        report = sync.sweep_fully(broker, dry_run=True)
        wrong = [line for line in report.lines if "bench" in line]
        print(f"  compared again in {time.monotonic() - began:.1f} s: {report.checked} entries, {len(wrong)} differ")
        if wrong:
            raise SystemExit("\n".join(wrong[:10]))


def flush(options: argparse.Namespace, broker: Any, pids: list[int]) -> None:
    """Flush and print what it took."""
    places = broker.list_shards()
    servers = servers_of(broker)
    members = sum(item.members for item in broker.read_stats(places))

    def is_back() -> bool:
        stats = broker.read_stats(places)
        built = all(item.epoch and not item.epoch.startswith("building:") for item in stats)
        return built and sum(item.members for item in stats) >= members

    usage = Usage(pids)
    for server in servers:
        server.execute_command("FLUSHALL", "SYNC")  # else the server is busy for a second with what it had
    began, flushed_at = time.monotonic(), datetime.now(UTC)
    with scripts_and_pings(servers) as told:
        wait_for(is_back, 900, "every schedule to be back")
    seconds = time.monotonic() - began
    used = str(usage)
    print(f"{members} schedules, {options.shards} shard(s) a queue, {len(servers)} server(s), {len(pids)} worker(s)")
    print(f"  {seconds:.1f} s until the last epoch, {seconds / members * 100_000:.2f} s per 100k; workers: {used}")
    print(*told, sep="\n")
    time.sleep(2)  # what was claimed is recorded
    print(f"  {due_meanwhile(flushed_at, flushed_at + timedelta(seconds=seconds))}", flush=True)


def due_meanwhile(begin: datetime, end: datetime) -> str:
    """Say how late what came due every second was, and what was missed of it."""
    from django_delayq.models import Run

    runs = Run.objects.filter(due_at__gte=begin, due_at__lt=end, schedule__every=timedelta(seconds=1))
    done = list(runs.filter(status="succeeded").values_list("due_at", "claimed_at"))
    latencies = sorted((claimed - due).total_seconds() for due, claimed in done)
    if not latencies:
        return "nothing ran meanwhile"
    missed = runs.filter(status="skipped").count()
    return (
        f"{len(latencies)} points came due and ran meanwhile, {missed} stretches were missed; "
        f"claimed {latencies[len(latencies) // 2]:.2f} s late (median), {latencies[-1]:.2f} s at most"
    )


if __name__ == "__main__":
    main()
