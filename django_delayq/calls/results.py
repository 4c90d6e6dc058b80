"""Django's `TaskResult` of a job. Reads nothing."""

import hashlib
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from .. import conf
from ..exceptions import ResultTooLarge
from ..recurrence import from_ms, to_ms
from .compat import AnyResult, AnyTask, TaskError, TaskResultStatus
from .history import Attempt, path_of_title
from .task import as_enqueued

LENGTH = 22
_ID = re.compile(rf"([1-9][0-9]{{0,17}})-([A-Za-z0-9_-]{{{LENGTH}}})")


def new_tokens(count: int) -> list[str]:
    """Return `count` tokens of 132 random bits each."""
    random = urlsafe_b64encode(os.urandom(18 * count)).decode()
    return [random[at : at + LENGTH] for at in range(0, 24 * count, 24)]


def key_hash(path: str, key: str) -> str:
    """Return the hash of a task's unique key: 32 hexadecimal digits, which every collation compares exactly.

    It includes the path, so that keys of different tasks never collide.
    """
    return hashlib.sha256(f"{path}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def result_id(pk: int, token: str) -> str:
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
#: The reason of a job that succeeded, but whose result was too large to store.
TOO_LARGE = "django_delayq.exceptions.ResultTooLarge"


def local(instant: datetime | None) -> datetime | None:
    """Return an instant as Django's `timezone.now()` would: aware, or local if USE_TZ is False."""
    return instant if instant is None or conf.use_tz() else datetime.fromtimestamp(instant.timestamp())  # noqa: DTZ006


class JobResult(AnyResult):
    __slots__ = ()

    @property
    def return_value(self) -> Any:
        """The return value of the task.

        Raises:
            ResultTooLarge: It was too large to store; the last of `errors` says so too. A ValueError.
            ValueError: The task failed, or has not finished yet.
        """
        value = super().return_value
        last = self.errors[-1] if len(self.errors) == len(self.worker_ids) else None  # otherwise of an earlier attempt
        if last is not None and last.exception_class_path == TOO_LARGE:
            raise ResultTooLarge(self.errors[-1].traceback)
        return value

    def wait(self, timeout: float | timedelta | None = None) -> Self:
        """Wait until the job has ended, successful or failed, and return this result, refreshed.

        `timeout` is in seconds, 0 to query once, None for no limit. The database is queried immediately, after 20 ms,
        and then at growing intervals of at most one second.

        Raises:
            TimeoutError: The timeout has passed. The job continues.
            WaitRefused: It cannot end while the caller waits: a transaction is open, or this process does not use
                Redis.
            TaskResultDoesNotExist: No job has this id, or its result has expired.
        """
        backend: Any = self.task.get_backend()
        backend.wait(self, timeout)
        return self

    async def await_(self, timeout: float | timedelta | None = None) -> Self:
        """Like `wait`, without blocking the event loop. Can be cancelled safely."""
        backend: Any = self.task.get_backend()
        await backend.await_(self, timeout)
        return self


def as_called(task: AnyTask, row: Any) -> AnyTask:
    """Return a task as it was when the job of this row was enqueued."""
    run_after = local(row.due_at) if row.due_at > row.created_at else None
    wanted = row.backend, row.queue, row.priority, run_after
    if wanted == (task.backend, task.queue_name, task.priority, task.run_after):
        return task
    return as_enqueued(task, backend=row.backend, queue_name=row.queue, priority=row.priority, run_after=run_after)


def new_result(
    task: AnyTask, row: Any, call: Any = None, attempts: Sequence[Attempt] = (), *, begun: bool = False
) -> AnyResult:
    """Return a job's result as Django shows it. Attempts before a manual retry are left out.

    `attempts` are those stored in the row: `history.from_json(row.attempts)`. `begun`: the row's `attempt` counts the
    execution that is starting in the worker.
    """
    call = call or row.call or {}
    status = _STATUS.get(row.status, TaskResultStatus.READY)
    last = row.started_at is not None and not (attempts and attempts[-1].started == to_ms(row.started_at))
    counted = row.attempt - (last and (begun or status != TaskResultStatus.RUNNING))
    ended = [it for it in attempts if it.ended][-counted:] if counted > 0 else []
    errors = [(path_of_title(it.title), it.trace) for it in ended if it.title]
    workers = [it.worker for it in ended]
    started = [from_ms(it.started) for it in ended if it.started is not None]
    if last:
        started.append(row.started_at)
        workers.append(row.worker)
    if row.error:
        waited = row.reason == "cancelled" and row.started_at is None
        errors.append((_CANCELLED if waited else path_of_title(row.reason), row.error))
    result: AnyResult = JobResult(
        task=task,
        id=row.result_id,
        status=status,
        enqueued_at=local(row.created_at),
        started_at=local(min(started)) if started else None,
        finished_at=local(row.finished_at)
        if status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
        else None,
        last_attempted_at=local(max(started)) if started else None,
        args=call.get("args", []),
        kwargs=call.get("kwargs", {}),
        backend=row.backend,
        errors=[TaskError(exception_class_path=path, traceback=trace) for path, trace in errors],
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", row.result)
    return result
