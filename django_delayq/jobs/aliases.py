"""The aliases of `TASKS` that are ours. Makes their backends, asks no server."""

from collections.abc import Iterable, Iterator
from typing import Any

from ..compat import task_backends
from .options import Options


def durable_alias(queues: Iterable[str]) -> tuple[Any, str] | None:
    """Return the first backend of ours whose jobs are rows of the database, and a queue of it; None where none is."""
    for _, backend in _ours():
        served = [queue for queue in queues if not backend.queues or queue in backend.queues]
        if backend.settings.durable and served:
            return backend, "default" if "default" in served else served[0]
    return None


def keepers_of(queue: str) -> dict[str, Options]:
    """Return the options of our aliases whose jobs of this queue may die in Redis: durable ones die in their rows.

    An alias whose backend cannot be made here is left out; the checks report it.
    """
    found = {}
    for alias, backend in _ours():
        if not backend.settings.durable and (not backend.queues or queue in backend.queues):
            found[alias] = backend.settings
    return found


def alias_of_rows() -> str:
    """Return the alias for jobs that are made as rows: the first durable one of ours, else the first, '' for none."""
    found = sorted(_ours(), key=lambda item: not item[1].settings.durable)
    return found[0][0] if found else ""


def _ours() -> Iterator[tuple[str, Any]]:
    for alias in task_backends:
        try:
            backend: Any = task_backends[alias]
        except Exception:  # noqa: S112 - any backend, of anybody
            continue
        if isinstance(getattr(backend, "settings", None), Options):
            yield alias, backend
