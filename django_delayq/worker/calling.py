"""Calls the task of an entry, or hands it over, and fills in the outcome. Writes nothing to the database or Redis.

Note [Accepted means succeeded]
A point succeeds once the backend's `enqueue` returns, unless the result has already failed, as ImmediateBackend's can.
A crash before the record hands the point over again; the reverse sequence would lose it.

Note [Results are read once]
Reading a value or an exception runs code of the task, which may raise anything, and a thread may change the value. So
they are read only here, once, right after the call; other code gets plain texts and copies in JSON types.
"""

import asyncio
import json
import logging
import math
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction

from .. import conf
from ..calls import TOO_LARGE, Call, capture, handover, tracing
from ..calls.compat import AnyResult, AnyTask, TaskResult, TaskResultStatus, normalize_json
from ..calls.context import EXECUTING, ExecutionContext, JobContext
from ..calls.handover import REASON as REASON_HANDED_OVER
from ..calls.handover import HandoverFailed, HandoverRefused
from ..calls.isolation import MARK, Isolation
from ..calls.registry import check_call, find_parameters
from ..calls.validators import encode_json, find_unstorable
from ..context import RunContext
from ..exceptions import DelayQError, InvalidArguments, ResultTooLarge, TaskCancelled, TaskTimeout
from ..ledger import build_schedule
from ..ledger.rows import ScheduleRow
from ..models import Status
from ..models.run import OPEN
from ..text import find_secret_texts, redact_text
from . import announcing, isolated
from .announcing import build_running_result
from .held import FormattedError, Lease, compute_backoff_ms
from .isolated import format_safely, get_remote_traceback
from .process import end_as_child
from .timeouts import Timeouts

logger = logging.getLogger("django_delayq.worker")


#: What a call returned, and the error that ended it.
Ended = tuple[Any, BaseException | None]


def perform(
    held: Lease, timeouts: Timeouts, call: Callable[[], Any], *, interrupt: bool = True, spare_seconds: float = 0.0
) -> Ended | None:
    """Call a function and end it in time: by an exception in this thread, or, without `interrupt`, by its own means.

    Never raises. Returns None if the hard timeout, to which `spare_seconds` are added, has reported the outcome.
    """
    held.executed = True
    began, process = time.perf_counter(), os.getpid()
    held.output = capture.CapturedOutput(capture.most) if capture.most else None
    token = capture.current.set(held.output)
    limit = math.inf if held.limit is None else held.limit
    ended = timeouts.run(call, held, limit, interrupt=interrupt, spare_seconds=spare_seconds)
    capture.current.reset(token)
    if os.getpid() != process:
        end_as_child(ended[1])
    seconds = time.perf_counter() - began
    if held.conclude():
        held.seconds = seconds
        return ended
    logger.warning("%s ended after %.1f s; its outcome had been recorded before.", held.title, seconds)
    timeouts.forget()
    return None


def perform_task(held: Lease, task: AnyTask, timeouts: Timeouts, /, *args: Any, **kwargs: Any) -> Ended | None:
    """Call `perform` with a task: an isolated one in its own process, an `async def` one in an event loop."""
    isolation: Isolation | None = getattr(task.func, MARK, None)
    if isolation is not None and isolated.is_on():
        call = partial(isolated.call, held, isolation)
        return perform(held, timeouts, call, interrupt=False, spare_seconds=isolated.SPARE_SECONDS)
    if iscoroutinefunction(task.func):
        return perform(held, timeouts, partial(call_cancellable, held, task, *args, **kwargs), interrupt=False)
    return perform(held, timeouts, partial(task.call, *args, **kwargs))


def call_cancellable(held: Lease, task: AnyTask, /, *args: Any, **kwargs: Any) -> Any:
    """Call an `async def` task. Raises TaskTimeout if it was cancelled at its timeout or stopped by a user."""

    async def call_bounded() -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(held.limit) as limit:
                held.interrupt = partial(_end_soon, loop, limit)
                if held.stopped_by is not None or held.limit == 0:
                    held.interrupt()
                return await task.acall(*args, **kwargs)
        except TimeoutError:
            if limit.expired():
                return limit
            raise

    value = async_to_sync(call_bounded)()
    if isinstance(value, asyncio.Timeout):
        raise TaskTimeout if held.stopped_by is None else TaskCancelled
    return value


