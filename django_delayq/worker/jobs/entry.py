"""A claimed job on its way through the worker. Values only."""

import time
from dataclasses import dataclass, field
from typing import Any

from ...broker import JobEntry, JobSettlement, Place, held_by
from ...compat import AnyTask
from ...jobs import Call, Retries, State, result_id
from ...ledger import JobRow
from ...models import JobStatus

#: Until a job's text is read.
BLANK, DEFAULT = State(), Retries()


class Flag:
    """A bool that one thread sets and others read: what is needed of `threading.Event`, at a tenth of its cost."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """Make it true."""
        self._set = True

    def is_set(self) -> bool:
        """Say whether it is true."""
        return self._set


@dataclass(slots=True, eq=False)
class HeldJob:
    """A job under this worker's lease. `deadline` is monotonic: after it the lease may be somebody else's."""

    place: Place
    entry: JobEntry
    fence: str
    deadline: float
    lost: Flag = field(default_factory=Flag)
    #: The call as it stands in Redis, and what has become of it; there once the text has been read.
    line: str = ""
    call: Call | None = None
    state: State = BLANK
    retries: Retries = DEFAULT
    #: The backend of its alias, which sends its signals; and the task as it was enqueued.
    backend: Any = None
    task: AnyTask | None = None
    #: True once a take-over of it was counted.
    begun: bool = False
    #: True where its outcome belongs into the database; `row` is what was read there of a durable one, and `before`
    #: what was read before its take-over was written. See `rows.py`.
    stored: bool = False
    row: JobRow | None = None
    before: JobRow | None = None
    _unconcluded: list[None] = field(default_factory=lambda: [None])

    def conclude(self) -> bool:
        """Say True to the first caller only, whatever the thread: that one reports the outcome of this execution."""
        try:
            self._unconcluded.pop()  # atomic
        except IndexError:
            return False
        return True

    def lapsed(self) -> bool:
        """Say whether the lease may be somebody else's by now, so that nothing must be started on it."""
        return self.lost.is_set() or time.monotonic() >= self.deadline

    @property
    def member(self) -> str:
        """The member's name."""
        return self.entry.member

    @property
    def former(self) -> tuple[str, int | None]:
        """Who began to execute it before, without an end, and the ms of that claim; ('', None) where not known."""
        if self.before is not None and self.before.status == JobStatus.RUNNING:
            return held_by(self.before.fence)
        return held_by(self.entry.former)

    @property
    def title(self) -> str:
        """What people call it."""
        return f"job {self.result_id}"

    @property
    def result_id(self) -> str:
        """The id of its result."""
        return result_id(self.place.queue, self.entry.member)

    def release(self, delay_ms: int) -> JobSettlement:
        """Return how it is handed back unstarted."""
        before = "begun" if self.begun else "lapsed" if self.entry.lapsed else ""
        return JobSettlement(self.member, self.fence, "release", delay_ms, before)


@dataclass(slots=True, eq=False)
class FinishedJob:
    """What a slot reports back, see `Finished`. `settlement`: what becomes of the job; None where it did not start."""

    held: HeldJob
    seconds: float
    settlement: JobSettlement | None = None
    executed: bool = False
    hung: bool = False
    #: See `worker/locked.py`.
    locked_at: float = 0.0
    told: bool = False

    @property
    def title(self) -> str:
        """What people call it."""
        return self.held.title
