"""The parent of several workers: restarts each one that ends, and drains all of them when it is stopped.

It runs no task, connects to no server and holds no lease. If it is killed, the children detect it and drain.

Note [A worker that ends is restarted]
A worker that ends is restarted, whatever its exit status, after a pause that doubles from 0.1 s to 5 s while it
lives for less than YOUNG_SECONDS. Exceptions: `burst` mode, and a worker that reports an outdated release.
"""

import logging
import os
import signal
import subprocess
import time
from types import FrameType
from typing import Any, NamedTuple

from ... import conf
from ..options import OK, OUTDATED, RECYCLE, UNFINISHED
from ..process import MARGIN_SECONDS, block_signals, build_command_line
from ..trouble import Backoff
from .shutdown import VARIABLE, set_stop_handlers

logger = logging.getLogger("django_delayq.worker")

#: Lifetime in seconds below which the pause before a restart grows. See Note [A worker that ends is restarted].
YOUNG_SECONDS = 60.0
#: Seconds between two looks at the children.
LOOK_SECONDS = 0.1


class Child(NamedTuple):
    """A worker process, started at a monotonic second."""

    number: int
    process: subprocess.Popen[bytes]
    started_at: float

    def __str__(self) -> str:
        return f"Process {self.number}, pid {self.process.pid},"


class Supervisor:
    """Keeps `processes` workers running; with `burst`, until each has found nothing due."""

    def __init__(self, processes: int, *, burst: bool) -> None:
        self._command = build_command_line()
        self._burst = burst
        self._drain_seconds = conf.get_config().drain_seconds
        self._children: dict[int, Child] = {}
        #: The next start of each worker that is to run.
        self._backoffs = {number: Backoff() for number in range(1, processes + 1)}
        self._exit_status: int = OK
        self._stops = 0
        self._kill_at = 0.0

    def run(self) -> int:
        """Supervise until stopped, in burst mode until nothing is due; return the exit status, OK if all drained."""
        logger.info("Supervisor of %d processes, pid %d.", len(self._backoffs), os.getpid())
        set_stop_handlers(self._stop)
        while self._children or self._backoffs:
            self._start_missing()
            time.sleep(LOOK_SECONDS)
            self._reap()
            self._obey()
        logger.info("All processes have ended.")
        return self._exit_status

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stops = max(self._stops, 1) if number == signal.SIGHUP else self._stops + 1

    def _start_missing(self) -> None:
        now = time.monotonic()
        for number, backoff in self._backoffs.items():
            if number in self._children or backoff.until > now:
                continue
            environment = {**os.environ, VARIABLE: f"{os.getpid()} {number}"}
            try:
                with block_signals():
                    process = subprocess.Popen(self._command, env=environment)  # noqa: S603
            except OSError as error:
                backoff.note_failure(now)
                wait = backoff.until - now
                logger.error("Process %d cannot be started: %s; trying again in %.1f s.", number, error, wait)
                continue
            child = self._children[number] = Child(number, process, now)
            event = _build_event("process_started", child)
            logger.info("Process %d started, pid %d.", number, process.pid, extra=event)

    def _reap(self) -> None:
        now = time.monotonic()
        for child in [*self._children.values()]:
            status = child.process.poll()
            if status is None:
                continue
            del self._children[child.number]
            well, lived = status in (OK, RECYCLE), now - child.started_at
            if status == OUTDATED or (self._burst and status != RECYCLE):
                self._backoffs.pop(child.number, None)
            after = ""
            if backoff := self._backoffs.get(child.number):
                if lived >= YOUNG_SECONDS:
                    backoff.note_success()
                backoff.note_failure(now)
                after = f" after {lived:.1f} s; another one starts in {backoff.until - now:.1f} s"
            elif not well:
                self._exit_status = max(self._exit_status, OUTDATED if status == OUTDATED else UNFINISHED)
            level = logging.INFO if well else logging.ERROR
            extra = _build_event("process_ended", child, exit_status=status)
            logger.log(level, "%s %s%s.", child, _describe_end(status), after, extra=extra)

    def _obey(self) -> None:
        now = time.monotonic()
        if self._stops and self._backoffs:
            text = "Stopping %d processes, up to %g s."
            logger.info(text, len(self._children), self._drain_seconds, extra=_build_event("stopping"))
            self._backoffs.clear()
            self._kill_at = now + self._drain_seconds + MARGIN_SECONDS
            for child in self._children.values():
                child.process.terminate()
        if self._stops == 1 and now >= self._kill_at:
            for child in self._children.values():
                logger.error("%s has not drained in time: killing it.", child)
            self._stops += 1
        if self._stops > 1:
            for child in self._children.values():
                child.process.kill()


def _describe_end(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by signal {-status} ({signal.strsignal(-status)})"


def _build_event(name: str, child: Child | None = None, **more: int) -> dict[str, Any]:
    who = {} if child is None else {"process": child.number, "pid": child.process.pid}
    return {"delayq": {"event": name, **who, **more}}
