"""Reports outcomes to the log, to the receivers of signals and to the counters. Writes nothing.

Note [Django's contract for backends]
Django documents for backends: `task_started` is sent before the call; `task_finished` after the last attempt and, if
that failed, inside the exception's handler; a return value that is not JSON fails the task. Receivers of
`task_finished` other than Django's own are called once the outcome is recorded.
"""

import logging
from collections.abc import Callable
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

from .. import ledger
from ..calls import Call, result_of, side_channels
from ..calls.compat import AnyResult, AnyTask, TaskError, TaskResultStatus, task_finished, task_started
from ..calls.context import EXECUTING
from ..calls.handover import REASON as REASON_HANDED_OVER
from ..calls.results import local
from ..calls.side_channels import Guard
from ..index.counters import MISSED, TOO_LATE, Counts
from ..ledger import Outcome
from ..ledger.rows import AnyRun, RunRow, ScheduleRow
from ..models import Origin, Schedule, Status
from ..models.run import OPEN
from ..monitoring import pings
from ..recurrence import to_ms
from ..signals import run_finished, run_skipped
from ..text import iso, redact_text

if TYPE_CHECKING:
    from .held import Held


def vars_of(call: Any) -> dict[str, Any]:
    """Return the arguments of a call, in the form that a row stores."""
    return {"args": call.args, "kwargs": call.kwargs}


def begin_job(held: "Held", task: AnyTask) -> AnyResult:
    """Send `task_started` for a new attempt; return its result."""
    result, call = running_job(held, task), held.outcome.call
    owner: Any = call.owner if isinstance(call, Call) else None
    side_channels.send(task_started, "task_started", cut=BaseException, sender=type(owner), task_result=result)
    return result


def running_job(held: "Held", task: AnyTask) -> AnyResult:
    """Return the result of a job whose attempt has begun and has no outcome yet."""
    run = held.outcome.run
    result = result_of(task, run, vars_of(held.outcome.call), begun=True)
    object.__setattr__(result, "status", TaskResultStatus.RUNNING)
    return result


def end_job(held: "Held", result: AnyResult) -> None:
    """Prepare `task_finished` for after the record, in this context; send it now if only Django receives it.

    Django's own receiver only logs. An attempt that will be retried sends nothing.
    """
    run = held.outcome.run
    if run.status in OPEN:
        return
    failed = run.status != Status.SUCCEEDED
    object.__setattr__(result, "status", TaskResultStatus.FAILED if failed else TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", local(run.finished_at))
    object.__setattr__(result, "_return_value", run.result)
    if held.failure is not None:
        result.errors.append(TaskError(exception_class_path=held.failure.path, traceback=held.failure.text))
    error = held.outcome.error
    if len(task_finished.receivers) > 1:
        held.after = partial(copy_context().run, _send_finished, held, result, error)
        return
    token = EXECUTING.set(held)  # adds its labels to the log record of Django's receiver, in any thread
    try:
        _send_finished(held, result, error)
    finally:
        EXECUTING.reset(token)


def _send_finished(held: "Held", result: Any, error: BaseException | None) -> None:
    call = held.outcome.call
    values = {"sender": type(call.owner) if isinstance(call, Call) else None, "task_result": result}
    if error is None:
        side_channels.send(task_finished, "task_finished", cut=BaseException, **values)
        return
    try:
        raise error  # Django's receiver logs the exception that is being handled
    except BaseException:
        side_channels.send(task_finished, "task_finished", cut=BaseException, **values)


def close_job(held: "Held") -> None:
    """Release the unique key of a job that ended and set its expiry. Does nothing for a schedule's run."""
    run, call = held.outcome.run, held.outcome.job
    if call is None or run.finished_at is None:
        return
    settings = call.owner.settings
    kept = settings.result_ttl if run.status == Status.SUCCEEDED else settings.failure_ttl
    run.unique_key, run.expires_at = None, run.finished_at + timedelta(seconds=kept)


logger = logging.getLogger("django_delayq.worker")

LEVELS: dict[str, int] = {
    Status.FAILED: logging.ERROR,
    Status.LOST: logging.ERROR,
    Status.RETRYING: logging.WARNING,
}


#: Statuses that follow an execution.
EXECUTED = frozenset(("succeeded", "failed", "retrying"))


#: A failed ping does not change the outcome.
PINGS = Guard("A ping", BaseException)


def announce(outcome: Outcome, counted: Counts) -> Callable[[], None]:
    """Count, log and ping a recorded row; return the call of its signal's receivers, to be made later."""
    run = outcome.run
    if run.status == Status.QUEUED:
        return nothing
    try:
        _count(outcome, counted)
        if outcome.schedule is not None or run.status in (Status.RETRYING, Status.LOST):  # Django logs ends of jobs
            log_run(outcome)
    except BaseException as error:  # the outcome is recorded already
        side_channels.note_failure("Telling what became of a due point", error)
    if outcome.schedule is None:
        return nothing
    if run.status == Status.SKIPPED:
        return partial(send_signal, run_skipped, "run_skipped", run, outcome.schedule)
    if run.status in OPEN:
        return nothing
    good = run.status == Status.SUCCEEDED
    ping(run, outcome.schedule, "" if good else "/fail", "" if good else f"{run.reason}\n\n{run.error}")
    return partial(send_signal, run_finished, "run_finished", run, outcome.schedule)


def nothing() -> None:
    """Call no receiver."""


def _count(outcome: Outcome, counted: Counts) -> None:
    """Count an outcome; a stretch of unknown length counts as one point, a wait only with the first attempt."""
    run = outcome.run
    key = "jobs" if outcome.schedule is None else "points", run.queue, run.task
    if run.status in EXECUTED and run.attempt:
        lag, ran = run.lag if run.attempt == 1 else None, run.duration
        counted.add(
            key,
            "retried" if run.status == "retrying" else str(run.status),
            lag=None if lag is None else lag.total_seconds(),
            ran=None if ran is None else ran.total_seconds(),
        )
    elif run.status == Status.SKIPPED:
        counted.add(key, f"skipped:{run.reason}", run.points or 1)
        if run.reason in TOO_LATE and run.origin == Origin.DUE and run.due_at >= counted.able_since(*key[1:]):
            counted.add(key, MISSED, run.points or 1)
    else:
        counted.add(key, str(run.status))


def send_signal(signal: Signal, name: str, run: RunRow, schedule: ScheduleRow) -> None:
    """Send a public signal of runs; model instances are created only if it has receivers."""
    if signal.has_listeners(Schedule):
        values = {"run": ledger.as_run(run), "schedule": ledger.as_schedule(schedule)}
        side_channels.send(signal, name, cut=BaseException, sender=Schedule, **values)


def ping(run: RunRow, schedule: ScheduleRow, what: str, body: str = "") -> None:
    """Ping the schedule's URL, but not for a backfill, which does not show the schedule's current state."""
    if schedule.ping_url and run.origin != Origin.BACKFILL:
        with PINGS:
            pings.ping(schedule.ping_url, what, idempotency_key(run), body)


def log_run(outcome: Outcome) -> None:
    """Log an outcome, with its exception if it failed.

    The message is the same for all points of a schedule with the same outcome, so that tools can group them.
    """
    run = outcome.run
    level = LEVELS.get(run.status, logging.INFO)
    if not logger.isEnabledFor(level):
        return
    event = run_event(run) | (outcome.trace or {})
    message = f"{event['event']:<9} {run.title}".replace("%", "%%").replace("\n", " ")
    extra = {"delayq": event, **labels_of(run)}
    log_ended(level, f"{message}  %s", (_line(event),), extra, outcome.error, run.error)


def log_ended(
    level: int, message: str, args: tuple[Any, ...], extra: dict[str, Any], error: BaseException | None = None,
    text: str = "",
) -> None:  # fmt: skip
    """Log an outcome; a failed one with its exception and with `text`, without secrets, for all formatters.

    A handler that formats the exception itself, such as Sentry's, gets the task's original message. The record has no
    caller's location: finding it takes a fifth of the time.
    """
    if not logger.isEnabledFor(level):
        return
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, __file__, 0, message, args, info, extra=extra)
    record.exc_text = text.rstrip("\n") or None
    logger.handle(record)


