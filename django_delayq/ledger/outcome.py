"""What is to be written into the ledger, and what became of it."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ..jobs import Call
from ..rows import RunRow, ScheduleRow


class Won(Enum):
    """What became of a write."""

    YES = "yes"
    LOST = "lost"  # somebody else decided this point: do not touch Redis
    LOCKED = "locked"  # somebody else's transaction has locked a row of it: nothing is written, try again later
    GONE = "gone"  # the schedule was deleted or made anew: nothing to record, drop the member


#: What tells one state of a row from another, and a row from that which a restored database gave its key: the columns,
#: and their values.
VERSION = ("status", "attempt", "fence", "worker", "created_at")
Version = tuple[str, int, str, str, datetime]


@dataclass(slots=True)
class Outcome:
    """A row to be written: new where `seen` is None, else an update of the row that looked like `seen`.

    `owner` is the outcome in the same call without which a new row must not be written; its `next_point` follows.
    `repeated` is set where an earlier call had written it, and only the reply to its COMMIT was lost.
    After `record`, `schedule` and `next_point` hold the definition and the chain's next point as of that transaction.
    """

    run: RunRow
    #: None for a job: then `job` is what it calls.
    schedule: ScheduleRow | None
    seen: Version | None = None
    next_point: datetime | None = None
    repeated: bool = False
    owner: "Outcome | None" = None
    #: For whoever tells of it: what ended the execution, and the ids of its trace.
    error: BaseException | None = field(default=None, repr=False)
    trace: dict[str, str] | None = None
    #: What its last attempt has said.
    output: str = ""
    job: Call | None = None
    #: The job that follows it, once it was recorded.
    callback: RunRow | None = None

    @property
    def is_deleted(self) -> bool:
        """Whether its row goes in the statement that would write the outcome: nothing of it is to be kept."""
        run = self.run
        return run.expires_at is not None and run.finished_at is not None and run.expires_at <= run.finished_at

    @property
    def call(self) -> "ScheduleRow | Call":
        """What is executed."""
        found = self.job if self.schedule is None else self.schedule
        assert found is not None  # noqa: S101
        return found


def version_of(run: RunRow) -> Version:
    """Return what identifies this state of a row."""
    return run.status, run.attempt, run.fence, run.worker, run.created_at