def _end_soon(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:

    def end() -> None:
        with suppress(RuntimeError):
            limit.reschedule(loop.time())

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(end)


MAX_ERROR_CHARS = 20_000
MAX_TITLE_CHARS = 200

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def take(value: Any, most: int) -> tuple[Any, BaseException | None]:
    """Return a copy of a value in JSON types, or the error of reading it. See Note [Results are read once]."""
    if type(value) is isolated.Taken:
        return value.value, value.error
    try:
        try:
            text = _dumps(value)  # in one call, so that no other thread changes the value in between
        except TypeError:
            text = _dumps(normalize_json(value))
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > most:
            return None, ResultTooLarge(
                f"The result is {size:,} bytes of JSON; at most {most:,} are kept (DELAYQ['MAX_RESULT_BYTES']). "
                "Store large values elsewhere and return a key."
            )
        return json.loads(text), None
    except BaseException as error:
        return None, error


def take_result(value: Any, most: int, *, is_job: bool) -> tuple[Any, BaseException | None]:
    """Call `take`, and check that the database can store the value; for a due point a note replaces an error."""
    taken, error = take(value, most)
    if error is None and isinstance(taken, str | list | dict):
        if not is_job:
            try:
                encode_json([[taken]])
            except InvalidArguments as refused:
                error = refused
        elif what := find_unstorable(_dumps(taken)):
            error = ValueError(f"The result contains {what}.")
    if error is None:
        return taken, None
    kind = type(error)
    if is_job or not issubclass(kind, ResultTooLarge | InvalidArguments | TypeError | ValueError | RecursionError):
        return None, error
    if issubclass(kind, ResultTooLarge):
        return {"not stored": str(error)}, None
    reason = format_safely(lambda: clean(redact_text(str(error))), "it does not say why")
    # Rewords a refusal of arguments as one of a result.
    reason = reason.replace("The arguments contain", "it contains").replace("The arguments are", "it is")
    return {"not stored": f"The result cannot be stored: {reason}"[:MAX_TITLE_CHARS]}, None


def describe(error: BaseException, call: ScheduleRow | Call, trace: str = "") -> FormattedError:
    """Format an error that ended a call; `trace` replaces its traceback. Every database can store the texts."""

    def format_or(make: Callable[[], str], otherwise: str) -> str:
        return format_safely(lambda: _make_storable(make(), call), otherwise)

    path = format_safely(
        lambda: clean(f"{type(error).__module__}.{type(error).__qualname__}"), "an error without a name"
    )
    name = path.removeprefix("builtins.")
    title = format_or(lambda: f"{name}: {_find_reason(error, call)}", name)[:MAX_TITLE_CHARS]
    text = format_or(lambda: trace or get_remote_traceback(error) or "".join(traceback.format_exception(error)), "")
    if not text:
        where = format_or(lambda: "".join(traceback.format_tb(error.__traceback__)), "")
        text, error = f"{where}{path}, which cannot be formatted.\n", DelayQError(f"{path}, which cannot be formatted")
    return FormattedError(path, title, text[-MAX_ERROR_CHARS:], error)


def _find_reason(error: BaseException, call: ScheduleRow | Call) -> str:
    if issubclass(type(error), TaskCancelled) and not error.args:
        return "stopped by a user"
    if issubclass(type(error), TaskTimeout) and not error.args and call.timeout is not None:
        return f"stopped after its timeout of {call.timeout.total_seconds():g} s"
    return str(error)


def _make_storable(text: str, call: ScheduleRow | Call) -> str:
    return clean(redact_text(text, find_secret_texts(call.args, call.kwargs, find_parameters(call.task))))


def clean(text: str) -> str:
    """Return text that every database can store: no NUL, no lone surrogate."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


#: Reason of a run whose task did not react to its timeout.
REASON_HUNG = "timeout"
#: Reason of a run that a user stopped; the user's name may follow.
REASON_CANCELLED = "cancelled"


def execute(held: Lease, timeouts: Timeouts, most_bytes: int) -> bool:
    """Call the task and fill in its outcome. Never raises. Returns False if the hard timeout has reported it."""
    outcome, run, task, call = held.outcome, held.outcome.run, held.task, held.outcome.call
    assert task is not None  # noqa: S101 - it is executed
    EXECUTING.set(held)
    run.started_at, run.worker = datetime.now(UTC), held.worker
    if held.span is not None:
        outcome.trace = tracing.get_ids(held.span)
    result = announcing.begin(held, task)
    try:
        if call.backend:
            ended = perform(held, timeouts, partial(hand_over, task, call))
        else:
            check_call(task, call.args, call.kwargs)
            context = [build_context(held, task, result)] if task.takes_context else []
            ended = perform_task(held, task, timeouts, *context, *call.args, **call.kwargs)
    except InvalidArguments as refused:
        ended = perform(held, timeouts, partial(_refuse, refused))
    if ended is None:
        return False
    value, error = ended
    too_large = False  # a task that raises ResultTooLarge (another job's result) has failed
    if error is None and value is not None:
        run.result, error = take_result(value, most_bytes, is_job=run.is_job)
        too_large = issubclass(type(error), ResultTooLarge)
    if error is None or too_large:
        run.status, run.error = Status.SUCCEEDED, "" if error is None else str(error)
        run.reason = TOO_LARGE if too_large else REASON_HANDED_OVER if call.backend else ""
    else:
        _fail(held, error)
    _end(held, result)
    return True


def give_up(held: Lease, where: str) -> None:
    """Fill in the outcome of a task that does not end; `where` is its present stack. Called after `conclude`."""
    result = build_running_result(held, held.task) if held.outcome.schedule is None and held.task is not None else None
    trace = f"Still running {held.seconds:.1f} s after its start. Where it was:\n{where}"
    _fail(held, TaskTimeout() if held.stopped_by is None else TaskCancelled(), trace, reason=REASON_HUNG)
    _end(held, result)


def _fail(held: Lease, error: BaseException, trace: str = "", *, reason: str = "") -> None:
    run, call = held.outcome.run, held.outcome.call
    failure = held.failure = describe(error, call, trace)
    run.error, run.reason, held.outcome.error = failure.text, reason or failure.title, failure.error
    if held.stopped_by is not None:
        run.reason = f"{REASON_CANCELLED} by {held.stopped_by}"[:200] if held.stopped_by else REASON_CANCELLED
    final = issubclass(type(error), InvalidArguments | HandoverRefused) or held.stopped_by is not None
    run.status = Status.FAILED if final or run.attempt >= call.max_attempts else Status.RETRYING
    held.retry_after_ms = compute_backoff_ms(call.backoff, run.attempt) if run.status == Status.RETRYING else None


def _end(held: Lease, result: AnyResult | None) -> None:
    outcome = held.outcome
    outcome.run.finished_at = datetime.now(UTC)
    if held.output is not None and (output := held.output.end()):
        text = format_safely(lambda: _make_storable(output, outcome.call), "")
        outcome.output = text.encode()[-conf.get_config().max_output_bytes :].decode(errors="ignore")
    if outcome.job is not None and outcome.run.status not in OPEN:
        held.close_job()
    announcing.end(held, result)


def _refuse(error: InvalidArguments) -> None:
    raise error


def build_context(held: Lease, task: AnyTask, result: AnyResult | None) -> ExecutionContext:
    """Return the context of an attempt that begins; `result` is the result of a job, None for a due point."""
    run, schedule = held.outcome.run, held.outcome.schedule
    if schedule is None:
        assert result is not None  # noqa: S101
        return JobContext(task_result=result, idempotency_key=run.idempotency_key, _lease_lost=held.is_lost)
    result = TaskResult(
        task=task, id=run.idempotency_key, status=TaskResultStatus.RUNNING, enqueued_at=run.due_at,
        started_at=run.started_at, finished_at=None, last_attempted_at=run.started_at, args=schedule.args,
        kwargs=schedule.kwargs,
        backend=task.backend, errors=[], worker_ids=[run.worker] * run.attempt,
    )  # fmt: skip
    return RunContext(
        task_result=result,
        schedule=build_schedule(schedule),
        due_at=run.due_at,
        idempotency_key=run.idempotency_key,
        _lease_lost=held.is_lost,
    )


def hand_over(task: AnyTask, schedule: Any) -> dict[str, str | None]:
    """Enqueue the task on the schedule's backend; return its alias and the result id. Note [Accepted means succeeded].

    After HandoverRefused and InvalidArguments nothing was enqueued; after other exceptions it may have been.
    """
    check_call(task, schedule.args, schedule.kwargs)
    prepared = handover.prepare(task, schedule.backend, schedule.priority)
    result: Any = prepared.enqueue(*schedule.args, **schedule.kwargs)
    if getattr(result, "status", None) == TaskResultStatus.FAILED:
        raise _build_failure(schedule.backend, result)
    result_id = getattr(result, "id", None)  # any other return value counts as accepted
    return {"backend": schedule.backend, "result_id": None if result_id is None else str(result_id)}


def _build_failure(backend: str, result: Any) -> HandoverFailed:
    errors = getattr(result, "errors", None)
    trace = str(errors[-1].traceback).strip() if errors else ""
    last = trace.rpartition("\n")[2] or "it has no error"
    failure = HandoverFailed(f"The TASKS backend {backend!r} returned a failed result: {last}")
    failure.add_note(trace)
    return failure
