"""Progress of a command: a bar on a terminal, JSON lines for a program, otherwise nothing."""

import json
import time
from types import TracebackType
from typing import Self

from django.core.management.base import OutputWrapper

#: Seconds before the first display, and between two displays on a terminal and as JSON.
FIRST_SECONDS = 1.0
TERMINAL_SECONDS, JSON_SECONDS = 0.2, 1.0
WIDTH = 30


class Progress:
    """Progress of `total` items: 0 if unknown, or an estimate. Erases the bar at the end."""

    def __init__(self, stdout: OutputWrapper, what: str, total: int = 0, *, as_json: bool = False) -> None:
        self._stdout, self._what, self._total, self._as_json = stdout, what, total, as_json
        self._on = as_json or stdout.isatty()
        self._began = self._shown = time.monotonic()
        self._width = 0

    def at(self, done: int, total: int = 0) -> bool:
        """Display the number of finished items; `total` replaces the total. Always returns True, for use as `go_on`."""
        self._total = total or self._total
        now = time.monotonic()
        every = JSON_SECONDS if self._as_json else TERMINAL_SECONDS
        if self._on and now - self._began >= FIRST_SECONDS and now - self._shown >= every:
            self._shown = now
            self._show(done, now - self._began)
        return True

    def say(self, line: str) -> None:
        """Erase the bar and write a line, except with JSON."""
        if not self._as_json:
            self._wipe()
            self._stdout.write(line)

    def _show(self, done: int, seconds: float) -> None:
        rate = done / seconds
        left = max(0, self._total - done) / rate if rate and self._total else None
        if self._as_json:
            rest = None if left is None else round(left, 1)
            told = {self._what: done, "of": self._total or None, "per_second": round(rate)}
            self._stdout.write(json.dumps({**told, "seconds": round(seconds, 1), "seconds_left": rest}))
            self._stdout.flush()
            return
        line = f"{done:,} {self._what}  {rate:,.0f}/s"
        if left is not None:
            share = min(1.0, done / self._total)
            full = int(share * WIDTH)
            line = f"[{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%}  {line}  {_clock(left)} left"
        self._stdout.write(f"\r{line.ljust(self._width)}", ending="")
        self._stdout.flush()
        self._width = len(line)

    def _wipe(self) -> None:
        if self._width:
            self._stdout.write(f"\r{' ' * self._width}\r", ending="")
            self._stdout.flush()
            self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wipe()


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60}:{whole % 60:02d} min"
