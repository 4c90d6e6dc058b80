"""Calls the task of an entry, or hands it over, and fills in what becomes of its row. Writes nothing of ours anywhere.

Note [Accepted]
A point is handed over when the backend's `enqueue` has returned: only then it is recorded as succeeded and settled.
What becomes of the task afterwards is that backend's to tell; for the schedule's overlap, `every_from = finish` and
`max_runs` the point has ended. A result that says at once that it has failed was not accepted: so Django's
ImmediateBackend, which executes within `enqueue`, fails here as the task does.

Between `enqueue` and the ledger lies what no order of the two can close: a process that dies there leaves a task in the
other queue and no outcome, and the point is handed over once more. The other way round it would be lost.

Note [Attempts]
Rule R5. Attempts are counted in the row when they end; the number that Redis keeps beside a point
only says that it waits for a retry. So a flush, a rebuild or a restored snapshot grants no new attempts. A take-over
after a crash is no attempt of the task's, and is counted apart (`worker/isolation.py`, Note [Alone]).

Note [Given back]
What a task gives back is code of its own: its `items()`, `__str__` or `__class__` may raise anything, also what is no
`Exception`, and another thread may change it while it is read. Whoever stumbles over that after the task would have it
executed once more. So it is looked into here only, once and right after the call, and all others get plain texts and a
copy in JSON's types. What can be told of an error that cannot be told is its class and where it was raised.
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
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction

from .. import conf
from ..calls import TOO_LARGE, Call, capture, handover, tracing
from ..calls.compat import AnyResult, AnyTask, TaskResult, TaskResultStatus, normalize_json
from ..calls.context import EXECUTING, ExecutionContext, JobContext, RunContext
from ..calls.handover import REASON as REASON_HANDED_OVER
from ..calls.handover import HandoverFailed, HandoverRefused
from ..calls.isolation import isolation_of
from ..calls.registry import check_call, parameters_of
from ..calls.validators import find_unstorable, storable_json
from ..exceptions import DelayQError, InvalidArguments, ResultTooLarge, TaskCancelled, TaskTimeout
from ..ledger import as_schedule
from ..ledger.rows import ScheduleRow
from ..models import Schedule, Status
from ..models.run import OPEN
from ..signals import run_finished, run_started
from ..text import redact_text, secret_texts
from .announcing import begin_job, close_job, end_job, idempotency_key, nothing, ping, running_job, send_signal
from .held import Held, backoff_ms
from .processes import isolated
from .processes.crossing import remote_traceback, said_or
from .processes.process import end_as_child
from .timeouts import Timeouts

logger = logging.getLogger("django_delayq.worker")


class Ended(NamedTuple):
    """What a call returned, or what ended it."""

    value: Any
    error: BaseException | None


def perform(
    held: Held, timeouts: Timeouts, call: Callable[[], Any], *, interrupt: bool = True, spare_seconds: float = 0.0
) -> Ended | None:
    """Call, and have that end within its time: by an exception in this thread, or else by the call itself.

    `spare_seconds`: so much later than others it is given up, because it has a hard timeout of its own. Never raises: a
    `BaseException` that is no `Exception` (a task that calls `sys.exit`) ends the call too. Returns None where it ended
    after its hard timeout: its outcome was reported without it.
    """
    held.executed = True
    began, process = time.perf_counter(), os.getpid()
    held.output = capture.new_output()
    token = capture.current.set(held.output)
    limit = math.inf if held.limit is None else held.limit
    value, error = timeouts.run(call, held, limit, interrupt=interrupt, spare_seconds=spare_seconds)
    capture.current.reset(token)
    if os.getpid() != process:
        end_as_child(error)
    seconds = time.perf_counter() - began
    if held.conclude():
        held.seconds = seconds
        return Ended(value, error)
    logger.warning("%s ended after %.1f s, when its outcome was recorded already.", held.title, seconds)
    timeouts.forget()
    return None


def perform_task(held: Held, task: AnyTask, timeouts: Timeouts, /, *args: Any, **kwargs: Any) -> Ended | None:
    """Do `perform` with a task; an `async def` one is cancelled by its event loop.

    An isolated one is executed in a process of its own, with what its rows say.
    """
    isolation = isolation_of(task)
    if isolation is not None and isolated.is_on():
        call = partial(isolated.call, held, isolation)
        return perform(held, timeouts, call, interrupt=False, spare_seconds=isolated.SPARE_SECONDS)
    if iscoroutinefunction(task.func):
        call = partial(call_cancellable, held, task, *args, **kwargs)
        return perform(held, timeouts, call, interrupt=False)
    return perform(held, timeouts, partial(task.call, *args, **kwargs))


def call_cancellable(held: Held, task: AnyTask, /, *args: Any, **kwargs: Any) -> Any:
    """Call an `async def` task; have its event loop cancel it when its time is over, or somebody stops it.

    Raises:
        TaskTimeout: It was cancelled. Whatever else it raises passes through, a TimeoutError of its own too.
    """

    async def bounded() -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(held.limit) as limit:
                held.interrupt = partial(_end_soon, loop, limit)
                if held.stopped_by is not None or held.limit == 0:  # before there was a loop to tell
                    held.interrupt()
                return await task.acall(*args, **kwargs)
        except TimeoutError:
            if limit.expired():
                return limit
            raise

    value = async_to_sync(bounded)()
    if isinstance(value, asyncio.Timeout):
        raise TaskTimeout if held.stopped_by is None else TaskCancelled
    return value


def _end_soon(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
    """Let a timeout be over now. Called by another thread; does nothing where the call has ended."""

    def end() -> None:
        with suppress(RuntimeError):
            limit.reschedule(loop.time())

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(end)


def hung(held: Held, where: str) -> str:
    """Return what stands in place of a traceback where a task does not end."""
    return f"Still running {held.seconds:.1f} s after its start. Where it was:\n{where}"


MAX_ERROR_CHARS = 20_000
MAX_TITLE_CHARS = 200

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def take(value: Any, most: int) -> tuple[Any, BaseException | None]:
    """Return a copy of a value in JSON's types, or what it raised when it was looked into. See Note [Given back].

    A value above `most` bytes is a `ResultTooLarge`: the task that returned it has succeeded all the same.
    """
    if value is None:
        return None, None
    if type(value) is isolated.Taken:
        return value.value, value.error
    try:
        text = _text_of(value)
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > most:
            return None, ResultTooLarge(
                f"The result is {size:,} bytes of JSON; at most {most:,} are kept (DELAYQ['MAX_RESULT_BYTES']). "
                "Store large values elsewhere and return a key."
            )
        return json.loads(text), None
    except BaseException as error:
        return None, error


def take_or_fail(value: Any, most: int) -> tuple[Any, BaseException | None]:
    """Do as `take`; what a database does not store is a failure of the task, as what is no JSON is."""
    taken, error = take(value, most)
    if error is None and isinstance(taken, str | list | dict) and (what := find_unstorable(_dumps(taken))):
        return None, ValueError(f"The result contains {what}.")
    return taken, error


def take_or_note(value: Any, most: int) -> tuple[Any, BaseException | None]:
    """Do as `take`, with a note in place of what is no JSON or what a database does not store: that is no failure."""
    taken, error = take(value, most)
    if error is None:
        try:
            storable_json([[taken]])
            return taken, None
        except InvalidArguments as refused:
            said = str(refused).replace("arguments are", "result is").replace("arguments contain", "result contains")
            return {"not stored": said}, None
    if issubclass(type(error), ResultTooLarge):
        return {"not stored": str(error)}, None
    if issubclass(type(error), TypeError | ValueError | RecursionError):
        said = said_or(lambda: clean(redact_text(str(error))), "it does not say why")
        return {"not stored": f"The result is not plain JSON: {said}"[:MAX_TITLE_CHARS]}, None
    return None, error


def _text_of(value: Any) -> str:
    try:
        return _dumps(value)  # in one call, so that no other thread comes in between
    except TypeError:
        return _dumps(normalize_json(value))


class Told(NamedTuple):
    """What can be told of an error: the path of its class, a line, and the traceback, without the call's secrets.

    `error` is it, or what stands for it where it cannot be formatted: for whoever logs it.
    """

    path: str
    title: str
    text: str
    error: BaseException


def tell(error: BaseException, call: ScheduleRow | Call, *, timeout: float | None = None, trace: str = "") -> Told:
    """Tell of an error that ended a call, after `timeout` seconds if it is our own; `trace` in place of its traceback.

    The texts are such as every database stores: no NUL, no half of a surrogate pair.
    """

    def shown(make: Callable[[], str], otherwise: str) -> str:
        return said_or(lambda: _storable(make(), call), otherwise)

    path = said_or(lambda: clean(f"{type(error).__module__}.{type(error).__qualname__}"), "an error without a name")
    name = path.removeprefix("builtins.")
    title = shown(lambda: _title(name, error, timeout), name)[:MAX_TITLE_CHARS]
    text = shown(lambda: trace or remote_traceback(error) or "".join(traceback.format_exception(error)), "")
    if not text:
        error_of_ours = DelayQError(f"{path}, which cannot be formatted")
        where = shown(lambda: "".join(traceback.format_tb(error.__traceback__)), "")
        text, error = f"{where}{path}, which cannot be formatted.\n", error_of_ours
    return Told(path, title, text[-MAX_ERROR_CHARS:], error)


def _title(name: str, error: BaseException, timeout: float | None) -> str:
    if issubclass(type(error), TaskCancelled) and not error.args:
        return f"{name}: stopped by somebody"
    if issubclass(type(error), TaskTimeout) and not error.args and timeout is not None:
        return f"{name}: stopped after its timeout of {timeout:g} s"
    return f"{name}: {error}"


def output_of(output: capture.Output, call: ScheduleRow | Call) -> str:
    """Return the end of what an execution has said up to now, as it may be stored: without the call's secrets.

    Where the task goes on nevertheless, what it says from now on is not noted.
    """
    said = output.end()
    if not said:
        return ""
    text = said_or(lambda: _storable(said, call), "")
    return text.encode()[-conf.get_config().max_output_bytes :].decode(errors="ignore")


def _storable(text: str, call: ScheduleRow | Call) -> str:
    return clean(redact_text(text, secret_texts(call.args, call.kwargs, parameters_of(call.task))))


def clean(text: str) -> str:
    """Return text that every database stores: no NUL, no half of a surrogate pair."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


