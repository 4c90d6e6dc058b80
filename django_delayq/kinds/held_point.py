"""A claimed point on its way through the worker: its task is called, or handed over, and becomes a row of the ledger.

Writes nothing of ours anywhere.

Note [Accepted]
A point is handed over when the backend's `enqueue` has returned: only then it is recorded as succeeded and settled.
What becomes of the task afterwards is that backend's to tell; for the schedule's overlap, `every_from = finish` and
`max_runs` the point has ended. A result that says at once that it has failed was not accepted: so Django's
ImmediateBackend, which executes within `enqueue`, fails here as the task does.

Between `enqueue` and the ledger lies what no order of the two can close: a process that dies there leaves a task in the
other queue and no outcome, and the point is handed over once more. The other way round it would be lost.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from .. import chain, handover, tracing
from ..broker import Entry, Settlement
from ..compat import AnyResult, AnyTask, TaskResult, TaskResultStatus
from ..context import ExecutionContext, JobContext, RunContext
from ..exceptions import (
    HandoverFailed,
    HandoverRefused,
    InvalidArguments,
    ResultTooLarge,
    TaskCancelled,
    TaskTimeout,
)
from ..handover import REASON as REASON_HANDED_OVER
from ..jobs import TOO_LARGE, Call
from ..ledger import Outcome, as_schedule, keep_former
from ..models import Schedule, Status
from ..models.run import OPEN
from ..registry import check_call
from ..rows import RunRow, ScheduleRow
from ..signals import run_finished, run_started
from ..timing import Skip, from_ms, to_ms
from .announcing import idempotency_key, labels_of, nothing, ping, send
from .base import AGAIN_MS, Held, Verdicts
from .execution import Told, backoff_ms, hung, output_of, perform, perform_task, take_or_fail, take_or_note, tell
from .jobs import begin_job, close_job, end_job, running_job
from .timeouts import Timeouts


@dataclass(slots=True, eq=False, kw_only=True)
class HeldPoint(Held):
    """A member of a schedule's chain, or a run apart from it."""

    entry: Entry
    #: The fence of its claim, and the worker that made it.
    fence: str
    worker: str
    claimed_at: datetime
    #: The point that Redis names; the epoch where it names none.
    point: datetime
    #: What it has become or will have. There from its judgement on, where it is to be executed or recorded.
    outcome: Outcome = None  # type: ignore[assignment]
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
    def lapsed_at(self) -> datetime | None:
        """When the one had claimed it who let his lease run out before; None where none has, or that is not known."""
        return None if self.entry.lapsed_ms is None else from_ms(self.entry.lapsed_ms)

    @property
    def sort(self) -> Hashable:
        """See `Held.sort`. By the status, as jobs are written with some."""
        outcome = self.outcome
        return self.kind, outcome.run.status, outcome.seen is None, bool(outcome.output), bool(self.beside)

    @property
    def stop_key(self) -> int:
        """See `Held.stop_key`."""
        return self.outcome.run.pk if self.outcome else 0

    @property
    def title(self) -> str:
        """What people call it."""
        if not self.outcome:
            return self.member
        run = self.outcome.run
        return f"job {run.result_id}" if run.is_job else f"{run.schedule_name} due {run.due_at}"

    @property
    def labels(self) -> dict[str, str | int]:
        """See `Held.labels`."""
        return labels_of(self.outcome.run)

    @property
    def waited(self) -> tuple[datetime | None, float | None]:
        """See `Held.waited`."""
        run = self.outcome.run
        return run.due_at, None if run.lag is None or run.attempt > 1 else run.lag.total_seconds()

    def carried(self) -> tuple[dict[str, str], bool]:
        """See `Held.carried`: an order and a job belong to the trace that they were made in."""
        carried = (self.outcome.run.options or {}).get("trace")
        return (carried, True) if isinstance(carried, dict) else ({}, False)

    @property
    def in_chain(self) -> bool:
        """True for a member of a schedule's chain, False for a run apart from it."""
        return self.member.startswith("s")

    def backoff_left_ms(self, run: RunRow, call: ScheduleRow | Call) -> int:
        """Return for how long a retry has still to wait of which Redis does not know: not settled, or flushed."""
        if run.status != Status.RETRYING or self.entry.attempts >= run.attempt or run.finished_at is None:
            return 0
        if run.is_job and run.due_at > run.finished_at:  # it was moved since
            return 0
        waits_ms = backoff_ms(call.backoff, run.attempt)
        return min(waits_ms, waits_ms - to_ms(self.claimed_at) + to_ms(run.finished_at))

    def new_run(self, schedule: ScheduleRow, due_at: datetime, **values: object) -> RunRow:
        """Return an unsaved row of this schedule's chain, claimed by this worker."""
        return RunRow.of(schedule, due_at, fence=self.fence, claimed_at=self.claimed_at, worker=self.worker, **values)

    def skipped_run(self, schedule: ScheduleRow, skip: Skip) -> RunRow:
        """Return an unsaved row of what is skipped."""
        run = self.new_run(schedule, from_ms(to_ms(skip.first)))
        if skip.points > 1:
            run.points, run.last_due_at = skip.points, from_ms(to_ms(skip.last))
        self.close(run, Status.SKIPPED, skip.reason)
        return run

    def close(self, run: RunRow, status: Status, reason: str) -> None:
        """Fill in an outcome without an execution."""
        keep_former(run, self.lapsed_at)
        run.status, run.reason, run.fence, run.worker = status, reason, self.fence, self.worker
        run.claimed_at = run.claimed_at or self.claimed_at
        run.finished_at = self.claimed_at
        if self.outcome and run is self.outcome.run:
            close_job(self)

    def go_to(self, point: datetime | None, schedule: ScheduleRow) -> "HeldPoint":
        """Have it be settled to the next point of this schedule; None drops it."""
        if point is None:
            return self.drop()
        point_ms = to_ms(point)
        wake_ms = to_ms(chain.wake_of(schedule, point)) if schedule.jitter else point_ms
        self.settlement = Settlement(self.member, self.lease, "next", wake_ms, self.generation, point_ms)
        return self

    def put_off(self, point: datetime) -> "HeldPoint":
        """Have it be settled to this point of its own: a row comes due then."""
        point_ms = to_ms(point)
        self.settlement = Settlement(self.member, self.lease, "next", point_ms, self.generation, point_ms)
        return self

    def drop(self) -> "HeldPoint":
        """Have it be settled as one that has no next point."""
        self.settlement = Settlement(self.member, self.lease, "drop", 0, self.generation)
        return self

    def wait(self, what: str, delay_ms: int) -> "HeldPoint":
        """Have it be settled as one that comes due again after so long: see settle.lua."""
        self.settlement = Settlement(self.member, self.lease, what, delay_ms)
        return self


