"""How long running worker processes take to rebuild Redis after a FLUSHALL, while they also run what is due.

Run from the project's root: `python -m tests.benchmarks.rebuild [--schedules N] [--shards N] [--workers 1 2]
[--different] [--unchecked]`. Uses the suite's settings with a server of its own, and SQLite on disk or DATABASE_URL,
whose tables must be empty, or are those of an earlier run and taken as they are. Prints figures; asserts nothing about
time, but that every entry is back as it should be.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ZONES = ("UTC", "Europe/Riga", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo")
#: So many, spread over all, come due every second: what is claimed while the rebuild runs.
BUSY = 20
#: At most 60 times as many: each copy begins its cron expressions with another minute, where they are to differ.
BASE = 20_000
SLOWER_THAN_US = 500
EVAL = (b"EVAL", b"EVALSHA")


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


class Usage:
    """What processes have used since now, where the system tells: seconds of CPU, MiB of memory at most."""

    def __init__(self, pids: list[int]) -> None:
        self._files = [Path(f"/proc/{pid}") for pid in pids]
        self._before = self._cpu()

    def _cpu(self) -> list[float]:
        found = []
        for folder in self._files:
            fields = (folder / "stat").read_text().rpartition(")")[2].split() if folder.exists() else ["0"] * 13
            found.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        return found

    def __str__(self) -> str:
        spent = [after - before for after, before in zip(self._cpu(), self._before, strict=True)]
        memory = []
        for folder in self._files:
            text = (folder / "status").read_text() if folder.exists() else "VmHWM: 0 kB"
            memory.append(int(text.partition("VmHWM:")[2].split()[0]) / 1024)
        return " + ".join(f"{seconds:.1f} s CPU, {size:.0f} MiB" for seconds, size in zip(spent, memory, strict=True))


@contextmanager
def pings(client: Any) -> Iterator[list[float]]:
    """Ask for a PONG every few ms on a connection of its own meanwhile; the list gets how long each took, in ms."""
    taken: list[float] = []
    end = threading.Event()

    def ping() -> None:
        while not end.wait(0.003):
            began = time.perf_counter()
            client.ping()
            taken.append((time.perf_counter() - began) * 1000)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield taken
    finally:
        end.set()
        thread.join()


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Poll until the condition holds; there is nothing to be woken by across processes."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="one measurement for each number")
    parser.add_argument("--different", action="store_true", help="no cron expression is there twice")
    parser.add_argument("--unchecked", action="store_true", help="do not compare all entries after each measurement")
    options = parser.parse_args()

    with servers(options.shards):
        measure(options)


@contextmanager
def servers(shards: int) -> Iterator[None]:
    """Have a Redis of its own and a migrated database meanwhile, also for worker processes."""
    from django_delayq.embedded import EmbeddedServer

    server = EmbeddedServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="delayq-bench-") as scratch:
            os.environ |= {
                "DELAYQ_REDIS_URL": server.url,
                "DELAYQ_TEST_SCRATCH": scratch,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "DELAYQ_TEST_OPTIONS": json.dumps({"SHARDS": shards}),
                "PYTHONPATH": str(ROOT),
            }
            import django

            django.setup()
            from django.core.management import call_command

            call_command("migrate", verbosity=0)
            yield
    finally:
        server.stop()


@contextmanager
def running(broker: Any, number: int) -> Iterator[list[int]]:
    """Have so many workers meanwhile; yield their process ids once they claim."""
    command = [sys.executable, "-m", "django", "delayq_worker"]
    workers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(number)]
    try:
        wait_for(lambda: len(broker.workers()) == number, 60, "the workers' first heartbeats")
        time.sleep(3)  # they have imported everything, and claim
        yield [worker.pid for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def note_sweep(broker: Any) -> None:
    """Note that a full sweep has just ended, else the workers would make one."""
    from django_delayq.mirror import turn

    noted = turn.LastSweep(broker.now_ms(), broker.run_ids(), turn.fingerprint(), 0, 0)
    broker.note_sweep(json.dumps(asdict(noted)))


def measure(options: argparse.Namespace) -> None:
    """Fill the database where it is empty, and measure with each number of workers."""
    from django_delayq import mirror
    from django_delayq.broker import Broker
    from django_delayq.models import Schedule

    began = time.monotonic()
    if not Schedule.objects.exists():
        prepare(options.schedules, different=options.different)
        print(f"{options.schedules} schedules created in {time.monotonic() - began:.1f} s", flush=True)
    broker = Broker(timeout_seconds=30)
    mirror.check_layout(broker)
    began = time.monotonic()
    mirror.rebuild(broker, broker.shards())
    note_sweep(broker)
    print(f"mirrored at first in {time.monotonic() - began:.1f} s", flush=True)
    for number in options.workers:
        with running(broker, number) as pids:
            flush(options, broker, pids)
        if options.unchecked:
            continue
        began = time.monotonic()
        report = mirror.full_sweep(broker, dry_run=True)
        wrong = [line for line in report.lines if "bench" in line]
        print(f"  compared again in {time.monotonic() - began:.1f} s: {report.checked} entries, {len(wrong)} differ")
        if wrong:
            raise SystemExit("\n".join(wrong[:10]))


def flush(options: argparse.Namespace, broker: Any, pids: list[int]) -> None:
    """Flush and print what it took."""
    places = broker.shards()
    client = broker.client
    members = sum(item.members for item in broker.stats(places))
    client.config_set("slowlog-log-slower-than", SLOWER_THAN_US)
    client.config_set("slowlog-max-len", 50_000)

    def is_back() -> bool:
        stats = broker.stats(places)
        built = all(item.epoch and not item.epoch.startswith("building:") for item in stats)
        return built and sum(item.members for item in stats) >= members

    usage = Usage(pids)
    client.execute_command("FLUSHALL", "SYNC")  # else the server is busy for a second with what it had
    began, flushed_at = time.monotonic(), datetime.now(UTC)
    client.slowlog_reset()
    with pings(client) as waits:
        wait_for(is_back, 900, "every schedule to be back")
    seconds = time.monotonic() - began
    used = str(usage)
    slow = sorted((e["duration"] for e in client.slowlog_get(50_000) if e["command"].split()[0] in EVAL), reverse=True)
    print(f"{members} schedules, {options.shards} shard(s) a queue, {len(pids)} worker(s)")
    print(f"  {seconds:.1f} s until the last epoch, {seconds / members * 100_000:.2f} s per 100k; workers: {used}")
    longest = f"{slow[0] / 1000:.1f} ms" if slow else f"under {SLOWER_THAN_US / 1000:g} ms"
    over, late = sum(duration > 5000 for duration in slow), sum(wait > 25 for wait in waits)
    print(f"  longest script {longest}, {over} over 5 ms (by SLOWLOG, waits for a processor included)")
    p99 = sorted(waits)[len(waits) * 99 // 100]
    print(f"  {len(waits)} PINGs: p99 {p99:.1f} ms, longest {max(waits):.1f} ms, {late} over 25 ms")
    time.sleep(2)  # what was claimed is recorded
    print(f"  {due_meanwhile(flushed_at, flushed_at + timedelta(seconds=seconds))}", flush=True)


def due_meanwhile(begin: datetime, end: datetime) -> str:
    """Say how late what came due every second was, and what was missed of it."""
    from django_delayq.models import Run

    runs = Run.objects.filter(due_at__gte=begin, due_at__lt=end, schedule__every=timedelta(seconds=1))
    done = list(runs.filter(status="succeeded").values_list("due_at", "claimed_at"))
    lags = sorted((claimed - due).total_seconds() for due, claimed in done)
    if not lags:
        return "nothing ran meanwhile"
    missed = runs.filter(status="skipped").count()
    return (
        f"{len(lags)} points came due and ran meanwhile, {missed} stretches were missed; "
        f"claimed {lags[len(lags) // 2]:.2f} s late (median), {lags[-1]:.2f} s at most"
    )


if __name__ == "__main__":
    main()
