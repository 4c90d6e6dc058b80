"""What benchmarks with running workers share: servers of their own, worker processes, and what these have used."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SLOWER_THAN_US = 500
EVAL = (b"EVAL", b"EVALSHA")


@contextmanager
def redis_of_its_own(*, shards: int, cluster: bool, **options: Any) -> Iterator[None]:
    """Have a server, or a cluster of three primaries, and Django set up with it and an up-to-date database."""
    import django

    from django_delayq.embedded import EmbeddedServer

    with tempfile.TemporaryDirectory(prefix="delayq-bench-") as scratch, ExitStack() as stack:
        os.environ |= {
            "DELAYQ_TEST_SCRATCH": scratch,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DELAYQ_TEST_OPTIONS": json.dumps({"SHARDS": shards, **options}),
            "PYTHONPATH": str(ROOT),
        }
        if cluster:
            django.setup()
            from tests.faults.harness.shapes import Cluster

            nodes = stack.enter_context(Cluster(Path(scratch), replicas=False))
            location, given = nodes.location(), nodes.options()
        else:
            server = EmbeddedServer()
            server.start()
            stack.callback(server.stop)
            location, given = server.url, {}
        os.environ |= {"DELAYQ_REDIS_URL": location, "DELAYQ_TEST_CACHE_OPTIONS": json.dumps(given)}
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        yield


@contextmanager
def running_workers(broker: Any, number: int, *arguments: str) -> Iterator[list[int]]:
    """Have so many worker processes that have imported everything, and claim; yield their process ids."""
    command = [sys.executable, "-m", "django", "delayq_worker", *arguments]
    workers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(number)]
    try:
        wait_for(lambda: len(broker.read_workers()) == number, 60, "the workers' first heartbeats")
        time.sleep(3)
        yield [worker.pid for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


def note_chores_done(broker: Any, *, pruning: bool = True) -> None:
    """Note that a full sweep, and a pass of pruning or none, has just ended, else the workers would begin with them."""
    from dataclasses import asdict

    from django_delayq import sync
    from django_delayq.sync.pruning import LastPass
    from django_delayq.sync.sweep import LastSweep

    broker.write_note(
        "swept", json.dumps(LastSweep(broker.read_now_ms(), broker.read_run_ids(), sync.read_fingerprint()))
    )
    pruned = LastPass(sync.read_fingerprint(), broker.read_now_ms(), after=None if pruning else 0)
    broker.write_note("pruned", json.dumps(asdict(pruned)))


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

    def spent(self) -> list[float]:
        """Return the seconds of CPU of each."""
        return [after - before for after, before in zip(self._cpu(), self._before, strict=True)]

    def __str__(self) -> str:
        memory = []
        for folder in self._files:
            text = (folder / "status").read_text() if folder.exists() else "VmHWM: 0 kB"
            memory.append(int(text.partition("VmHWM:")[2].split()[0]) / 1024)
        return " + ".join(
            f"{seconds:.1f} s CPU, {size:.0f} MiB" for seconds, size in zip(self.spent(), memory, strict=True)
        )


def servers_of(broker: Any) -> list[Any]:
    """Return a client for each primary."""
    client = broker.client
    return [node.redis_connection for node in client.get_primaries()] if hasattr(client, "get_primaries") else [client]


def redis_pids(servers: Sequence[Any]) -> list[int]:
    """Return the process id of each server."""
    return [int(server.info("server")["process_id"]) for server in servers]


@contextmanager
def scripts_and_pings(servers: Sequence[Any]) -> Iterator[list[str]]:
    """Watch servers meanwhile: their slowest scripts, and how long a PONG takes. Yield lines that are there afterwards.

    The time of a script has in it what it waits for a processor.
    """
    lines: list[str] = []
    for server in servers:
        server.config_set("slowlog-log-slower-than", SLOWER_THAN_US)
        server.config_set("slowlog-max-len", 50_000)
        server.slowlog_reset()
    taken: list[float] = []
    end = threading.Event()

    def ping() -> None:
        while not end.wait(0.003):
            for server in servers:
                began = time.perf_counter()
                server.ping()
                taken.append((time.perf_counter() - began) * 1000)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield lines
    finally:
        end.set()
        thread.join()
    entries = [entry for server in servers for entry in server.slowlog_get(50_000)]
    slow = [entry["duration"] / 1000 for entry in entries if entry["command"].split()[0] in EVAL]
    longest = f"{max(slow):.1f} ms" if slow else f"under {SLOWER_THAN_US / 1000:g} ms"
    lines.append(f"  longest script {longest}, {sum(duration > 5 for duration in slow)} over 5 ms (by SLOWLOG)")
    p99, late = sorted(taken)[len(taken) * 99 // 100], sum(wait > 25 for wait in taken)
    lines.append(f"  {len(taken)} PINGs: p99 {p99:.1f} ms, longest {max(taken):.1f} ms, {late} over 25 ms")


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Poll until the condition holds; there is nothing to be woken by across processes."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
