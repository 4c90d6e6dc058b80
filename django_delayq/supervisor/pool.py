"""The workers under a supervisor, and the rules of starting, replacing and giving up. Waits for nothing."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from ..worker.options import OK, OUTDATED, RECYCLE, UNFINISHED
from ..worker.trouble import Backoff
from .child import Child
from .process import MARGIN_SECONDS

logger = logging.getLogger("django_delayq.worker")

#: A child that lived for less died young: what follows waits longer each time, from 0.1 s to 5 s.
YOUNG_SECONDS = 10.0


class Pool:
    """`clean` while every child that was to end left nothing behind; `failure` says why it gave up, '' until then.

    `command` starts a worker in a fresh interpreter. With `burst`, a child that ends with 0 is not replaced.

    Note [First one]
    The first child starts alone, the others once it works: what keeps a worker from starting, a foreign prefix or
    missing tables, is then said once. Later on, a child that ends by itself before it works, while no other works, ends
    the whole command: starting it for ever would hide from the service manager that nothing runs. While others work it
    is tried again, less and less often. So a broken deploy does not stop the processes that still run the one before.
    """

    def __init__(self, processes: int, command: Sequence[str], *, drain_seconds: float, burst: bool) -> None:
        self._command = command
        self._drain_seconds = drain_seconds
        self._burst = burst
        #: All that live, the ones that only drain included, in the order of their starts.
        self.children: list[Child] = []
        self._backoffs = {number: Backoff() for number in range(1, processes + 1)}
        self._over: set[int] = set()  # the numbers as which nobody is needed any more
        self._proven = False
        self.stopping = False
        self.clean = True
        self.failure = ""
        #: The exit status that goes with it.
        self.failed_with: int = UNFINISHED

    @property
    def done(self) -> bool:
        """True once nobody lives, and nobody is to be started."""
        return not self.children and (self.stopping or len(self._over) == len(self._backoffs))

    @property
    def metrics_ports(self) -> dict[int, int]:
        """Where each process tells its metrics, by its number: where there are two, the one that is to stay."""
        return {child.number: child.metrics_port for child in self.children if child.metrics_port is not None}

    def _at(self, number: int) -> list[Child]:
        """Return who has this number, and then who is to succeed it; not who only drains."""
        return [child for child in self.children if child.number == number and not child.stopping]

    # -- orders

    def stop(self) -> None:
        """Have all drain. Whoever is not done in time is to be killed at its `deadline`."""
        self.stopping = True
        text = "Stopping %d processes, up to %g s."
        logger.info(text, len(self.children), self._drain_seconds, extra=_event("stopping"))
        for child in self.children:
            child.stop(self._drain_seconds + MARGIN_SECONDS)

    def kill(self) -> None:
        """End all at once."""
        for child in self.children:
            child.kill()

    def renew(self) -> None:
        """Have all replaced, one after the other, each once its successor works."""
        if self.stopping:
            return
        logger.info("Replacing all processes, one after the other.", extra=_event("renewing"))
        for number in self._backoffs:
            for child in self._at(number)[:1]:
                child.renew = True

    # -- starts

    def start_missing(self) -> list[Child]:
        """Start whoever is missing and may be started now; return them."""
        now = time.monotonic()
        due = [number for number in self._missing() if self._backoffs[number].until <= now]
        return [child for number in due if (child := self._start(number)) is not None]

    def next_start(self) -> float | None:
        """Return the monotonic second from which on somebody may be started; None where nobody is missing."""
        return min((self._backoffs[number].until for number in self._missing()), default=None)

    def _missing(self) -> list[int]:
        if self.stopping:
            return []
        at = {number: self._at(number) for number in self._backoffs if number not in self._over}
        empty = [number for number, children in at.items() if not children]
        if not self._proven:  # Note [First one]
            return empty[:1] if not self.children else []
        if any(len(children) > 1 for children in at.values()):  # one after the other
            return empty
        return empty + [number for number in at if any(child.renew or child.leaving for child in at[number])][:1]

    def _start(self, number: int) -> Child | None:
        try:
            child = Child(number, self._command)
        except OSError as error:
            wait = self._failed(number, 0.0)
            logger.error("Process %d cannot be started: %s; trying again in %.1f s.", number, error, wait)
            return None
        self.children.append(child)
        logger.info("Process %d started, pid %d.", number, child.pid, extra=_event("process_started", child))
        return child

    def _failed(self, number: int, lived_seconds: float) -> float:
        """Note a death, or a start that was not possible (0 s); return how many seconds to wait before the next."""
        now, backoff = time.monotonic(), self._backoffs[number]
        if lived_seconds >= YOUNG_SECONDS:
            backoff.worked()
        backoff.failed(now)
        return backoff.until - now

    def hear(self, child: Child) -> None:
        """Take notice of what a child says: a successor that works replaces who was there before."""
        child.listen()
        self._proven = self._proven or child.working
        at = self._at(child.number)
        if child.working and child in at[1:]:
            text = "%s is replaced by pid %d and drains."
            logger.info(text, at[0], child.pid, extra=_event("process_replaced", at[0]))
            at[0].stop(self._drain_seconds + MARGIN_SECONDS)

    # -- ends

    def reap(self) -> list[Child]:
        """Draw the conclusions from whoever has ended; return them, to be closed."""
        ended = [child for child in self.children if child.status is not None]
        for child in ended:
            self.hear(child)
            if self.stopping or self._burst:
                self.clean = self.clean and child.drained
            is_successor = child in self._at(child.number)[1:]
            self.children.remove(child)
            if child.stopping:
                self._log_end(child)
            elif is_successor:
                self._successor_ended(child)
            else:
                self._ended(child)
        return ended

    def _successor_ended(self, child: Child) -> None:
        self._failed(child.number, child.lived_seconds)
        self._log_end(child, "before it worked; the process that it should replace goes on")
        for other in self.children:  # who asked for a successor itself still needs one, after a while
            other.renew = False

    def _ended(self, child: Child) -> None:
        if child.status == RECYCLE:
            self._log_end(child)
        elif child.status == OK and self._burst:
            self._over.add(child.number)
            self._log_end(child)
        else:
            wait = self._failed(child.number, child.lived_seconds)
            others_work = any(other.working and not other.stopping for other in self.children)
            if not child.working and (child.status or 0) > 0 and not others_work:
                self.failed_with = OUTDATED if child.status == OUTDATED else UNFINISHED
                self.failure = (
                    f"Process {child.number} {child.how_it_ended()} before it could work, and no other works. "
                    "What it said stands above; correct that and start the command again."
                )
                self.stop()
            else:
                self._log_end(child, f"after {child.lived_seconds:.1f} s; another one starts in {wait:.1f} s")

    def _log_end(self, child: Child, remark: str = "") -> None:
        level = logging.INFO if child.status in (OK, RECYCLE) else logging.ERROR
        text = f"{child.how_it_ended()} {remark}".rstrip()
        logger.log(level, "%s %s.", child, text, extra=_event("process_ended", child))


def _event(name: str, child: Child | None = None) -> dict[str, Any]:
    """Return the fields of a JSON line."""
    event: dict[str, Any] = {"event": name}
    if child is not None:
        event |= {"process": child.number, "pid": child.pid}
        if child.status is not None:
            event |= {"exit_status": child.status}
    return {"delayq": event}
