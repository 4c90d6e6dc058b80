"""How far a command is: a bar on a terminal, lines of JSON for a program, nothing where a person reads it later."""

import json
import time
from types import TracebackType
from typing import Self

from django.core.management.base import OutputWrapper

#: Nothing is shown of what takes less; then so often on a terminal, and for a program.
FIRST_SECONDS = 1.0
TERMINAL_SECONDS, JSON_SECONDS = 0.2, 1.0
WIDTH = 30


class Progress:
    """Of `total` things: 0 where nobody knows how many; it may be wrong. Leaves no trace of the bar."""

    def __init__(self, stdout: OutputWrapper, what: str, total: int = 0, *, as_json: bool = False) -> None:
        self._stdout, self._what, self._total, self._as_json = stdout, what, total, as_json
        self._on = as_json or stdout.isatty()
        self._began = self._shown = time.monotonic()
        self._width = 0

    def at(self, done: int, total: int = 0) -> bool:
        """Say how many are done, and of how many where that is known by now.

        True, so that it can stand where somebody asks whether to go on.
        """
        self._total = total or self._total
        now = time.monotonic()
        every = JSON_SECONDS if self._as_json else TERMINAL_SECONDS
        if self._on and now - self._began >= FIRST_SECONDS and now - self._shown >= every:
            self._shown = now
            self._show(done, now - self._began)
        return True

    def say(self, line: str) -> None:
        """Write a line for a person, where the bar was."""
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
