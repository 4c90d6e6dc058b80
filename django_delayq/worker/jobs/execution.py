"""Calls one job's task and says what becomes of the job. Writes nothing anywhere.

Note [The contract]
What Django documents of a backend: `task_started` is sent before the call, `task_finished` after the last attempt and,
where that failed, inside the exception's handler; a return value that is no JSON is a failure of the task.
"""

import logging
import os
import time
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction

from ...broker import JobSettlement
from ...compat import AnyTask, TaskError, TaskResultStatus, task_finished, task_started
from ...exceptions import ResultTooLarge, TaskTimeout
from ...jobs import JobContext, as_result, encode, note_failed, note_lost
from ...jobs.results import instant
from ...jobs.task import as_enqueued
from ..children import end_as_child
from ..connections import close_aged_connections, forget_connections, tidy_connections
from ..execution import backoff_ms, call_cancellable
from ..results import take, tell
from ..timeouts import Timeouts
from .entry import FinishedJob, HeldJob

logger = logging.getLogger("django_delayq.worker")


def task_of(task: AnyTask, held: HeldJob) -> AnyTask:
    """Return the task as it was enqueued."""
    call = held.call
    assert call is not None  # noqa: S101 - it was read
    wanted = (call.backend, held.place.queue, call.priority, instant(call.run_after))
    if wanted == (task.backend, task.queue_name, task.priority, task.run_after):
        return task
    backend, queue, priority, run_after = wanted
    return as_enqueued(task, backend=backend, queue_name=queue, priority=priority, run_after=run_after)


def execute_job(held: HeldJob, task: AnyTask, worker: str, timeouts: Timeouts) -> FinishedJob | None:
    """Call the task; return what becomes of the job. Never raises.

    A `BaseException` that is no `Exception` (a task that calls `sys.exit`) is a failure of the task too. Returns None
    where the task ended after its hard timeout: its outcome was told without it.
    """
    call, state = held.call, held.state
    assert call is not None  # noqa: S101 - it was read
    if held.begun:
        _note_lost(held)
    now = time.time()
    state.attempted = int(now * 1000)
    state.started = state.started or state.attempted
    state.workers.append(worker)
    result = as_result(held.task or task, held.result_id, call, state, running=True)
    _send(task_started, held, result)
    close_aged_connections()
    began, process = time.perf_counter(), os.getpid()
    value, error = _attempt(task, result, held, timeouts)
    if os.getpid() != process:
        end_as_child(error)
    seconds = time.perf_counter() - began
    if not held.conclude():
        logger.warning("%s ended after %.1f s, when its outcome was recorded already.", held.title, seconds)
        forget_connections()
        return None
    if error is None:
        value, error = take(value)
        if type(error) is ResultTooLarge:
            held.state.leave_out(error)
            error = None
    if issubclass(type(error), TaskTimeout):
        forget_connections()
    if error is None:
        finished = _succeeded(held, result, value, seconds)
    else:
        finished = failed(held, error, seconds, result=result)
    finished.executed = True
    tidy_connections()
    return finished


def _attempt(task: AnyTask, result: Any, held: HeldJob, timeouts: Timeouts) -> tuple[Any, BaseException | None]:
    """Call the task, within its timeout; return its value, or what ended it."""
    args, kwargs, timeout = result.args, result.kwargs, held.retries.timeout
    if task.takes_context:
        context = JobContext(task_result=result, idempotency_key=held.result_id, _lease_lost=held.lost)  # type: ignore[arg-type]
        args = [context, *args]
    if not timeout:
        try:
            return task.call(*args, **kwargs), None
        except BaseException as error:
            return None, error
    if iscoroutinefunction(task.func):
        call = partial(call_cancellable, task, timeout, *args, **kwargs)
        return timeouts.run(call, held, timeout, interrupt=False)
    return timeouts.run(partial(task.call, *args, **kwargs), held, timeout, interrupt=True)


def _succeeded(held: HeldJob, result: Any, value: Any, seconds: float) -> FinishedJob:
    state = held.state
    state.status, state.value, state.finished = "SUCCESSFUL", value, int(time.time() * 1000)
    ttl_ms = held.backend.result_ms
    text = _text(held) if ttl_ms > 1 else ""
    object.__setattr__(result, "_return_value", value)
    _finish(held, result, TaskResultStatus.SUCCESSFUL)
    return FinishedJob(held, seconds, JobSettlement(held.member, held.fence, "done", ttl_ms, text))


def failed(
    held: HeldJob, error: BaseException, seconds: float, *, result: Any = None, final: bool = False, trace: str = ""
) -> FinishedJob:
    """Say what becomes of a job whose attempt failed: another one after a delay, or its end among the dead."""
    call, state = held.call, held.state
    assert call is not None  # noqa: S101 - it was read
    attempts, backoff, timeout = held.retries
    told = tell(error, call, timeout=timeout or None, trace=trace)
    if final:
        _note_lost(held)
    state.errors.append((told.path, told.text))
    if not final and len(state.workers) < (attempts or 1):
        note_failed(state, int(time.time() * 1000))
        delay_ms = backoff_ms(timedelta(seconds=backoff or 0), len(state.workers))
        logger.warning("%s failed, the next attempt is in %.1f s: %s", held.title, delay_ms / 1000, told.title)
        return FinishedJob(
            held,
            seconds,
            JobSettlement(held.member, held.fence, "retry", delay_ms, _text(held)),
        )
    state.status, state.finished = "FAILED", int(time.time() * 1000)
    result = result or as_result(held.task, held.result_id, call, state)  # type: ignore[arg-type]
    result.errors[:] = [TaskError(exception_class_path=known, traceback=shown) for known, shown in state.errors]
    try:
        raise told.error  # Django's receiver logs the exception that is being handled
    except BaseException:
        _finish(held, result, TaskResultStatus.FAILED)
    text = _text(held)
    return FinishedJob(held, seconds, JobSettlement(held.member, held.fence, "dead", 0, text))


def _note_lost(held: HeldJob) -> None:
    """Note the executions that others have begun since the last recorded attempt, and that did not end."""
    worker, claimed = held.former
    note_lost(held.state, held.entry.reclaims + 1, worker, claimed)


def _text(held: HeldJob) -> str:
    """Return the job's text with what has become of it. Raises what `encode` does."""
    return encode(held.place.queue, held.member, held.line, held.state)


def give_up_job(held: HeldJob, seconds: float, where: str) -> FinishedJob:
    """Say what becomes of a job whose task does not end; see `execution.give_up`."""
    trace = f"Still running {seconds:.1f} s after its start. Where it was:\n{where}"
    finished = failed(held, TaskTimeout(), seconds, trace=trace)
    finished.executed = finished.hung = True
    held.lost.set()
    return finished


def _finish(held: HeldJob, result: Any, status: Any) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", instant(held.state.finished))
    _send(task_finished, held, result)


def _send(signal: Any, held: HeldJob, result: Any) -> None:
    """Send one of Django's signals. A receiver that raises changes no outcome."""
    assert held.call is not None  # noqa: S101 - it was read
    try:
        answers = signal.send_robust(sender=type(held.backend), task_result=result)
    except BaseException as error:  # what is no Exception passes through
        answers = [("one of them", error)]
    for receiver, answer in answers:
        if isinstance(answer, BaseException):
            message = "A receiver of a task signal failed for %s: %r: %s"
            logger.error(message, held.title, receiver, tell(answer, held.call).title)
