"""Who works under a supervisor, and the rules of starting, replacing and giving up. Waits for nothing."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..worker.status import LEAVING, OK, RECYCLE, WORKING
from .child import Child, how_it_ended
from .seat import Seat

logger = logging.getLogger("django_delayq.worker")

#: How long a child may need beyond DRAIN_SECONDS, to record what it finished and to end its interpreter.
MARGIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """`command` starts a worker in a fresh interpreter. With `burst`, a child that ends with 0 is not replaced."""

    processes: int
    command: Sequence[str]
    drain_seconds: float
    lease_seconds: float
    burst: bool = False


class Crew:
    """`clean` while every child that was to end left nothing behind; `failure` says why it gave up, '' until then.

    Note [First one]
    The first child starts alone, the others once it works: what keeps a worker from starting, a foreign prefix or
    missing tables, is then said once. Later on, a child that ends by itself before it works, while no other works, ends
    the whole command: starting it for ever would hide from the service manager that nothing runs. While others work it
    is tried again, less and less often. So a broken deploy does not stop the processes that still run the one before.
    """

    def __init__(self, options: SupervisorOptions) -> None:
        self.options = options
        self.seats = [Seat(number) for number in range(1, options.processes + 1)]
        self.stopping = False
        self.clean = True
        self.failure = ""
        self._former: list[Child] = []  # replaced, and still draining
        self._proven = False

    @property
    def children(self) -> list[Child]:
        """All that live, the ones that only drain included."""
        return [*self._former, *(child for seat in self.seats for child in seat.children)]

    @property
    def done(self) -> bool:
        """True once nobody lives, and nobody is to be started."""
        return not self.children and (self.stopping or all(seat.over for seat in self.seats))

    # -- orders

    def stop(self) -> None:
        """Have all drain. Whoever is not done in time is to be killed at its `deadline`."""
        self.stopping = True
        seconds = self.options.drain_seconds
        logger.info("Stopping %d processes, up to %g s.", len(self.children), seconds, extra=_event("stopping"))
        for child in self.children:
            child.stop(seconds + MARGIN_SECONDS)

    def kill(self) -> None:
        """End all at once."""
        for child in self.children:
            child.kill()

    def renew(self) -> None:
        """Have all replaced, one after the other, each once its successor works."""
        if self.stopping:
            return
        logger.info("Replacing all processes, one after the other.", extra=_event("renewing"))
        for seat in self.seats:
            seat.renew = seat.child is not None

    # -- births

    def start_missing(self) -> list[Child]:
        """Start whoever is missing and may be started now; return them."""
        now = time.monotonic()
        tried = [self._start(seat) for seat in self._open_seats() if seat.closed_until <= now]
        return [child for child in tried if child is not None]

    def next_start(self) -> float | None:
        """Return the monotonic second from which on somebody may be started; None where nobody is missing."""
        return min((seat.closed_until for seat in self._open_seats()), default=None)

    def _open_seats(self) -> list[Seat]:
        if self.stopping:
            return []
        empty = [seat for seat in self.seats if not seat.children and not seat.over]
        if not self._proven:  # Note [First one]
            return empty[:1] if not self.children else []
        if any(seat.candidate for seat in self.seats):
            return empty
        return empty + [seat for seat in self.seats if seat.renew][:1]

    def _start(self, seat: Seat) -> Child | None:
        try:
            child = Child(seat.number, self.options.command)
        except OSError as error:
            wait = seat.failed(0.0)
            logger.error("Process %d cannot be started: %s; trying again in %.1f s.", seat.number, error, wait)
            return None
        if seat.child is None:
            seat.child = child
        else:
            seat.candidate = child
        logger.info("Process %d started, pid %d.", child.number, child.pid, extra=_event("process_started", child))
        return child

    # -- what they say

    def hear(self, child: Child) -> None:
        """Take notice of what a child says."""
        for word in child.listen():
            for seat in self.seats:
                if word == WORKING and child in seat.children:
                    self._proven = True
                    if child is seat.candidate:
                        self._replace(seat)
                elif word == LEAVING and child is seat.child:
                    seat.renew = True

    def _replace(self, seat: Seat) -> None:
        former = seat.hand_over()
        if former is not None:
            text = "%s is replaced by pid %d and drains."
            logger.info(text, former, seat.child.pid if seat.child else 0, extra=_event("process_replaced", former))
            former.stop(self.options.drain_seconds + MARGIN_SECONDS)
            self._former.append(former)

    # -- deaths

    def bury(self) -> list[Child]:
        """Draw the conclusions from whoever has ended; return them, to be closed."""
        ended = [child for child in self.children if child.status is not None]
        for child in ended:
            self.hear(child)
            if self.stopping or self.options.burst:
                self.clean = self.clean and child.drained
            if child in self._former:
                self._former.remove(child)
                self._log_end(child)
                continue
            (seat,) = (seat for seat in self.seats if child in seat.children)
            if child is seat.candidate:
                self._candidate_ended(seat, child)
            else:
                self._child_ended(seat, child)
        return ended

    def _candidate_ended(self, seat: Seat, child: Child) -> None:
        seat.candidate = None
        seat.failed(child.lived_seconds)
        self._log_end(child, "before it worked; the process that it should replace goes on")
        for other in self.seats:  # who asked for a successor itself still needs one, after a while
            other.renew = other.child is not None and other.child.leaving

    def _child_ended(self, seat: Seat, child: Child) -> None:
        seat.hand_over()
        if self.stopping or child.status == RECYCLE:
            self._log_end(child)
        elif child.status == OK and self.options.burst:
            seat.over = True
            self._log_end(child)
        else:
            wait = seat.failed(child.lived_seconds)
            if not child.working and (child.status or 0) > 0 and not any(other.works for other in self.seats):
                self._give_up(child)
            else:
                self._log_end(child, f"after {child.lived_seconds:.1f} s; another one starts in {wait:.1f} s")

    def _give_up(self, child: Child) -> None:
        self.failure = (
            f"Process {child.number} {how_it_ended(child)} before it could work, and no other works. "
            "What it said stands above; correct that and start the command again."
        )
        self.stop()

    def _log_end(self, child: Child, remark: str = "") -> None:
        level = logging.INFO if child.status in (OK, RECYCLE) else logging.ERROR
        text = f"{how_it_ended(child)} {remark}".rstrip()
        logger.log(level, "%s %s.", child, text, extra=_event("process_ended", child))


def _event(name: str, child: Child | None = None) -> dict[str, Any]:
    """Return the fields of a JSON line."""
    event: dict[str, Any] = {"event": name}
    if child is not None:
        event |= {"process": child.number, "pid": child.pid}
        if child.status is not None:
            event |= {"exit_status": child.status}
    return {"delayq": event}
