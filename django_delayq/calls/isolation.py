"""Marks tasks to be executed in a process of their own; `worker/processes/isolated.py` executes them.

Can be used while apps are being loaded: needs neither models nor settings.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, overload

from ..conf.rules import MEMORY
from .compat import AnyTask, InvalidTask, is_task

T = TypeVar("T", bound=Callable[..., Any] | AnyTask)
PROCESS = "process"
_MARK = "delayq_isolation"


class Isolation(NamedTuple):
    """The requested isolation: maximum address space in MiB; None for no limit."""

    memory_mb: int | None = None


@overload
def isolated(task: T) -> T: ...
@overload
def isolated(*, memory_mb: int | None = None) -> Callable[[T], T]: ...
def isolated(task: Any = None, *, memory_mb: int | None = None) -> Any:
    """Execute a task in a process of its own, as `@task(isolation="process")` does, whichever backend the task has.

    Works above or below `@task`. Applies if `delayq_worker` executes the task, for schedules and for jobs.

    Raises:
        InvalidTask: `memory_mb` is not an integer of at least 64.
    """
    mark = _checked(PROCESS, memory_mb)

    def note(it: T) -> T:
        setattr(it.func if is_task(it) else it, _MARK, mark)
        return it

    return note if task is None else note(task)


def isolation_of(task: AnyTask) -> Isolation | None:
    """Return the isolation of a task; None if it is executed in the worker's own process."""
    if getattr(task, "isolation", None) == PROCESS:
        return Isolation(getattr(task, "memory_mb", None))
    found: Isolation | None = getattr(task.func, _MARK, None)
    return found


def validate_isolation(task: AnyTask) -> None:
    """Check the isolation options of a task; raise InvalidTask if one is not valid."""
    isolation, memory_mb = getattr(task, "isolation", None), getattr(task, "memory_mb", None)
    if not isolation is memory_mb is None:
        _checked(isolation, memory_mb)


def _checked(isolation: Any, memory_mb: Any) -> Isolation:
    if isolation is None:
        raise InvalidTask("memory_mb limits a process of the task's own: it needs isolation='process' beside it.")
    if isolation != PROCESS:
        raise InvalidTask(f"isolation must be {PROCESS!r}, or left out, not {isolation!r}.")
    if not MEMORY.holds(memory_mb):
        raise InvalidTask(f"memory_mb must be {MEMORY.wanted} (MiB), not {memory_mb!r}.")
    return Isolation(memory_mb)


def is_possible() -> bool:
    """Return whether this system has POSIX process groups and signals."""
    return os.name == "posix"
