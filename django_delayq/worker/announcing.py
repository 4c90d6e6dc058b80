"""Hooks of the trip: `begin` before a call, `end` after it, `announce` after the record. None changes an outcome.

Note [Receivers are called after the record]
Django documents: `task_started` is sent before the call; `task_finished` after the last attempt and, if that failed,
inside the exception's handler; a return value that is not JSON fails the task. Receivers other than Django's own,
which only logs, are called once the outcome is recorded.
"""

import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from django.dispatch import Signal

from .. import ledger
from ..calls import build_result, side_channels
from ..calls.compat import AnyResult, AnyTask, TaskError, TaskResultStatus, task_finished, task_started
from ..calls.context import EXECUTING
from ..calls.handover import REASON as REASON_HANDED_OVER
from ..calls.results import to_local
from ..calls.side_channels import Guard
from ..index.counters import MISSED, TOO_LATE, Counts
from ..ledger import Outcome
from ..ledger.rows import RunRow, ScheduleRow
from ..models import Origin, Schedule, Status
from ..models.run import OPEN
from ..monitoring import pings
from ..signals import run_finished, run_skipped, run_started
from ..text import format_iso, redact_text
from .held import Lease

logger = logging.getLogger("django_delayq.worker")

LEVELS: dict[str, int] = {Status.FAILED: logging.ERROR, Status.LOST: logging.ERROR, Status.RETRYING: logging.WARNING}
#: Statuses that follow an execution.
EXECUTED = frozenset(("succeeded", "failed", "retrying"))
PINGS = Guard("A ping", BaseException)
#: How a log line shows the fields of an outcome.
_SHOWN = {
    "last_due_at": "to {:.19}",
    "points": "points {}",
    "latency_ms": "latency {} ms",
    "duration_ms": "took {:g} ms",
    "attempt": "attempt {}",
    "reason": "({})",
    "backend": "backend {}",
    "result_id": "result {}",
}


def begin(held: Lease, task: AnyTask) -> AnyResult | None:
    """Announce an attempt that begins, and count it; return the result of a job, None for a due point."""
    run, schedule = held.outcome.run, held.outcome.schedule
    if schedule is None:
        run.attempt += 1
        result = build_running_result(held, task)
        _send_to_jobs(task_started, "task_started", held, result)
        return result
    if run_started.has_listeners(Schedule):
        send_signal(run_started, "run_started", run, schedule)
    if schedule.ping_url:
        ping(run, schedule, "/start")
    run.attempt += 1
    return None


def build_running_result(held: Lease, task: AnyTask) -> AnyResult:
    """Return the result of a job whose attempt has begun and has no outcome yet."""
    run, call = held.outcome.run, held.outcome.call
    result = build_result(task, run, {"args": call.args, "kwargs": call.kwargs}, begun=True)
    object.__setattr__(result, "status", TaskResultStatus.RUNNING)
    return result


