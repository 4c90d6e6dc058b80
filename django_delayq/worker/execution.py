"""Calls one task and turns what it does into a row of the ledger. Writes nothing anywhere.

Note [Attempts]
Rule R5. Attempts are counted in the row, `Run.attempt`, when they end; the number that Redis keeps beside the entry
only says that it waits for a retry. So a flush, a rebuild or a restored snapshot grants no new attempts. A take-over
after a crash is no attempt of the task's, and is counted apart (`isolation.py`, Note [Alone]).
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction

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
from .children import end_as_child
from .connections import close_aged_connections, forget_connections, tidy_connections
from .entry import Finished, Held
from .handover import hand_over
from .results import Told, take_or_note, tell
from .timeouts import Timeouts

logger = logging.getLogger("django_delayq.worker")

MAX_BACKOFF = timedelta(hours=1)
#: The reason of a run whose task did not react to its timeout.
REASON_HUNG = "timeout"


def idempotency_key(run: RunRow) -> str:
    """Return the text that is the same for every execution of a due point, and for no other point."""
    return f"{run.schedule_id}:{run.origin}:{to_ms(run.due_at)}"


def execute(held: Held, task: AnyTask, worker: str, timeouts: Timeouts) -> Finished | None:
    """Call the task and fill in the row: succeeded, failed, or retrying with the delay. Never raises.

    A `BaseException` that is no `Exception` (a task that calls `sys.exit`) is a failure of the task too. Returns None
    where the task ended after its hard timeout: its outcome was recorded without it.
    """
    assert held.outcome is not None  # noqa: S101 - judged entries have one
    run, schedule = held.outcome.run, held.outcome.schedule
    run.started_at = datetime.now(UTC)
    run.worker = worker
    send(run_started, run, schedule)
    close_aged_connections()
    run.attempt += 1
    began, process = time.perf_counter(), os.getpid()
    value, error = _attempt(task, run, schedule, held, timeouts)
    if os.getpid() != process:
        end_as_child(error)
    seconds = time.perf_counter() - began
    if not held.conclude():
        logger.warning("%s ended after %.1f s, when its outcome was recorded already.", schedule.name, seconds)
        forget_connections()
        return None
    retry_after_ms = None
    if error is None:
        run.result, error = take_or_note(value)
    if error is None:
        run.status, run.error = Status.SUCCEEDED, ""
        run.reason = REASON_HANDED_OVER if schedule.backend else ""
    else:
        told = _told(error, schedule)
        run.error, run.reason = told.text, told.title
        retry_after_ms = _after_failure(run, schedule, error)
    if issubclass(type(error), TaskTimeout):
        forget_connections()
    tidy_connections()
    run.finished_at = datetime.now(UTC)
    return Finished(held, seconds, retry_after_ms, executed=True)


def give_up(held: Held, seconds: float, where: str) -> Finished:
    """Fill in the row of a task that does not end: failed or retrying, without it. `where` is what its thread does.

    To be called by whoever has concluded the entry. See `timeouts.py`, Note [Soft and hard timeouts].
    """
    assert held.outcome is not None  # noqa: S101 - it runs
    run, schedule = held.outcome.run, held.outcome.schedule
    error = TaskTimeout()
    trace = f"Still running {seconds:.1f} s after its start. Where it was:\n{where}"
    run.error, run.reason = _told(error, schedule, trace).text, REASON_HUNG
    retry_after_ms = _after_failure(run, schedule, error)
    run.finished_at = datetime.now(UTC)
    held.lost.set()  # its context tells it that somebody else may run the same point
    return Finished(held, seconds, retry_after_ms, executed=True, hung=True)


def _attempt(
    task: AnyTask, run: RunRow, schedule: ScheduleRow, held: Held, timeouts: Timeouts
) -> tuple[Any, BaseException | None]:
    """Call the task or hand it over, within its schedule's timeout; return its value, or what ended it."""
    if schedule.timeout is None:
        try:
            if schedule.backend:
                return hand_over(task, schedule), None
            return _call(task.call, task, run, schedule, held), None
        except BaseException as error:
            return None, error
    seconds = max(0.0, schedule.timeout.total_seconds())
    if schedule.backend:
        return timeouts.run(partial(hand_over, task, schedule), held, seconds, interrupt=True)
    if iscoroutinefunction(task.func):
        call = partial(_call, partial(call_cancellable, task, seconds), task, run, schedule, held)
        return timeouts.run(call, held, seconds, interrupt=False)
    return timeouts.run(partial(_call, task.call, task, run, schedule, held), held, seconds, interrupt=True)


def call_cancellable(task: AnyTask, seconds: float, *args: Any, **kwargs: Any) -> Any:
    """Call an `async def` task; have its event loop cancel it after so many seconds.

    Raises:
        TaskTimeout: It was cancelled. Whatever else it raises passes through, a TimeoutError of its own too.
    """

    async def bounded() -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await task.acall(*args, **kwargs)
        except TimeoutError:
            if limit.expired():
                return limit
            raise

    value = async_to_sync(bounded)()
    if isinstance(value, asyncio.Timeout):
        raise TaskTimeout
    return value


def _call(function: Callable[..., Any], task: AnyTask, run: RunRow, schedule: ScheduleRow, held: Held) -> Any:
    """Call the function as the task is called: with the context where it takes one."""
    check_call(task, schedule.args, schedule.kwargs)
    if not task.takes_context:
        return function(*schedule.args, **schedule.kwargs)
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
    context = RunContext(
        task_result=result,
        schedule=as_schedule(schedule),
        due_at=run.due_at,
        idempotency_key=key,
        attempt_number=run.attempt,
        _lease_lost=held.lost,
    )
    return function(context, *schedule.args, **schedule.kwargs)


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


def backoff_ms(base: timedelta, attempt: int) -> int:
    """Return the delay after a failed attempt: doubling, at most an hour, spread by up to a fifth downwards."""
    seconds = min(base.total_seconds() * 2 ** min(attempt - 1, 30), MAX_BACKOFF.total_seconds())
    return int(seconds * 1000 * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load, guards nothing