def holds_until_end(run: RunRow) -> bool:
    """Say whether a job holds its unique key until it has ended."""
    return (run.options or {}).get("unique_until") == "end"


@dataclass(slots=True)
class PointVerdicts(Verdicts[HeldPoint]):
    """The batch, sorted by what happens next, with what `Points` writes before that."""

    #: Stretches left by edits, to be recorded before anything else.
    stretches: list[Outcome] = field(default_factory=list)
    #: Open runs of schedules that are gone: close them.
    orphans: list[RunRow] = field(default_factory=list)
    #: The next point cannot be computed: park.
    park: list[HeldPoint] = field(default_factory=list)
    #: To be put anew, once their members are dropped.
    again: list[RunRow] = field(default_factory=list)

    def put_back(self, members: Collection[str]) -> None:
        """Have these be handed back, instead of what was found before."""
        Verdicts.put_back(self, members)
        self.back += [(held, AGAIN_MS) for held in self.park if held.member in members]
        self.park = [held for held in self.park if held.member not in members]


#: The reason of a run whose task did not react to its timeout.
REASON_HUNG = "timeout"
#: The reason of one that somebody has stopped, perhaps with who it was.
REASON_CANCELLED = "cancelled"


class PointCalls:
    """What a slot does with an entry, for `Points`."""

    timeouts: Timeouts

    def execute(self, held: HeldPoint) -> bool:
        """See `Kind.execute`. The row becomes succeeded, failed, or retrying with `held.retry_after_ms`."""
        outcome, run, task = held.outcome, held.outcome.run, held.task
        assert task is not None  # noqa: S101 - it is executed
        run.started_at = datetime.now(UTC)
        run.worker = held.worker
        if held.span is not None:
            outcome.trace = tracing.ids(held.span)
        result = None
        if outcome.schedule is not None:
            send(run_started, "run_started", run, outcome.schedule)
            ping(run, outcome.schedule, "/start")
            run.attempt += 1
        else:
            run.attempt += 1
            result = begin_job(held, task)
        call = outcome.call
        try:
            if call.backend:
                ended = perform(held, self.timeouts, partial(hand_over, task, call))
            else:
                check_call(task, call.args, call.kwargs)
                context = [_context(held, task, result)] if task.takes_context else []
                ended = perform_task(held, task, self.timeouts, *context, *call.args, **call.kwargs)
        except InvalidArguments as refused:
            ended = perform(held, self.timeouts, partial(_refuse, refused))
        if ended is None:
            return False
        error = ended.error
        if error is None:
            run.result, error = (take_or_fail if run.is_job else take_or_note)(ended.value)
        if run.is_job and error is not None and issubclass(type(error), ResultTooLarge):
            run.status, run.reason, run.error = Status.SUCCEEDED, TOO_LARGE, str(error)
        elif error is None:
            run.status, run.error = Status.SUCCEEDED, ""
            run.reason = REASON_HANDED_OVER if call.backend else ""
        else:
            told = held.failure = _told(error, call)
            run.error, run.reason = told.text, told.title
            outcome.error = told.error
            held.retry_after_ms = _after_failure(held, error)
        _end(held)
        if result is not None:
            end_job(held, result)
        elif run_finished.has_listeners(Schedule):
            held.after = nothing  # until it is recorded: see `Points.record`
        return True

    def give_up(self, held: HeldPoint, where: str) -> None:
        """See `Kind.give_up`: failed or retrying, without the task."""
        outcome, error = held.outcome, TaskTimeout() if held.stopped_by is None else TaskCancelled()
        result = running_job(held, held.task) if outcome.schedule is None and held.task is not None else None
        held.failure = _told(error, outcome.call, hung(held, where))
        outcome.run.error, outcome.run.reason, outcome.error = held.failure.text, REASON_HUNG, error
        held.retry_after_ms = _after_failure(held, error)
        _end(held)
        if result is not None:
            end_job(held, result)