def end(held: Lease, result: AnyResult | None) -> None:
    """Prepare the calls of receivers, for after the record; `result` is the one of a job. None before a retry."""
    run = held.outcome.run
    if run.status in OPEN:
        return
    if result is None:
        if run_finished.has_listeners(Schedule):
            held.after = lambda: None  # so that the thread waits for what `announce` returns
        return
    failed = run.status != Status.SUCCEEDED
    object.__setattr__(result, "status", TaskResultStatus.FAILED if failed else TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", to_local(run.finished_at))
    object.__setattr__(result, "_return_value", run.result)
    if held.failure is not None:
        result.errors.append(TaskError(exception_class_path=held.failure.path, traceback=held.failure.text))
    finish = partial(_send_finished, held, result, held.outcome.error)
    if len(task_finished.receivers) > 1:
        held.after = partial(copy_context().run, finish)
        return
    token = EXECUTING.set(held)  # adds its labels to the log record of Django's receiver, in any thread
    try:
        finish()
    finally:
        EXECUTING.reset(token)


def _send_finished(held: Lease, result: AnyResult, error: BaseException | None) -> None:
    send = partial(_send_to_jobs, task_finished, "task_finished", held, result)
    if error is None:
        send()
        return
    try:
        raise error  # Django's receiver logs the exception that is being handled
    except BaseException:
        send()


def _send_to_jobs(signal: Signal, name: str, held: Lease, result: AnyResult) -> None:
    call: Any = held.outcome.job
    side_channels.send(signal, name, cut=BaseException, sender=type(call.owner), task_result=result)


def announce(outcome: Outcome, counted: Counts) -> Callable[[], None] | None:
    """Count, log and ping a recorded row; return the call of its signal's receivers, to be made later, if any."""
    run, schedule = outcome.run, outcome.schedule
    if run.status == Status.QUEUED:
        return None
    key = "points" if schedule else "jobs", run.queue, run.task
    try:
        if run.status in EXECUTED and run.attempt:
            latency, ran = run.latency if run.attempt == 1 else None, run.duration
            counted.add(
                key, "retried" if run.status == Status.RETRYING else str(run.status),
                latency=None if latency is None else latency.total_seconds(),
                ran=None if ran is None else ran.total_seconds(),
            )  # fmt: skip
        else:
            skipped = run.status == Status.SKIPPED
            counted.add(key, f"skipped:{run.reason}" if skipped else str(run.status), run.points or 1 if skipped else 1)
            is_late = skipped and run.reason in TOO_LATE and run.origin == Origin.DUE
            if is_late and run.due_at >= counted.get_able_since(*key[1:]):
                counted.add(key, MISSED, run.points or 1)
        is_logged = schedule is not None or run.status in (Status.RETRYING, Status.LOST)  # Django logs ends of jobs
        if is_logged and logger.isEnabledFor(LEVELS.get(run.status, logging.INFO)):
            log_run(outcome)
    except BaseException as error:  # the outcome is recorded already
        side_channels.note_failure("Announcing an outcome", error)
    if schedule is None or run.status in OPEN:
        return None
    signal, name = run_finished, "run_finished"
    if run.status == Status.SKIPPED:
        signal, name = run_skipped, "run_skipped"
    elif schedule.ping_url:
        good = run.status == Status.SUCCEEDED
        ping(run, schedule, "" if good else "/fail", "" if good else f"{run.reason}\n\n{run.error}")
    return partial(send_signal, signal, name, run, schedule) if signal.has_listeners(Schedule) else None


def send_signal(signal: Signal, name: str, run: RunRow, schedule: ScheduleRow) -> None:
    """Send a public signal of runs, with instances of the models."""
    values = {"run": ledger.build_run(run), "schedule": ledger.build_schedule(schedule)}
    side_channels.send(signal, name, cut=BaseException, sender=Schedule, **values)


def ping(run: RunRow, schedule: ScheduleRow, what: str, body: str = "") -> None:
    """Ping the schedule's URL, but not for a backfill, which does not show the schedule's current state."""
    if run.origin != Origin.BACKFILL:
        with PINGS:
            pings.ping(schedule.ping_url, what, run.idempotency_key, body)


def log_run(outcome: Outcome) -> None:
    """Log an outcome, a failed one with its exception and its text without secrets.

    All points of a schedule with the same outcome have the same message, so that tools can group them. A handler that
    formats the exception itself gets the original message. The caller's location is missing, because it costs time.
    """
    run, error, level = outcome.run, outcome.error, LEVELS.get(outcome.run.status, logging.INFO)
    event = build_run_event(run) | (outcome.trace or {})
    message = f"{event['event']:<9} {run.title}".replace("%", "%%").replace("\n", " ") + "  %s"
    parts = [f"due {event['due_at']:.19}"]
    parts += [event["origin"]] if run.origin not in (Origin.DUE, Origin.JOB) else []
    shown = event | ({"points": "not known"} if event.get("points") == 0 else {})
    parts += [text.format(shown[name]) for name, text in _SHOWN.items() if name in event]
    info = None if error is None else (type(error), error, error.__traceback__)
    extra = {"delayq": event, **run.labels}
    line = "  ".join(parts).replace("\n", " ")
    record = logger.makeRecord(logger.name, level, __file__, 0, message, (line,), info, extra=extra)
    record.exc_text = run.error.rstrip("\n") or None
    logger.handle(record)


def build_run_event(run: RunRow) -> dict[str, Any]:
    """Return an outcome as flat JSON values; times in ISO 8601 UTC, durations in ms."""
    latency, ran = run.latency, run.duration
    event: dict[str, Any] = {
        "event": str(run.status),
        **({"job": run.result_id} if run.is_job else {"schedule": run.schedule_name}),
        "task": run.task,
        "queue": run.queue,
        "origin": str(run.origin),
        "due_at": format_iso(run.due_at),
        "latency_ms": None if latency is None else round(latency.total_seconds() * 1000),
        "duration_ms": None if ran is None else round(ran.total_seconds() * 1000, 1),
        "attempt": run.attempt if run.attempt > 1 or run.status == Status.RETRYING else None,
        "points": None if run.points == 1 else run.points,
        "last_due_at": None if run.last_due_at is None else format_iso(run.last_due_at),
        "reason": redact_text(run.reason) or None,
        "traceback": redact_text(run.error) or None,
    }
    if run.reason == REASON_HANDED_OVER and isinstance(run.result, dict):
        event |= {name: run.result.get(name) for name in ("backend", "result_id")}
    return {name: value for name, value in event.items() if value is not None}
