"""Schedules, states and runs as workers read and write them: plain values, named as the models' attributes."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Self

from ..calls import Call
from ..calls.attempt import NOT_ENDED, Attempt, add_attempt, from_json, to_json
from ..models import Condition, Origin, Run, Schedule, ScheduleState, Status
from ..models.run import RunProperties
from ..recurrence import Recurrence, to_ms
from ..recurrence.policy import Recurring


@dataclass(slots=True, eq=False)
class StateRow:
    """The state of a schedule: see `ScheduleState`. `stored` is False if it has no row yet."""

    schedule_id: int
    last_due_at: datetime | None = None
    next_due_at: datetime | None = None
    last_status: str = ""
    last_outcome_at: datetime | None = None
    last_latency_ms: int | None = None
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
    """A definition and its state, without fields that only users read: see `Schedule`."""

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
    #: Not a `cached_property`: with the `__dict__` it needs, reading 100 rows takes a quarter longer.
    _recurrence: Recurrence | None = field(default=None, init=False)

    def __str__(self) -> str:
        return self.name

    @property
    def recurrence(self) -> Recurrence:
        if self._recurrence is None:
            self._recurrence = self.build_recurrence(self.start_at or self.created_at)
        return self._recurrence


@dataclass(slots=True, eq=False)
class RunRow(RunProperties):
    """A row of the ledger: see `Run`. `pk` is 0 until it is inserted; a job has no schedule."""

    schedule_id: int | None
    schedule_name: str
    task: str
    queue: str
    generation: int
    due_at: datetime
    status: str = ""
    origin: str = Origin.DUE.value
    separate: bool = False
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
    def build_job(cls, task: str, queue: str, backend: str, due_at: datetime, token: str, **values: Any) -> Self:
        return cls(
            schedule_id=None, schedule_name="", generation=0, status="queued", origin="job", separate=True,
            task=task, queue=queue, backend=backend, due_at=due_at, token=token, **values,
        )  # fmt: skip


AnySchedule = Schedule | ScheduleRow
AnyState = ScheduleState | StateRow
AnyRun = Run | RunRow


class Won(Enum):
    """The result of a write."""

    YES = "yes"
    LOST = "lost"  # another worker decided this point: do not touch Redis
    LOCKED = "locked"  # another transaction has locked a row: nothing is written, try again later
    GONE = "gone"  # the schedule was deleted or recreated: nothing to record, drop the member


#: Columns that identify a version of a row, even if a restored database reuses its primary key.
VERSION = ("status", "attempt", "fence", "worker", "created_at")
Version = tuple[str, int, str, str, datetime]


@dataclass(slots=True)
class Outcome:
    """A row to be written: a new row if `seen` is None, otherwise an update of the row with the version `seen`.

    `owner` is an outcome of the same call. A new row is written only if its owner is; both get the `next_point`.
    `repeated`: an earlier call wrote the row. `record` sets `schedule` and `next_point` as of its transaction.
    """

    run: RunRow
    #: None for a job; its call is in `job`.
    schedule: ScheduleRow | None
    seen: Version | None = None
    next_point: datetime | None = None
    repeated: bool = False
    owner: "Outcome | None" = None
    #: For reports: the exception that ended the execution, and the ids of its trace.
    error: BaseException | None = field(default=None, repr=False)
    trace: dict[str, str] | None = None
    #: The captured output of the last attempt.
    output: str = ""
    job: Call | None = None
    #: The callback's job, once the outcome is recorded.
    callback: RunRow | None = None

    @property
    def is_deleted(self) -> bool:
        """True if the row is deleted instead of written, because it would expire at once."""
        run = self.run
        return run.expires_at is not None and run.finished_at is not None and run.expires_at <= run.finished_at

    @property
    def call(self) -> "ScheduleRow | Call":
        found = self.job if self.schedule is None else self.schedule
        assert found is not None  # noqa: S101
        return found


def get_version(run: RunRow) -> Version:
    return run.status, run.attempt, run.fence, run.worker, run.created_at


def keep_former(run: AnyRun, lapsed_at: datetime | None = None, *, ended: bool = False) -> None:
    """Add the attempt of an open row to `attempts`, before the next begins or the row is closed.

    `ended`: the row has an outcome and is retried. `lapsed_at`: when an unsaved `running` row was claimed.
    """
    before = from_json(run.attempts)
    worker, started = ("", _to_ms(lapsed_at)) if not run.pk else (run.worker, _to_ms(run.started_at))
    if run.status == Status.RETRYING or (ended and started is not None and not _is_kept(before, started)):
        before = add_attempt(before, started, _to_ms(run.finished_at), worker, run.reason, run.error)
    elif run.status == Status.RUNNING:
        before = add_attempt(before, started, None, worker, NOT_ENDED)
    else:
        return
    run.attempts = to_json(before)


def list_attempts(run: AnyRun) -> list[Attempt]:
    """Return the attempts of a row, each once, oldest first; the last one may be running."""
    before = from_json(run.attempts)
    started = _to_ms(run.started_at)
    if started is None or run.status in (Status.QUEUED, Status.SKIPPED) or _is_kept(before, started):
        return before
    if run.status == Status.RUNNING:
        return add_attempt(before, started, None, run.worker, "")
    title = "" if run.status == Status.SUCCEEDED else run.reason
    return add_attempt(before, started, _to_ms(run.finished_at), run.worker, title, run.error)


def _is_kept(before: list[Attempt], started: int) -> bool:
    return bool(before) and before[-1].started == started


def _to_ms(value: datetime | None) -> int | None:
    return None if value is None else to_ms(value)
