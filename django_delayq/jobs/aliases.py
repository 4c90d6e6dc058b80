"""The aliases of `TASKS` that are ours. Makes their backends, asks no server."""

from collections.abc import Iterable
from typing import Any

from ..compat import task_backends
from .options import Options


def durable_alias(queues: Iterable[str]) -> tuple[Any, str] | None:
    """Return the first backend of ours whose jobs are rows of the database, and a queue of it; None where none is."""
    for alias in task_backends:
        try:
            backend: Any = task_backends[alias]
        except Exception:  # noqa: S112 - any backend, of anybody
            continue
        options = getattr(backend, "settings", None)
        served = [queue for queue in queues if not backend.queues or queue in backend.queues]
        if isinstance(options, Options) and options.durable and served:
            return backend, "default" if "default" in served else served[0]
    return None


def keepers_of(queue: str) -> dict[str, Options]:
    """Return the options of our aliases whose jobs of this queue may die in Redis: durable ones die in their rows.

    An alias whose backend cannot be made here is left out; the checks report it.
    """
    found = {}
    for alias in task_backends:
        try:
            backend: Any = task_backends[alias]
        except Exception:  # noqa: S112 - any backend, of anybody
            continue
        options = getattr(backend, "settings", None)
        serves = not backend.queues or queue in backend.queues
        if isinstance(options, Options) and serves and not options.durable:
            found[alias] = options
    return found
