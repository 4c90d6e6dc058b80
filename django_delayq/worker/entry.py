"""A claimed member on its way through the worker. Values only."""

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..broker import Entry, Lease, Place, Settlement
from ..ledger import Outcome
from ..timing import from_ms, to_ms


@dataclass(slots=True, eq=False)
class Held:
    """A member under this worker's lease. `deadline` is monotonic: after it the lease may be somebody else's."""

    place: Place
    entry: Entry
    fence: str
    claimed_at: datetime
    deadline: float
    outcome: Outcome | None = None
    #: To be recorded with its outcome: what an edit left behind it (rule R8), or what is skipped for it (R9).
    beside: list[Outcome] = field(default_factory=list)
    #: The generation of the definition that was used; the mirror's may be newer or older.
    generation: int = 0
    lost: threading.Event = field(default_factory=threading.Event)
    #: What the row was before this worker wrote that it runs; None where it wrote nothing.
    before: dict[str, Any] | None = None
    _concluded: threading.Lock = field(default_factory=threading.Lock)

    def conclude(self) -> bool:
        """Say True to the first caller only, whatever the thread: that one reports the outcome of this execution."""
        return self._concluded.acquire(blocking=False)

    def lapsed(self) -> bool:
        """Say whether the lease may be somebody else's by now, so that nothing must be started on it."""
        return self.lost.is_set() or time.monotonic() >= self.deadline

    @property
    def lapsed_at(self) -> datetime | None:
        """When the one had claimed it who let his lease run out before; None where none has, or that is not known."""
        return None if self.entry.lapsed_ms is None else from_ms(self.entry.lapsed_ms)

    @property
    def member(self) -> str:
        """The member's name."""
        return self.entry.member

    def lease(self, delay_ms: int = 0) -> Lease:
        """Return this lease, to be renewed or handed back."""
        return Lease(self.member, self.fence, delay_ms)

    def settlement(self, point: datetime | None, wake: datetime | None = None) -> Settlement:
        """Return the move to the next point; None drops the member."""
        if point is None:
            return Settlement(self.member, self.fence, self.generation, None)
        return Settlement(self.member, self.fence, self.generation, to_ms(point), to_ms(wake or point))


@dataclass(slots=True, eq=False)
class Finished:
    """What a slot reports back: the held entry, whose outcome's row is filled in, and how long the task took.

    `started` is False where the lease had lapsed before a slot was free: there is nothing to record then. `executed` is
    True where the task was called. `hung` is True where it goes on although its time is over: its thread is lost to
    this process.
    """

    held: Held
    seconds: float
    retry_after_ms: int | None = None
    started: bool = True
    executed: bool = False
    hung: bool = False
    #: See `locked.py`.
    locked_at: float = 0.0
    told: bool = False

    @property
    def title(self) -> str:
        """What people call it."""
        outcome = self.held.outcome
        return self.held.member if outcome is None else f"{outcome.run.schedule_name} due {outcome.run.due_at}"
