"""A claimed point on its way through the worker. Values only."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .. import chain
from ..broker import Entry, Settlement
from ..ledger import Outcome
from ..rows import ScheduleRow
from ..timing import from_ms, to_ms
from .base import Held


@dataclass(slots=True, eq=False, kw_only=True)
class HeldPoint(Held):
    """A member of a schedule's chain, or a run apart from it."""

    entry: Entry
    #: The fence of its claim, and the worker that made it.
    fence: str
    worker: str
    claimed_at: datetime
    #: What it has become or will have, once it is judged.
    outcome: Outcome | None = None
    #: To be recorded with its outcome: what an edit left behind it (rule R8), or what is skipped for it (R9).
    beside: list[Outcome] = field(default_factory=list)
    #: The generation of the definition that was used; the mirror's may be newer or older.
    generation: int = 0
    #: What the row was before this worker wrote that it runs; None where it wrote nothing.
    before: dict[str, Any] | None = None
    #: After how long another attempt is due, where the last one failed.
    retry_after_ms: int | None = None
    #: What becomes of it in Redis.
    settlement: Settlement | None = None

    @property
    def judged(self) -> Outcome:
        """Its outcome, which is there from its judgement on."""
        assert self.outcome is not None  # noqa: S101
        return self.outcome

    @property
    def point(self) -> datetime:
        """The point that Redis names."""
        return from_ms(self.entry.point_ms or 0)

    @property
    def lapsed_at(self) -> datetime | None:
        """When the one had claimed it who let his lease run out before; None where none has, or that is not known."""
        return None if self.entry.lapsed_ms is None else from_ms(self.entry.lapsed_ms)

    @property
    def title(self) -> str:
        """What people call it."""
        return (
            self.member if self.outcome is None else f"{self.outcome.run.schedule_name} due {self.outcome.run.due_at}"
        )

    @property
    def limit(self) -> float | None:
        """See `Held.limit`: its schedule's timeout."""
        timeout = self.judged.schedule.timeout
        return None if timeout is None else max(0.0, timeout.total_seconds())

    @property
    def in_chain(self) -> bool:
        """True for a member of a schedule's chain, False for a run apart from it."""
        return self.member.startswith("s")

    def go_to(self, point: datetime | None, schedule: ScheduleRow) -> "HeldPoint":
        """Have it be settled to the next point of this schedule; None drops it."""
        if point is None:
            return self.drop()
        wake = to_ms(chain.wake_of(schedule, point))
        self.settlement = Settlement(self.member, self.lease, "next", wake, self.generation, to_ms(point))
        return self

    def drop(self) -> "HeldPoint":
        """Have it be settled as one that has no next point."""
        self.settlement = Settlement(self.member, self.lease, "drop", 0, self.generation)
        return self

    def wait(self, what: str, delay_ms: int) -> "HeldPoint":
        """Have it be settled as one that comes due again after so long: see settle.lua."""
        self.settlement = Settlement(self.member, self.lease, what, delay_ms)
        return self
