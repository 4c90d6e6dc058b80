"""Calls the task of an entry, or hands it over, and fills in what becomes of its row. Writes nothing of ours anywhere.

Note [Accepted]
A point is handed over when the backend's `enqueue` has returned: only then it is recorded as succeeded and settled.
What becomes of the task afterwards is that backend's to tell; for the schedule's overlap, `every_from = finish` and
`max_runs` the point has ended. A result that says at once that it has failed was not accepted: so Django's
ImmediateBackend, which executes within `enqueue`, fails here as the task does.

Between `enqueue` and the ledger lies what no order of the two can close: a process that dies there leaves a task in the
other queue and no outcome, and the point is handed over once more. The other way round it would be lost.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from .. import handover, tracing
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
from ..ledger import as_schedule
from ..models import Schedule, Status
from ..models.run import OPEN
from ..registry import check_call
from ..rows import ScheduleRow
from ..signals import run_finished, run_started
from .announcing import idempotency_key, nothing, ping, send
from .execution import Told, hung, output_of, perform, perform_task, take_or_fail, take_or_note, tell
from .held import Held, backoff_ms
from .jobs import begin_job, close_job, end_job, running_job
from .timeouts import Timeouts

#: The reason of a run whose task did not react to its timeout.
REASON_HUNG = "timeout"
#: The reason of one that somebody has stopped, perhaps with who it was.
REASON_CANCELLED = "cancelled"


def execute(held: Held, timeouts: Timeouts) -> bool:
    """Call the task and fill in its outcome: succeeded, failed, or retrying with `held.retry_after_ms`. Never raises.

    Called in a slot's thread. False where the task ended after its hard timeout: its outcome was reported without it.
    """
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
            ended = perform(held, timeouts, partial(hand_over, task, call))
        else:
            check_call(task, call.args, call.kwargs)
            context = [_context(held, task, result)] if task.takes_context else []
            ended = perform_task(held, task, timeouts, *context, *call.args, **call.kwargs)
    except InvalidArguments as refused:
        ended = perform(held, timeouts, partial(_refuse, refused))
    if ended is None:
        return False
    error, too_large = ended.error, False  # a task may raise that of another job's result: it has failed
    if error is None:
        run.result, error = (take_or_fail if run.is_job else take_or_note)(ended.value)
        too_large = run.is_job and issubclass(type(error), ResultTooLarge)
    if too_large:
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


def give_up(held: Held, where: str) -> None:
    """Fill in the outcome of a task that does not end: failed or retrying; `where` is what its thread does.

    Called after `conclude`.
    """
    outcome, error = held.outcome, TaskTimeout() if held.stopped_by is None else TaskCancelled()
    result = running_job(held, held.task) if outcome.schedule is None and held.task is not None else None
    held.failure = _told(error, outcome.call, hung(held, where))
    outcome.run.error, outcome.run.reason, outcome.error = held.failure.text, REASON_HUNG, error
    held.retry_after_ms = _after_failure(held, error)
    _end(held)
    if result is not None:
        end_job(held, result)


def _end(held: Held) -> None:
    run = held.outcome.run
    run.finished_at = datetime.now(UTC)
    held.outcome.output = output_of(held, held.outcome.call)
    if run.status not in OPEN:
        close_job(held)


def _refuse(error: InvalidArguments) -> None:
    raise error


def _context(held: Held, task: AnyTask, result: AnyResult | None) -> ExecutionContext:
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


def _after_failure(held: Held, error: BaseException) -> int | None:
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
