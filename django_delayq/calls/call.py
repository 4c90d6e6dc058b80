"""What a job calls, with its retries and timeout: from its row, its task and its backend's options. Reads nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..exceptions import UnknownTask
from .compat import AnyTask, task_backends
from .options import Options, Retries
from .task import retries_of


def backend_of(alias: str) -> Any:
    """Return the backend of an alias; raise UnknownTask if TASKS has no such alias here, or its backend is not ours."""
    try:
        backend: Any = task_backends[alias]
    except Exception as error:
        raise UnknownTask(f"TASKS has no usable alias {alias!r} here: {error}") from error
    if not isinstance(getattr(backend, "settings", None), Options):
        raise UnknownTask(f"TASKS[{alias!r}] is no backend of django_delayq here.")
    return backend


def alias_for(queues: Iterable[str]) -> tuple[Any, str] | None:
    """Return our first backend that takes jobs for one of these queues, and the queue; None if there is none."""
    for backend in _ours():
        served = [queue for queue in queues if not backend.queues or queue in backend.queues]
        if served:
            return backend, "default" if "default" in served else served[0]
    return None


def first_alias() -> str:
    """Return our first alias, '' for none."""
    return next((str(backend.alias) for backend in _ours()), "")


def _ours() -> Iterator[Any]:
    for alias in task_backends:
        try:
            yield backend_of(alias)
        except UnknownTask:
            continue


@dataclass(slots=True, eq=False)
class Call:
    """A job's call, with the field names of a schedule's row."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    timeout: timedelta | None
    max_attempts: int
    backoff: timedelta
    on_success: str
    on_failure: str
    #: The backend of its alias.
    owner: Any
    #: The requested start, if any.
    run_after: datetime | None
    #: Jobs are not handed over to other backends.
    backend: str = ""


def call_of(row: Any, task: AnyTask, owner: Any) -> Call:
    """Return the call of a row. Retries come from the row, else from the task, else from the backend's options."""
    call, options = row.call or {}, row.options or {}
    retries = owner.known_retries.get(row.task)
    if retries is None:
        retries = owner.known_retries[row.task] = retries_of(task).over(owner.settings.retries_of(row.task))
    if options:
        retries = Retries(*map(options.get, Retries._fields)).over(retries)
    return Call(
        row.task,
        call.get("args") or [],
        call.get("kwargs") or {},
        timedelta(seconds=retries.timeout) if retries.timeout else None,
        retries.max_attempts or 1,
        timedelta(seconds=retries.backoff or 0),
        options.get("on_success", ""),
        options.get("on_failure", ""),
        owner,
        row.due_at if row.due_at > row.created_at else None,
    )
