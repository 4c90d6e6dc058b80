"""What a job calls, with its retries and timeout: from its row, its task and its backend's options. Reads nothing."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..exceptions import UnknownTask
from .compat import AnyTask, task_backends
from .task import get_retries
from .task_options import Options, Retries


def get_backend(alias: str) -> Any:
    """Return our backend of an alias; raise UnknownTask if TASKS has none here."""
    try:
        backend: Any = task_backends[alias]
    except Exception as error:
        raise UnknownTask(f"TASKS has no usable alias {alias!r} here: {error}") from error
    if not isinstance(getattr(backend, "settings", None), Options):
        raise UnknownTask(f"TASKS[{alias!r}] is not a backend of django_delayq here.")
    return backend


def find_alias(queues: Iterable[str]) -> tuple[Any, str] | None:
    """Return our first backend that takes jobs for one of these queues, and the queue; None if there is none."""
    for backend in _list_our_backends():
        served = [queue for queue in queues if not backend.queues or queue in backend.queues]
        if served:
            return backend, "default" if "default" in served else served[0]
    return None


def find_first_alias() -> str:
    return next((str(backend.alias) for backend in _list_our_backends()), "")


def _list_our_backends() -> Iterator[Any]:
    for alias in task_backends:
        with suppress(UnknownTask):
            yield get_backend(alias)


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
    #: Jobs are not handed over to other backends.
    backend: str = ""


def build_call(row: Any, task: AnyTask) -> Call:
    """Return the call of a row. Retries come from the row, the task or the backend's options. Raises UnknownTask."""
    call, options, owner = row.call or {}, row.options or {}, get_backend(row.backend)
    retries = owner.known_retries.get(row.task)
    if retries is None:
        retries = owner.known_retries[row.task] = get_retries(task).merge(owner.settings.get_retries(row.task))
    if options:
        retries = Retries(*map(options.get, Retries._fields)).merge(retries)
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
    )
