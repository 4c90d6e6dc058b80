"""Calls one task and turns what it does into a row of the ledger. Writes nothing anywhere."""

import logging
import random
import time
import traceback
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import close_old_connections

from ..compat import AnyTask, TaskResult, TaskResultStatus
from ..context import RunContext
from ..exceptions import InvalidArguments
from ..models import Run, Schedule, Status
from ..registry import check_call
from ..signals import run_started
from ..timing import to_ms
from ..validators import validate_json
from .entry import Finished, Held

logger = logging.getLogger("django_delayq.worker")

MAX_BACKOFF = timedelta(hours=1)
MAX_ERROR_CHARS = 20_000


def idempotency_key(run: Run) -> str:
    """Return the text that is the same for every execution of a due point, and for no other point."""
    return f"{run.schedule_id}:{run.origin}:{to_ms(run.due_at)}"


def execute(held: Held, task: AnyTask, worker: str) -> Finished:
    """Call the task and fill in the row: succeeded, failed, or retrying with the delay. Never raises.

    A `BaseException` that is no `Exception` (a task that calls `sys.exit`) is a failure of the task too.
    """
    assert held.outcome is not None  # noqa: S101 - judged entries have one
    run, schedule = held.outcome.run, held.outcome.schedule
    run.started_at = datetime.now(UTC)
    run.worker = worker
    run_started.send_robust(sender=Schedule, run=run, schedule=schedule)
    close_old_connections()
    run.attempt += 1
    began = time.perf_counter()
    retry_after_ms = None
    try:
        run.result = _storable(_call(task, run, schedule, held))
        run.status, run.error, run.reason = Status.SUCCEEDED, "", ""
    except BaseException as error:
        run.error = _clean("".join(traceback.format_exception(error)))[-MAX_ERROR_CHARS:]
        run.reason = _clean(_title(error))[:200]
        retry_after_ms = _after_failure(run, schedule, error)
    seconds = time.perf_counter() - began
    close_old_connections()
    run.finished_at = datetime.now(UTC)
    return Finished(held, seconds, retry_after_ms)


def _call(task: AnyTask, run: Run, schedule: Schedule, held: Held) -> Any:
    check_call(task, schedule.args, schedule.kwargs)
    if not task.takes_context:
        return task.call(*schedule.args, **schedule.kwargs)
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
        schedule=schedule,
        due_at=run.due_at,
        idempotency_key=key,
        attempt_number=run.attempt,
        _lease_lost=held.lost,
    )
    return task.call(context, *schedule.args, **schedule.kwargs)


def _storable(value: Any) -> Any:
    """Return a result as it can be stored; a note instead where it is no JSON of at most 64 KiB. Never a failure."""
    if value is None or (isinstance(value, bool | int) and abs(value) < 2**63):
        return value
    try:
        validate_json([value], {})
    except InvalidArguments as error:
        return {
            "not stored": str(error)
            .replace("arguments are", "result is")
            .replace("arguments contain", "result contains")
        }
    return value


def _title(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own text is broken
        return type(error).__name__


def _clean(text: str) -> str:
    """Return text that every database stores: no NUL, no half of a surrogate pair."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _after_failure(run: Run, schedule: Schedule, error: BaseException) -> int | None:
    """Set the status; return the delay in ms where another attempt is due, else None."""
    final = isinstance(error, InvalidArguments)  # trying again cannot help
    if final or run.attempt >= schedule.max_attempts:
        run.status = Status.FAILED
        return None
    run.status = Status.RETRYING
    return backoff_ms(schedule.backoff, run.attempt)


def backoff_ms(base: timedelta, attempt: int) -> int:
    """Return the delay after a failed attempt: doubling, at most an hour, spread by up to a fifth downwards."""
    seconds = min(base.total_seconds() * 2 ** min(attempt - 1, 30), MAX_BACKOFF.total_seconds())
    return int(seconds * 1000 * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load, guards nothing
