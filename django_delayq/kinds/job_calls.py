"""Calls one job's task and says what becomes of the job. Writes nothing anywhere.

Note [The contract]
What Django documents of a backend: `task_started` is sent before the call, `task_finished` after the last attempt and,
where that failed, inside the exception's handler; a return value that is no JSON is a failure of the task.
"""

import logging
import time
from datetime import timedelta
from typing import Any

from ..compat import AnyTask, TaskError, TaskResultStatus, task_finished, task_started
from ..exceptions import ResultTooLarge, TaskTimeout
from ..jobs import JobContext, as_result, encode, note_failed, note_lost
from ..jobs.results import instant
from ..jobs.task import as_enqueued
from .execution import backoff_ms, hung, perform_task
from .held_job import HeldJob
from .results import take, tell
from .timeouts import Timeouts

logger = logging.getLogger("django_delayq.worker")


def task_of(task: AnyTask, held: HeldJob) -> AnyTask:
    """Return the task as it was enqueued."""
    call = held.read
    wanted = (call.backend, held.place.queue, call.priority, instant(call.run_after))
    if wanted == (task.backend, task.queue_name, task.priority, task.run_after):
        return task
    backend, queue, priority, run_after = wanted
    return as_enqueued(task, backend=backend, queue_name=queue, priority=priority, run_after=run_after)


def execute(held: HeldJob, worker: str, timeouts: Timeouts) -> bool:
    """See `Kind.execute`. What becomes of the job stands in its settlement."""
    if held.begun:
        _note_lost(held)
    state = held.state
    state.attempted = int(time.time() * 1000)
    state.started = state.started or state.attempted
    state.workers.append(worker)
    task = held.task
    assert task is not None  # noqa: S101 - it was read
    result = as_result(task, held.result_id, held.read, state, running=True)
    _send(task_started, held, result)
    context = []
    if task.takes_context:
        context = [JobContext(task_result=result, idempotency_key=held.result_id, _lease_lost=held.is_lost)]
    ended = perform_task(held, task, timeouts, *context, *result.args, **result.kwargs)
    if ended is None:
        return False
    value, error = ended.value, ended.error
    if error is None:
        value, error = take(value)
        if type(error) is ResultTooLarge:
            state.leave_out(error)
            error = None
    if error is None:
        _succeed(held, result, value)
    else:
        fail(held, error, result=result)
    return True


def _succeed(held: HeldJob, result: Any, value: Any) -> None:
    state = held.state
    state.status, state.value, state.finished = "SUCCESSFUL", value, int(time.time() * 1000)
    ttl_ms = held.backend.result_ms
    text = _text(held) if ttl_ms > 1 else ""
    object.__setattr__(result, "_return_value", value)
    _finish(held, result, TaskResultStatus.SUCCESSFUL)
    held.settle("done", ttl_ms, text)


def fail(held: HeldJob, error: BaseException, *, result: Any = None, final: bool = False, trace: str = "") -> None:
    """Say what becomes of a job whose attempt failed: another one after a delay, or its end among the dead."""
    call, state = held.read, held.state
    attempts, backoff, timeout = held.retries
    told = tell(error, call, timeout=timeout or None, trace=trace)
    if final:
        _note_lost(held)
    state.errors.append((told.path, told.text))
    if not final and len(state.workers) < (attempts or 1):
        note_failed(state, int(time.time() * 1000))
        delay_ms = backoff_ms(timedelta(seconds=backoff or 0), len(state.workers))
        logger.warning("%s failed, the next attempt is in %.1f s: %s", held.title, delay_ms / 1000, told.title)
        held.settle("retry", delay_ms, _text(held))
        return
    state.status, state.finished = "FAILED", int(time.time() * 1000)
    result = result or as_result(held.task, held.result_id, call, state)  # type: ignore[arg-type]
    result.errors[:] = [TaskError(exception_class_path=known, traceback=shown) for known, shown in state.errors]
    try:
        raise told.error  # Django's receiver logs the exception that is being handled
    except BaseException:
        _finish(held, result, TaskResultStatus.FAILED)
    held.settle("dead", 0, _text(held))


def _note_lost(held: HeldJob) -> None:
    """Note the executions that others have begun since the last recorded attempt, and that did not end."""
    worker, claimed = held.former
    note_lost(held.state, held.entry.reclaims + 1, worker, claimed)


def _text(held: HeldJob) -> str:
    """Return the job's text with what has become of it. Raises what `encode` does."""
    return encode(held.place.queue, held.member, held.line, held.state)


def give_up(held: HeldJob, where: str) -> None:
    """See `Kind.give_up`."""
    fail(held, TaskTimeout(), trace=hung(held, where))


def _finish(held: HeldJob, result: Any, status: Any) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", instant(held.state.finished))
    _send(task_finished, held, result)


def _send(signal: Any, held: HeldJob, result: Any) -> None:
    """Send one of Django's signals. A receiver that raises changes no outcome."""
    try:
        answers = signal.send_robust(sender=type(held.backend), task_result=result)
    except BaseException as error:  # what is no Exception passes through
        answers = [("one of them", error)]
    for receiver, answer in answers:
        if isinstance(answer, BaseException):
            message = "A receiver of a task signal failed for %s: %r: %s"
            logger.error(message, held.title, receiver, tell(answer, held.read).title)