def _end(held: HeldPoint) -> None:
    run = held.outcome.run
    run.finished_at = datetime.now(UTC)
    held.outcome.output = output_of(held, held.outcome.call)
    if run.status not in OPEN:
        close_job(held)


def _refuse(error: InvalidArguments) -> None:
    raise error


def _context(held: HeldPoint, task: AnyTask, result: AnyResult | None) -> ExecutionContext:
    run, schedule = held.outcome.run, held.outcome.schedule
    key = idempotency_key(run)
    if schedule is None:
        assert result is not None  # noqa: S101
        return JobContext(task_result=result, idempotency_key=key, _lease_lost=held.is_lost)
    result = TaskResult(
        task=task,
        id=key,
        status=TaskResultStatus.RUNNING,
        enqueued_at=run.due_at,
        started_at=run.started_at,
        finished_at=None,
        last_attempted_at=run.started_at,
        args=schedule.args,
        kwargs=schedule.kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[run.worker] * run.attempt,
    )
    return RunContext(
        task_result=result,
        schedule=as_schedule(schedule),
        due_at=run.due_at,
        idempotency_key=key,
        attempt_number=run.attempt,
        _lease_lost=held.is_lost,
    )


def _told(error: BaseException, call: ScheduleRow | Call, trace: str = "") -> Told:
    timeout = None if call.timeout is None else call.timeout.total_seconds()
    return tell(error, call, timeout=timeout, trace=trace)


def _after_failure(held: HeldPoint, error: BaseException) -> int | None:
    """Set the status; return the delay in ms where another attempt is due, else None."""
    run, call = held.outcome.run, held.outcome.call
    if held.stopped_by is not None:
        run.reason = f"{REASON_CANCELLED} by {held.stopped_by}"[:200] if held.stopped_by else REASON_CANCELLED
    final = issubclass(type(error), InvalidArguments | HandoverRefused)  # trying again cannot help
    if final or held.stopped_by is not None or run.attempt >= call.max_attempts:
        run.status = Status.FAILED
        return None
    run.status = Status.RETRYING
    return backoff_ms(call.backoff, run.attempt)


def hand_over(task: AnyTask, schedule: Any) -> dict[str, Any]:
    """Enqueue the task where the schedule says; return alias and result id, to be stored. See Note [Accepted].

    Raises:
        HandoverRefused: The backend is unknown or does not take the task; nothing was enqueued.
        InvalidArguments: The arguments do not fit the task; nothing was enqueued.
        HandoverFailed: The result says that it has failed.
        Exception: What the backend raised; whether it has enqueued is not known.
    """
    check_call(task, schedule.args, schedule.kwargs)
    prepared = handover.prepare(task, schedule.backend, schedule.priority)
    result: Any = prepared.enqueue(*schedule.args, **schedule.kwargs)
    if getattr(result, "status", None) == TaskResultStatus.FAILED:
        raise _failure(schedule.backend, result)
    result_id = getattr(result, "id", None)  # whatever a backend returns, it has accepted
    return {"backend": schedule.backend, "result_id": None if result_id is None else str(result_id)}


def _failure(backend: str, result: Any) -> HandoverFailed:
    errors = getattr(result, "errors", None)
    trace = str(errors[-1].traceback).strip() if errors else ""
    last = trace.rpartition("\n")[2] or "it tells no error"
    failure = HandoverFailed(f"The TASKS backend {backend!r} returned a failed result: {last}")
    failure.add_note(trace)
    return failure
