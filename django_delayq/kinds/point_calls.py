"""Calls the task of one due point, and turns what it does into a row of the ledger. Writes nothing anywhere."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from ..compat import AnyTask, TaskResult, TaskResultStatus
from ..context import RunContext
from ..exceptions import HandoverRefused, InvalidArguments, TaskTimeout
from ..handover import REASON as REASON_HANDED_OVER
from ..ledger import as_schedule
from ..models import Status
from ..registry import check_call
from ..rows import RunRow, ScheduleRow
from ..signals import run_started
from ..timing import to_ms
from .announcing import send
from .execution import Ended, backoff_ms, hung, perform, perform_task
from .handover import hand_over
from .held_point import HeldPoint
from .results import Told, take_or_note, tell
from .timeouts import Timeouts

#: The reason of a run whose task did not react to its timeout.
REASON_HUNG = "timeout"


def idempotency_key(run: RunRow) -> str:
    """Return the text that is the same for every execution of a due point, and for no other point."""
    return f"{run.schedule_id}:{run.origin}:{to_ms(run.due_at)}"


def execute(held: HeldPoint, timeouts: Timeouts) -> bool:
    """See `Kind.execute`. The row becomes succeeded, failed, or retrying with `held.retry_after_ms`."""
    run, schedule = held.judged.run, held.judged.schedule
    run.started_at = datetime.now(UTC)
    run.worker = held.worker
    send(run_started, run, schedule)
    run.attempt += 1
    ended = _call(held, timeouts)
    if ended is None:
        return False
    error = ended.error
    if error is None:
        run.result, error = take_or_note(ended.value)
    if error is None:
        run.status, run.error = Status.SUCCEEDED, ""
        run.reason = REASON_HANDED_OVER if schedule.backend else ""
    else:
        told = _told(error, schedule)
        run.error, run.reason = told.text, told.title
        held.retry_after_ms = _after_failure(run, schedule, error)
    run.finished_at = datetime.now(UTC)
    return True


def give_up(held: HeldPoint, where: str) -> None:
    """See `Kind.give_up`: failed or retrying, without the task."""
    run, schedule = held.judged.run, held.judged.schedule
    error = TaskTimeout()
    run.error, run.reason = _told(error, schedule, hung(held, where)).text, REASON_HUNG
    held.retry_after_ms = _after_failure(run, schedule, error)
    run.finished_at = datetime.now(UTC)


def _call(held: HeldPoint, timeouts: Timeouts) -> Ended | None:
    """Call the task, with the context where it takes one, or hand it over, within its schedule's timeout."""
    schedule, task = held.judged.schedule, held.task
    assert task is not None  # noqa: S101 - it is executed
    if schedule.backend:
        return perform(held, timeouts, partial(hand_over, task, schedule))
    try:
        check_call(task, schedule.args, schedule.kwargs)
    except InvalidArguments as error:
        return perform(held, timeouts, partial(_refuse, error))
    context = [_context(held, task, held.judged.run, schedule)] if task.takes_context else []
    return perform_task(held, task, timeouts, *context, *schedule.args, **schedule.kwargs)


def _refuse(error: InvalidArguments) -> None:
    raise error


def _context(held: HeldPoint, task: AnyTask, run: RunRow, schedule: ScheduleRow) -> RunContext:
    key = idempotency_key(run)
    result: TaskResult[..., Any] = TaskResult(
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


def _told(error: BaseException, schedule: ScheduleRow, trace: str = "") -> Told:
    timeout = None if schedule.timeout is None else schedule.timeout.total_seconds()
    return tell(error, schedule, timeout=timeout, trace=trace)


def _after_failure(run: RunRow, schedule: ScheduleRow, error: BaseException) -> int | None:
    """Set the status; return the delay in ms where another attempt is due, else None."""
    final = issubclass(type(error), InvalidArguments | HandoverRefused)  # trying again cannot help
    if final or run.attempt >= schedule.max_attempts:
        run.status = Status.FAILED
        return None
    run.status = Status.RETRYING
    return backoff_ms(schedule.backoff, run.attempt)
