"""The parent of several workers: starts each again that ends, and has all drain when it is told to stop.

It runs no task, talks to no Redis and no database and holds no lease. So whatever happens to one of its children
happens to no other; and when it is killed itself, the children notice (`channel.py`) and drain.
"""

import logging
import os
import time
from typing import Any

from .. import conf
from ..worker.options import OK, OUTDATED, RECYCLE, UNFINISHED
from ..worker.trouble import Backoff
from .child import Child
from .process import MARGIN_SECONDS, command_line
from .signals import SupervisorSignals

logger = logging.getLogger("django_delayq.worker")

#: Who lived for less died young: its successor waits longer each time, from 0.1 s to 5 s.
YOUNG_SECONDS = 60.0
#: How long an interpreter may need until its worker is heard first.
START_SECONDS = 120.0
#: Silence that is no sign of anything, however short the leases are.
BUSY_SECONDS = 10.0
#: Between two looks; signals and deaths are seen at once.
LOOK_SECONDS = 1.0


class Supervisor:
    """Keeps `processes` workers, each a fresh interpreter; with `burst`, until each has found nothing due.

    Who ends is started again, whatever its exit status, unless it says that its release is outdated.

    Note [Silence]
    A task in C code that never lets go of the interpreter hangs its whole process, with the thread that renews the
    leases and the one that is heard. After two leases of silence all leases of that process have run out, and other
    workers have what it had. Killing it then costs nothing that is not lost already, and frees its place.
    """

    def __init__(self, processes: int, *, burst: bool) -> None:
        config = conf.get_config()
        self._command = command_line()
        self._burst = burst
        self._drain_seconds = config.drain_seconds
        self._silence_seconds = max(2 * config.lease_seconds, BUSY_SECONDS)
        self._children: dict[int, Child] = {}
        #: When to start whom; without those who are not to be started again.
        self._backoffs = {number: Backoff() for number in range(1, processes + 1)}
        self._exit_status: int = OK

    def run(self) -> int:
        """Supervise until told to stop, or until nothing is due in burst mode. In the main thread only.

        Returns the exit status: OK if all drained.
        """
        logger.info("Supervisor of %d processes, pid %d.", len(self._backoffs), os.getpid())
        with SupervisorSignals() as signals:
            while self._children or self._backoffs:
                self._start_missing()
                self._wait(signals)
                self._reap()
                self._obey(signals.stops)
                self._kill_overdue()
        logger.info("All processes have ended.")
        return self._exit_status

    def _start_missing(self) -> None:
        now = time.monotonic()
        for number, backoff in self._backoffs.items():
            if number in self._children or backoff.until > now:
                continue
            try:
                child = self._children[number] = Child(number, self._command, START_SECONDS)
            except OSError as error:
                backoff.failed(now)
                wait = backoff.until - now
                logger.error("Process %d cannot be started: %s; trying again in %.1f s.", number, error, wait)
            else:
                logger.info("Process %d started, pid %d.", number, child.pid, extra=_event("process_started", child))

    def _wait(self, signals: SupervisorSignals) -> None:
        """Sleep until something happens, and hear the children."""
        now = time.monotonic()
        starts = [backoff.until - now for number, backoff in self._backoffs.items() if number not in self._children]
        signals.wait(max(0.0, min([LOOK_SECONDS, *starts])))
        stood_still = time.monotonic() - now - BUSY_SECONDS / 2  # and heard nobody
        for child in self._children.values():
            child.deadline += max(0.0, stood_still)
            child.listen(self._silence_seconds)

    def _reap(self) -> None:
        """Draw the conclusions from whoever has ended."""
        for child in [child for child in self._children.values() if child.status is not None]:
            del self._children[child.number]
            child.close()
            if child.status == OUTDATED or (self._burst and child.status != RECYCLE):
                self._backoffs.pop(child.number, None)
            after = ""
            if backoff := self._backoffs.get(child.number):
                now = time.monotonic()
                if child.lived_seconds >= YOUNG_SECONDS:
                    backoff.worked()
                backoff.failed(now)
                after = f" after {child.lived_seconds:.1f} s; another one starts in {backoff.until - now:.1f} s"
            elif child.status not in (OK, RECYCLE):
                self._exit_status = max(self._exit_status, OUTDATED if child.status == OUTDATED else UNFINISHED)
            level = logging.INFO if child.status in (OK, RECYCLE) else logging.ERROR
            text = "%s %s%s."
            logger.log(level, text, child, child.how_it_ended(), after, extra=_event("process_ended", child))

    def _obey(self, stops: int) -> None:
        if stops and self._backoffs:
            text = "Stopping %d processes, up to %g s."
            logger.info(text, len(self._children), self._drain_seconds, extra=_event("stopping"))
            self._backoffs.clear()
            for child in self._children.values():
                child.stop(self._drain_seconds + MARGIN_SECONDS)
        if stops > 1:
            for child in self._children.values():
                child.kill()

    def _kill_overdue(self) -> None:
        for child in self._children.values():
            if time.monotonic() < child.deadline or child.killed:
                continue
            what = "has not drained in time" if child.stopping else "is silent, as if a task kept it from running"
            logger.error("%s %s: killing it.", child, what)
            child.kill()


def _event(name: str, child: Child | None = None) -> dict[str, Any]:
    """Return the fields of a JSON line."""
    event: dict[str, Any] = {"event": name}
    if child is not None:
        event |= {"process": child.number, "pid": child.pid}
        if child.status is not None:
            event |= {"exit_status": child.status}
    return {"delayq": event}
