"""Django's `TaskResult` of a job. Reads nothing."""

import asyncio
import hashlib
import os
import re
import time
from base64 import urlsafe_b64encode
from copy import copy
from datetime import datetime, timedelta
from typing import Any, Self

from asgiref.sync import sync_to_async

from .. import conf
from ..exceptions import ResultTooLarge
from ..recurrence import from_ms, to_ms
from .attempt import from_json
from .compat import AnyResult, AnyTask, TaskError, TaskResultStatus

LENGTH = 22
_ID = re.compile(rf"([1-9][0-9]{{0,17}})-([A-Za-z0-9_-]{{{LENGTH}}})")


def generate_tokens(count: int) -> list[str]:
    """Return `count` tokens of 132 random bits each."""
    random = urlsafe_b64encode(os.urandom(18 * count)).decode()
    return [random[at : at + LENGTH] for at in range(0, 24 * count, 24)]


def hash_key(path: str, key: str) -> str:
    """Return a hash of a task's path and unique key: 32 hexadecimal digits, which every collation compares exactly."""
    return hashlib.sha256(f"{path}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def format_id(pk: int, token: str) -> str:
    """Return the id of a job's result; Django's limit is 64 characters."""
    return f"{pk}-{token}"


def parse_id(text: object) -> tuple[int, str] | None:
    """Return (primary key, token) of a result's id, None for anything else."""
    match = _ID.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else (int(match[1]), match[2])


_STATUS = {
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "lost": TaskResultStatus.FAILED,
    "running": TaskResultStatus.RUNNING,
}
_CANCELLED = "django_delayq.exceptions.JobCancelled"
#: Class paths for our reasons that name no error class.
_OWN_ERRORS = {
    "cancelled": "django_delayq.exceptions.TaskCancelled",
    "timeout": "django_delayq.exceptions.TaskTimeout",
    "poison": "django_delayq.exceptions.JobLost",
}
#: The reason of a job that succeeded, but whose result was too large to store.
TOO_LARGE = "django_delayq.exceptions.ResultTooLarge"


def to_local(instant: datetime | None) -> datetime | None:
    """Return an instant as Django's `timezone.now()` would: aware, or naive and local if USE_TZ is False."""
    return instant if instant is None or conf.is_tz_on() else datetime.fromtimestamp(instant.timestamp())  # noqa: DTZ006


class JobResult(AnyResult):
    __slots__ = ()

    @property
    def return_value(self) -> Any:
        """The task's return value. Raises ValueError unless it succeeded, ResultTooLarge if it was too large."""
        value = super().return_value
        last = self.errors[-1] if len(self.errors) == len(self.worker_ids) else None  # otherwise of an earlier attempt
        if last is not None and last.exception_class_path == TOO_LARGE:
            raise ResultTooLarge(self.errors[-1].traceback)
        return value

    def wait(self, timeout: float | timedelta | None = None) -> Self:
        """Wait until the job has ended, successful or failed, and return this result, refreshed.

        `timeout` is in seconds, 0 to query once, None for no limit. Raises TimeoutError if it has passed (the job
        continues), WaitRefused if the job cannot end while the caller waits, TaskResultDoesNotExist if the job was
        deleted or expired.
        """
        backend: Any = self.task.get_backend()
        for seconds in backend.poll(self, timeout):
            time.sleep(seconds)
        return self

    async def await_(self, timeout: float | timedelta | None = None) -> Self:
        """Like `wait`, without blocking the event loop. Can be cancelled safely."""
        backend: Any = self.task.get_backend()
        polls = backend.poll(self, timeout)
        while (seconds := await sync_to_async(lambda: next(polls, None))()) is not None:
            await asyncio.sleep(seconds)
        return self


def restore_task(task: AnyTask, row: Any) -> AnyTask:
    """Return a task as it was when the job was enqueued, unchecked: later settings must not hide a result."""
    run_after = to_local(row.due_at) if row.due_at > row.created_at else None
    values = row.backend, row.queue, row.priority, run_after
    if values == (task.backend, task.queue_name, task.priority, task.run_after):
        return task
    made = copy(task)
    for name, value in zip(("backend", "queue_name", "priority", "run_after"), values, strict=True):
        object.__setattr__(made, name, value)
    return made


def build_result(task: AnyTask, row: Any, call: Any = None, *, begun: bool = False) -> AnyResult:
    """Return a job's result as Django shows it. Attempts before a manual retry are left out.

    `call` replaces the row's arguments. With `begun`, the row's `attempt` counts the execution that is starting.
    """
    call = call or row.call or {}
    attempts = from_json(row.attempts) if row.attempts else []
    status = _STATUS.get(row.status, TaskResultStatus.READY)
    last = row.started_at is not None and not (attempts and attempts[-1].started == to_ms(row.started_at))
    counted = row.attempt - (last and (begun or status != TaskResultStatus.RUNNING))
    ended = [it for it in attempts if it.ended][-counted:] if counted > 0 else []
    errors = [(_parse_error_path(it.title), it.trace) for it in ended if it.title]
    workers = [it.worker for it in ended]
    started = [from_ms(it.started) for it in ended if it.started is not None]
    if last:
        started.append(row.started_at)
        workers.append(row.worker)
    if row.error:
        waited = row.reason == "cancelled" and row.started_at is None
        errors.append((_CANCELLED if waited else _parse_error_path(row.reason), row.error))
    finished = status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
    result: AnyResult = JobResult(
        task=restore_task(task, row),
        id=row.result_id,
        status=status,
        enqueued_at=to_local(row.created_at),
        started_at=to_local(min(started)) if started else None,
        finished_at=to_local(row.finished_at) if finished else None,
        last_attempted_at=to_local(max(started)) if started else None,
        args=call.get("args", []),
        kwargs=call.get("kwargs", {}),
        backend=row.backend,
        errors=[TaskError(exception_class_path=path, traceback=trace) for path, trace in errors],
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", row.result)
    return result


def _parse_error_path(title: str) -> str:
    """Return the class path of the error that a title or a reason names, as in Django's `TaskError`."""
    path = title.partition(": ")[0]
    own = _OWN_ERRORS.get(title.partition(" by ")[0])
    return own or (path if "." in path else f"builtins.{path}")