def idempotency_key(run: AnyRun) -> str:
    """Return a text that is the same for all executions of a due point or a job, and unique to it."""
    return run.result_id or f"{run.schedule_id}:{run.origin}:{to_ms(run.due_at)}"


def labels_of(run: RunRow) -> dict[str, str | int]:
    """See `Held.labels`."""
    key = idempotency_key(run)
    if run.is_job:
        return {"task": run.task, "queue": run.queue, "job": key, "attempt": run.attempt}
    return {"task": run.task, "schedule": run.schedule_name, "queue": run.queue, "run": key, "attempt": run.attempt}


def run_event(run: RunRow) -> dict[str, Any]:
    """Return an outcome as flat JSON values; times in ISO 8601 UTC, durations in ms."""
    event: dict[str, Any] = {
        "event": str(run.status),
        **({"job": run.result_id} if run.is_job else {"schedule": run.schedule_name}),
        "task": run.task,
        "queue": run.queue,
        "origin": str(run.origin),
        "due_at": iso(run.due_at),
    }
    lag, ran = run.lag, run.duration
    if lag is not None:
        event["lag_ms"] = round(lag.total_seconds() * 1000)
    if ran is not None:
        event["duration_ms"] = round(ran.total_seconds() * 1000, 1)
    if run.attempt > 1 or run.status == Status.RETRYING:
        event["attempt"] = run.attempt
    if run.points != 1:
        event["points"] = run.points
    if run.last_due_at is not None:
        event["last_due_at"] = iso(run.last_due_at)
    if run.reason:
        event["reason"] = redact_text(run.reason)
    if run.reason == REASON_HANDED_OVER and isinstance(run.result, dict):
        event["backend"], event["result_id"] = run.result.get("backend"), run.result.get("result_id")
    if run.error:
        event["traceback"] = redact_text(run.error)
    return event


def _line(event: dict[str, Any]) -> str:
    parts = [f"due {event['due_at'][:19].replace('T', ' ')}"]
    if "last_due_at" in event:
        parts.append(f"to {event['last_due_at'][:19].replace('T', ' ')}")
    if "points" in event:
        parts.append(f"points {event['points'] or 'not known'}")
    if event["origin"] not in ("due", "job"):
        parts.append(event["origin"])
    if "lag_ms" in event:
        parts.append(f"lag {event['lag_ms']} ms")
    if "duration_ms" in event:
        parts.append(f"took {event['duration_ms']:g} ms")
    if "attempt" in event:
        parts.append(f"attempt {event['attempt']}")
    if "backend" in event:
        parts.append(f"handed over to {event['backend']} as {event['result_id']}")
    elif "reason" in event:
        parts.append(f"({event['reason']})")
    return "  ".join(parts).replace("\n", " ")
