"""One of the supervisor's places: who works there, who is to take over, when to try again. Starts and ends nothing."""

import time

from ..worker.trouble import Backoff
from .child import Child

#: A child that lived for less died young: what follows waits longer each time, from 0.1 s to 5 s.
YOUNG_SECONDS = 10.0


class Seat:
    """`number` is from 1. `child` works here; `candidate` starts, and takes over once it works.

    `renew` is True while the child is to be replaced although it works, `over` once nobody is needed here any more.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.candidate: Child | None = None
        self.renew = self.over = False
        self._backoff = Backoff()

    @property
    def children(self) -> list[Child]:
        """Who lives here now."""
        return [child for child in (self.child, self.candidate) if child is not None]

    @property
    def works(self) -> bool:
        """True while somebody here has come to work."""
        return self.child is not None and self.child.working

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

    def hand_over(self) -> Child | None:
        """Let the candidate, or nobody, take the place; return who had it."""
        former, self.child, self.candidate, self.renew = self.child, self.candidate, None, False
        return former
