"""A claimed job on its way through the worker. Values only."""

from dataclasses import dataclass
from typing import Any

from ..broker import JobEntry, JobSettlement, held_by
from ..jobs import Call, Retries, State, result_id
from ..ledger import JobRow
from ..models import JobStatus
from .base import Held

#: Until a job's text is read.
BLANK, DEFAULT = State(), Retries()


@dataclass(slots=True, eq=False, kw_only=True)
class HeldJob(Held):
    """A job of Redis alone, or one that stands in the database too."""

    entry: JobEntry
    stored: bool = False
    #: The call as it stands in Redis, and what has become of it; there once the text has been read.
    line: str = ""
    call: Call | None = None
    state: State = BLANK
    retries: Retries = DEFAULT
    #: The backend of its alias, which sends its signals.
    backend: Any = None
    #: True once a take-over of it was counted.
    begun: bool = False
    #: What was read in the database of a durable one, and what stood there before its take-over was written.
    row: JobRow | None = None
    before: JobRow | None = None
    #: What becomes of it in Redis.
    settlement: JobSettlement | None = None

    @property
    def former(self) -> tuple[str, int | None]:
        """Who began to execute it before, without an end, and the ms of that claim; ('', None) where not known."""
        if self.before is not None and self.before.status == JobStatus.RUNNING:
            return held_by(self.before.fence)
        return held_by(self.entry.former)

    @property
    def read(self) -> Call:
        """Its call, which is there once its text has been read."""
        assert self.call is not None  # noqa: S101
        return self.call

    @property
    def title(self) -> str:
        """What people call it."""
        return f"job {self.result_id}"

    @property
    def limit(self) -> float | None:
        """See `Held.limit`: its call's timeout."""
        return self.retries.timeout or None

    @property
    def result_id(self) -> str:
        """The id of its result."""
        return result_id(self.place.queue, self.member)

    def settle(self, what: str, ms: int = 0, text: str = "") -> "HeldJob":
        """Have it be settled so: see job_settle.lua."""
        self.settlement = JobSettlement(self.member, self.lease, what, ms, text)
        return self

    @property
    def settled(self) -> JobSettlement:
        """What becomes of it in Redis, once that is known."""
        assert self.settlement is not None  # noqa: S101
        return self.settlement

    def drop(self) -> "HeldJob":
        """Have it be forgotten: it is not to be executed."""
        return self.settle("done")

    def release(self, delay_ms: int) -> "HeldJob":
        """Have it be handed back unstarted."""
        return self.settle("release", delay_ms, "begun" if self.begun else "lapsed" if self.entry.lapsed else "")