#: The reason of a run whose task did not react to its timeout.
REASON_HUNG = "timeout"
#: The reason of one that somebody has stopped, perhaps with who it was.
REASON_CANCELLED = "cancelled"


def execute(held: Held, timeouts: Timeouts, most_bytes: int) -> bool:
    """Call the task and fill in its outcome: succeeded, failed, or retrying with `held.retry_after_ms`. Never raises.

    Called in a slot's thread, in a context of its own. A result of more than `most_bytes` is not kept. False where the
    task ended after its hard timeout: its outcome was reported without it.
    """
    outcome, run, task = held.outcome, held.outcome.run, held.task
    assert task is not None  # noqa: S101 - it is executed
    EXECUTING.set(held)
    run.started_at = datetime.now(UTC)
    run.worker = held.worker
    if held.span is not None:
        outcome.trace = tracing.ids(held.span)
    result = None
    if outcome.schedule is not None:
        send_signal(run_started, "run_started", run, outcome.schedule)
        ping(run, outcome.schedule, "/start")
    run.attempt += 1
    if outcome.schedule is None:
        result = begin_job(held, task)
    call = outcome.call
    try:
        if call.backend:
            ended = perform(held, timeouts, partial(hand_over, task, call))
        else:
            check_call(task, call.args, call.kwargs)
            context = [context_of(held, task, result)] if task.takes_context else []
            ended = perform_task(held, task, timeouts, *context, *call.args, **call.kwargs)
    except InvalidArguments as refused:
        ended = perform(held, timeouts, partial(_refuse, refused))
    if ended is None:
        return False
    error, too_large = ended.error, False  # a task may raise that of another job's result: it has failed
    if error is None and ended.value is not None:
        run.result, error = (take_or_fail if run.is_job else take_or_note)(ended.value, most_bytes)
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
        held.after = nothing  # until it is recorded: see `Trip.record`
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
    held.outcome.output = "" if held.output is None else output_of(held.output, held.outcome.call)
    if held.outcome.job is not None and run.status not in OPEN:
        close_job(held)


def _refuse(error: InvalidArguments) -> None:
    raise error


def context_of(held: Held, task: AnyTask, result: AnyResult | None) -> ExecutionContext:
    """Return the context of an attempt that begins; `result` is that of a job, None for a due point."""
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
