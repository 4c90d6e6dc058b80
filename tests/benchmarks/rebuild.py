"""How long a running worker process takes to rebuild Redis after a FLUSHALL, while it also runs what is due.

Run from the project's root: `python -m tests.benchmarks.rebuild [--schedules N] [--shards N]`.
Uses the suite's settings with a server of its own, and SQLite on disk or DATABASE_URL, whose tables must be empty.
Prints a table; asserts nothing about time, but that every entry is back as it should be.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ZONES = ("UTC", "Europe/Riga", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo")
#: Of these, one comes due every second each: what is claimed while the rebuild runs.
BUSY = 20
SLOWER_THAN_US = 500


def prepare(schedules: int) -> None:
    """Create schedules of all kinds: six of ten are cron in several zones, three intervals, one a single point."""
    from django_delayq.models import Schedule

    now = datetime.now(UTC)
    rows = []
    for n in range(schedules):
        values: dict[str, Any] = {"name": f"bench {n}", "task": "tests.app.tasks.noop"}
        if n < BUSY:
            values |= {"kind": "every", "every": timedelta(seconds=1)}
        elif n % 10 < 6:
            days = "*" if n % 3 else "1-5"
            values |= {"kind": "cron", "cron": f"{n % 60} {n % 24} * * {days}", "timezone": ZONES[n % len(ZONES)]}
        elif n % 10 < 9:
            jitter = timedelta(seconds=10 if n % 2 else 0)
            values |= {"kind": "every", "every": timedelta(minutes=60 + n % 600), "jitter": jitter}
        else:
            values |= {"kind": "once", "at": now + timedelta(hours=1 + n % 1000)}
        rows.append(Schedule(**values))
    Schedule.objects.bulk_create(rows, batch_size=1000)


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process so far, where the system tells."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return None
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Poll until the condition holds; there is nothing to be woken by across processes."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=1)
    options = parser.parse_args()

    from django_delayq.embedded import EmbeddedServer

    server = EmbeddedServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="delayq-bench-") as scratch:
            os.environ |= {
                "DELAYQ_REDIS_URL": server.url,
                "DELAYQ_TEST_SCRATCH": scratch,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "DELAYQ_TEST_OPTIONS": json.dumps({"SHARDS": options.shards}),
                "PYTHONPATH": str(ROOT),
            }
            measure(options)
    finally:
        server.stop()


def measure(options: argparse.Namespace) -> None:
    """Fill the database, start a worker, flush, and wait until all is back."""
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from django_delayq import mirror
    from django_delayq.broker import Broker

    began = time.monotonic()
    prepare(options.schedules)
    print(f"{options.schedules} schedules created in {time.monotonic() - began:.1f} s")
    broker = Broker(timeout_seconds=30)
    mirror.check_layout(broker)
    began = time.monotonic()
    mirror.sweep_now(broker)
    print(f"mirrored for the first time in {time.monotonic() - began:.1f} s")
    worker = subprocess.Popen([sys.executable, "-m", "django", "delayq_worker"], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        wait_for(broker.workers, 60, "the worker's first heartbeat")
        time.sleep(3)  # it has imported everything, and claims
        flush(options, broker, worker.pid)
    finally:
        worker.kill()
        worker.wait()
    began = time.monotonic()
    report = mirror.full_sweep(broker, dry_run=True)
    wrong = [line for line in report.lines if "bench" in line]
    print(f"compared again in {time.monotonic() - began:.1f} s: {report.checked} entries, {len(wrong)} differ")
    if wrong:
        raise SystemExit("\n".join(wrong[:10]))


def flush(options: argparse.Namespace, broker: Any, pid: int) -> None:
    """Flush and print what it took."""
    from django_delayq.models import Run

    places = broker.shards()
    client = broker.client
    client.config_set("slowlog-log-slower-than", SLOWER_THAN_US)
    client.config_set("slowlog-max-len", 10_000)
    client.slowlog_reset()
    cpu, began, flushed_at = cpu_seconds(pid), time.monotonic(), datetime.now(UTC)
    client.flushall()

    def is_back() -> bool:
        stats = broker.stats(places)
        built = all(item.epoch and not item.epoch.startswith("building:") for item in stats)
        return built and sum(item.members for item in stats) == options.schedules

    wait_for(is_back, 600, "every schedule to be back")
    seconds = time.monotonic() - began
    spent = cpu_seconds(pid)
    entries = [entry for entry in client.slowlog_get(10_000) if entry["command"].startswith(b"EVAL")]
    slow = sorted((entry["duration"] for entry in entries), reverse=True)
    time.sleep(2)  # what was claimed is recorded
    runs = Run.objects.filter(claimed_at__gte=flushed_at, claimed_at__lt=flushed_at + timedelta(seconds=seconds))
    print(f"flushed and rebuilt: {options.schedules} schedules, {options.shards} shard(s) per queue")
    print(f"  {seconds:.2f} s from FLUSHALL to the last epoch, {seconds / options.schedules * 100_000:.2f} s per 100k")
    if cpu is not None and spent is not None:
        print(f"  {spent - cpu:.2f} s of CPU in the worker, its runs included")
    longest = f"{slow[0] / 1000:.1f} ms" if slow else f"under {SLOWER_THAN_US / 1000:g} ms"
    over = sum(duration > 5000 for duration in slow)
    print(f"  longest script by SLOWLOG: {longest}; {over} over 5 ms, {len(slow)} over {SLOWER_THAN_US / 1000:g} ms")
    print("  (SLOWLOG counts the time in which the server had no processor, too)")
    print(f"  {runs.count()} points run meanwhile")


if __name__ == "__main__":
    main()
