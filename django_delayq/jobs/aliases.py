"""The aliases of `TASKS` that are ours. Makes their backends, asks no server."""

from collections.abc import Iterable, Iterator
from typing import Any

from ..compat import task_backends
from ..exceptions import UnknownTask
from .options import Options


def backend_of(alias: str) -> Any:
    """Return the backend of an alias.

    Raises:
        UnknownTask: TASKS has no such alias here, or it is not ours.
    """
    try:
        backend: Any = task_backends[alias]
    except Exception as error:
        raise UnknownTask(f"TASKS has no usable alias {alias!r} here: {error}") from error
    if not isinstance(getattr(backend, "settings", None), Options):
        raise UnknownTask(f"TASKS[{alias!r}] is no backend of django_delayq here.")
    return backend


def alias_for(queues: Iterable[str]) -> tuple[Any, str] | None:
    """Return our first backend that takes jobs for one of these queues, and that queue; None where there is none."""
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
