"""Schedules, states and runs as the workers read and write them: plain values, named as the models' attributes.

Django's models stand wherever a person reads or writes. Knows no database: `ledger` reads and writes these.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Self

from ..calls import Call
from ..calls.results import result_id
from ..models import Condition, Origin, Run, Schedule, ScheduleState
from ..recurrence import Recurrence
from ..recurrence.policy import Recurring


@dataclass(slots=True, eq=False)
class StateRow:
    """What the workers know of a schedule: see `ScheduleState`. `stored` is False where it has no row yet."""

    schedule_id: int
    last_due_at: datetime | None = None
    next_due_at: datetime | None = None
    last_status: str = ""
    last_outcome_at: datetime | None = None
    last_lag_ms: int | None = None
    last_finished_at: datetime | None = None
    busy_from: datetime | None = None
    failing_streak: int = 0
    run_count: int = 0
    condition: str = Condition.ACTIVE.value
    condition_reason: str = ""
    mirrored_digest: str = ""
    pruned_until: datetime | None = None
    stored: bool = True


@dataclass(slots=True, eq=False)
class ScheduleRow(Recurring):
    """A definition, without what only people read of it, and its state: see `Schedule`."""

    state: StateRow
    pk: int
    name: str
    task: str
    kind: str
    cron: str
    every: timedelta | None
    every_from: str
    at: datetime | None
    timezone: str
    dst_gap: str
    dst_overlap: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    jitter: timedelta
    enabled: bool
    queue: str
    priority: int
    backend: str
    overlap: str
    missed: str
    grace: timedelta | None
    catch_up_window: timedelta | None
    max_catch_up: int
    timeout: timedelta | None
    max_attempts: int
    backoff: timedelta
    created_at: datetime
    generation: int
    synced_generation: int
    replaced_from: datetime | None
    effective_from: datetime
    on_success: str
    on_failure: str
    args: list[Any]
    kwargs: dict[str, Any]
    ping_url: str
    #: A `cached_property` would need a `__dict__`: reading 100 rows takes a quarter longer with one.
    _recurrence: Recurrence | None = field(default=None, init=False)

    def __str__(self) -> str:
        return self.name

    @property
    def recurrence(self) -> Recurrence:
        """See `Recurring.recurrence`; made once, since a row stays as it was read."""
        if self._recurrence is None:
            self._recurrence = self.recurrence_from(self.start_at or self.created_at)
        return self._recurrence


@dataclass(slots=True, eq=False)
class RunRow:
    """A row of the ledger: see `Run`. `pk` is 0 until it is inserted; a job has no schedule."""

    schedule_id: int | None
    schedule_name: str
    task: str
    queue: str
    generation: int
    due_at: datetime
    status: str = ""
    origin: str = Origin.DUE.value
    apart: bool = False
    reason: str = ""
    attempt: int = 0
    reclaims: int = 0
    fence: str = ""
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str = ""
    error: str = ""
    result: Any = None
    attempts: list[dict[str, Any]] | None = None
    last_due_at: datetime | None = None
    points: int = 1
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    token: str = ""
    backend: str = ""
    priority: int = 0
    call: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    unique_key: str | None = None
    expires_at: datetime | None = None
    pk: int = 0

    @classmethod
    def of(cls, schedule: "Schedule | ScheduleRow", due_at: datetime, **values: Any) -> Self:
        """Return a new row of this schedule, as its definition stands; `values` win."""
        same = {name: getattr(schedule, name) for name in ("task", "queue", "generation", "priority")}
        values = {**same, **values}
        return cls(schedule_id=schedule.pk, schedule_name=schedule.name, due_at=due_at, **values)

    @classmethod
    def job(cls, task: str, queue: str, backend: str, due_at: datetime, token: str, **values: Any) -> Self:
        """Return a new row of a job."""
        return cls(
            schedule_id=None, schedule_name="", generation=0, status="queued", origin="job", apart=True,
            task=task, queue=queue, backend=backend, due_at=due_at, token=token, **values,
        )  # fmt: skip

    @property
    def is_job(self) -> bool:
        """True where it has no schedule."""
        return bool(self.token)

    @property
    def title(self) -> str:
        """See `Run.title`."""
        return self.schedule_name or self.task

    @property
    def result_id(self) -> str:
        """See `Run.result_id`."""
        return result_id(self.pk, self.token) if self.token else ""

    @property
    def lag(self) -> timedelta | None:
        """See `Run.lag`."""
        return None if self.claimed_at is None or self.origin == Origin.BACKFILL else self.claimed_at - self.due_at

    @property
    def duration(self) -> timedelta | None:
        """See `Run.duration`."""
        return None if self.started_at is None or self.finished_at is None else self.finished_at - self.started_at


AnySchedule = Schedule | ScheduleRow
AnyState = ScheduleState | StateRow
AnyRun = Run | RunRow


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
