"""The workers under a supervisor, and the rules of starting, replacing and giving up. Waits for nothing."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from ..worker.exit_codes import OK, RECYCLE
from ..worker.trouble import Backoff
from .child import Child
from .process import MARGIN_SECONDS

logger = logging.getLogger("django_delayq.worker")

#: A child that lived for less died young: what follows waits longer each time, from 0.1 s to 5 s.
YOUNG_SECONDS = 10.0


class _Slot:
    """One of the N processes: `child` works, `candidate` starts and takes over once it works.

    `renew` is True while the child is to be replaced by order, `over` once nobody is needed here any more.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.candidate: Child | None = None
        self.renew = self.over = False
        self._backoff = Backoff()

    @property
    def children(self) -> list[Child]:
        return [child for child in (self.child, self.candidate) if child is not None]

    @property
    def works(self) -> bool:
        return self.child is not None and self.child.working

    @property
    def wants_successor(self) -> bool:
        return self.child is not None and (self.renew or self.child.leaving)

    @property
    def closed_until(self) -> float:
        """The monotonic second before which nobody is to be started here."""
        return self._backoff.until

    def failed(self, lived_seconds: float) -> float:
        """Note a death, or a start that was not possible (0 s); return how many seconds to wait before the next."""
        now = time.monotonic()
        if lived_seconds >= YOUNG_SECONDS:
            self._backoff.worked()
        self._backoff.failed(now)
        return self._backoff.until - now

    def hand_over(self) -> None:
        """Put the candidate, or nobody, in the child's place."""
        self.child, self.candidate, self.renew = self.candidate, None, False


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
        self.processes = processes
        self._command = command
        self._drain_seconds = drain_seconds
        self._burst = burst
        self._slots = [_Slot(number) for number in range(1, processes + 1)]
        self._replaced: list[Child] = []  # and still draining
        self._proven = False
        self.stopping = False
        self.clean = True
        self.failure = ""

    @property
    def children(self) -> list[Child]:
        """All that live, the ones that only drain included."""
        return [*self._replaced, *(child for slot in self._slots for child in slot.children)]

    @property
    def done(self) -> bool:
        """True once nobody lives, and nobody is to be started."""
        return not self.children and (self.stopping or all(slot.over for slot in self._slots))

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
        for slot in self._slots:
            slot.renew = slot.child is not None

    # -- starts

    def start_missing(self) -> list[Child]:
        """Start whoever is missing and may be started now; return them."""
        now = time.monotonic()
        tried = [self._start(slot) for slot in self._open_slots() if slot.closed_until <= now]
        return [child for child in tried if child is not None]

    def next_start(self) -> float | None:
        """Return the monotonic second from which on somebody may be started; None where nobody is missing."""
        return min((slot.closed_until for slot in self._open_slots()), default=None)

    def _open_slots(self) -> list[_Slot]:
        if self.stopping:
            return []
        empty = [slot for slot in self._slots if not slot.children and not slot.over]
        if not self._proven:  # Note [First one]
            return empty[:1] if not self.children else []
        if any(slot.candidate for slot in self._slots):
            return empty
        return empty + [slot for slot in self._slots if slot.wants_successor][:1]

    def _start(self, slot: _Slot) -> Child | None:
        try:
            child = Child(slot.number, self._command)
        except OSError as error:
            wait = slot.failed(0.0)
            logger.error("Process %d cannot be started: %s; trying again in %.1f s.", slot.number, error, wait)
            return None
        if slot.child is None:
            slot.child = child
        else:
            slot.candidate = child
        logger.info("Process %d started, pid %d.", child.number, child.pid, extra=_event("process_started", child))
        return child

    def hear(self, child: Child) -> None:
        """Take notice of what a child says: a candidate that works replaces who was there before."""
        child.listen()
        self._proven = self._proven or child.working
        for slot in self._slots:
            if child is slot.candidate and child.working and slot.child is not None:
                former = slot.child
                text = "%s is replaced by pid %d and drains."
                logger.info(text, former, child.pid, extra=_event("process_replaced", former))
                former.stop(self._drain_seconds + MARGIN_SECONDS)
                self._replaced.append(former)
                slot.hand_over()

    # -- ends

    def reap(self) -> list[Child]:
        """Draw the conclusions from whoever has ended; return them, to be closed."""
        ended = [child for child in self.children if child.status is not None]
        for child in ended:
            self.hear(child)
            if self.stopping or self._burst:
                self.clean = self.clean and child.drained
            if child in self._replaced:
                self._replaced.remove(child)
                self._log_end(child)
                continue
            (slot,) = (slot for slot in self._slots if child in slot.children)
            if child is slot.candidate:
                self._candidate_ended(slot, child)
            else:
                self._child_ended(slot, child)
        return ended

    def _candidate_ended(self, slot: _Slot, child: Child) -> None:
        slot.candidate = None
        slot.failed(child.lived_seconds)
        self._log_end(child, "before it worked; the process that it should replace goes on")
        for other in self._slots:  # who asked for a successor itself still needs one, after a while
            other.renew = False

    def _child_ended(self, slot: _Slot, child: Child) -> None:
        slot.hand_over()
        if self.stopping or child.status == RECYCLE:
            self._log_end(child)
        elif child.status == OK and self._burst:
            slot.over = True
            self._log_end(child)
        else:
            wait = slot.failed(child.lived_seconds)
            if not child.working and (child.status or 0) > 0 and not any(other.works for other in self._slots):
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
