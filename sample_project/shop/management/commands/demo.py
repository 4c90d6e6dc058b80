"""`manage.py demo`: everything at once, in one tree of processes, which Ctrl-C ends as a whole."""

import contextlib
import signal
import threading
import time
from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management import BaseCommand, CommandError, call_command

from django_delayq.models import Run
from shop.demo import data
from shop.demo.processes import Child, Family, free_port
from shop.demo.report import Report, judge

DEFAULT_PORT = 8000
#: How long the worker may take until its first run is in the ledger.
WORKER_START_SECONDS = 20.0
#: How long after the end of the session its last due points may take: a slow task, a retry.
SETTLE_SECONDS = 60.0
#: Due points this short before Ctrl-C may not have been claimed any more.
MARGIN = timedelta(seconds=1)

BANNER = """
  The demo is running.

    Admin     {admin}
    Shop      {shop}
    User      {user}   (for this demo only)

  Look at   Schedules: edit one, pause one, run one now; the next due time follows at once
            Runs: "Exchange rates" fails at every third run, with its traceback;
                  "Payments" succeeds at the second attempt; "Search index" skips what it cannot keep up with
            sample_project/mails: what "Reminder mails" has sent
  {end}
"""


class Command(BaseCommand):
    """Start the demo, watch over it, report on it."""

    help = "Runs the whole demo: embedded Redis, database, demo data, web server and worker. Ctrl-C ends all of it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--port", type=int, help=f"port of the web server; default {DEFAULT_PORT} or the next free")
        parser.add_argument("--no-web", action="store_true", help="only the worker")
        parser.add_argument("--seconds", type=float, help="end after so many seconds and judge the session")

    def handle(self, **options: Any) -> None:
        """Run until Ctrl-C, or for `--seconds`, which fails if a due point has no outcome."""
        self.ending = threading.Event()
        self.family = Family(self._line)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)
        port = None if options["no_web"] else self._port(options["port"])
        seconds: float | None = options["seconds"]
        is_new = self._prepare(seconds)
        try:
            start = self._start(port)
            self._line(self._banner(port, seconds, is_new))
            self._watch(seconds)
            end = datetime.now(UTC)
            if seconds is not None and not self.ending.is_set():
                self._settle(start, end)
        finally:
            self._line("Ending everything …")
            self.family.stop()
        self._report(start, end, strict=seconds is not None and not self.ending.is_set())

    def _end(self, *_: object) -> None:
        if self.ending.is_set():  # asked twice
            self.family.hurry.set()
        self.ending.set()

    def _line(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.stdout.write(text)
            self.stdout.flush()

    def _port(self, wanted: int | None) -> int:
        port = free_port(wanted) if wanted is not None else free_port(DEFAULT_PORT, tries=20)
        if port is None:
            raise CommandError(f"Port {wanted or DEFAULT_PORT} is taken. Choose another with --port, or use --no-web.")
        return port

    def _prepare(self, seconds: float | None) -> bool:
        call_command("migrate", verbosity=0, interactive=False)
        data.load(sale_in_seconds=15 if seconds is None else min(15, seconds / 2))
        return data.ensure_admin()

    def _start(self, port: int | None) -> datetime:
        """Start everything. Return the start of the session: when the worker has been seen to work."""
        launched = datetime.now(UTC)
        self.family.start("worker", "delayq_worker", "--queues", "default,mail", "--threads", "8")
        if port is not None:
            self.family.start("web", "runserver", f"127.0.0.1:{port}", "--noreload", "--skip-checks")
        deadline = time.monotonic() + WORKER_START_SECONDS
        while time.monotonic() < deadline and not self.ending.wait(0.2):
            self._check_children()
            if Run.objects.finished().filter(claimed_at__gte=launched).exists():
                break
        return datetime.now(UTC)

    def _banner(self, port: int | None, seconds: float | None, is_new: bool) -> str:
        site = f"http://127.0.0.1:{port}/" if port else ""
        return BANNER.format(
            admin=f"{site}admin/" if site else "(no web server: --no-web)",
            shop=site or "–",
            user=f"{data.ADMIN}   Password  {data.ADMIN if is_new else f'as before (at first: {data.ADMIN})'}",
            end="Ctrl-C ends everything." if seconds is None else f"Ends by itself after {seconds:g} s, or by Ctrl-C.",
        )

    def _watch(self, seconds: float | None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.ending.wait(0.2) and (deadline is None or time.monotonic() < deadline):
            self._check_children()

    def _check_children(self) -> None:
        dead: Child | None = self.family.first_dead()
        if dead is not None:
            time.sleep(0.2)  # its last lines are still being read
            lines = "\n".join(f"    {line}" for line in dead.last_lines) or "    (nothing)"
            raise CommandError(f"The {dead.name} has ended with code {dead.exit_code}. Its last lines:\n{lines}")

    def _settle(self, start: datetime, end: datetime) -> None:
        """Let the last due points of the session finish before the worker is told to stop."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while judge(start, end).complaints and time.monotonic() < deadline and not self.ending.wait(0.3):
            self._check_children()

    def _report(self, start: datetime, end: datetime, *, strict: bool) -> None:
        report: Report = judge(start, end if strict else end - MARGIN)
        self._line(f"\n{report.table()}\n")
        if strict and report.complaints:
            raise CommandError("\n".join(["Not as it should be:", *report.complaints]))
        if strict:
            self._line(self.style.SUCCESS(f"All {report.total.due} due points have their outcome."))
