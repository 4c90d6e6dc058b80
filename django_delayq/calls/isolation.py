"""How a task asks for a process of its own. Only notes it; `worker/processes/isolated.py` has it executed there.

Usable while apps are still being loaded: it knows neither models nor settings.
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
    """What was asked for: at most so much address space (MiB); None is no limit."""

    memory_mb: int | None = None


@overload
def isolated(task: T) -> T: ...
@overload
def isolated(*, memory_mb: int | None = None) -> Callable[[T], T]: ...
def isolated(task: Any = None, *, memory_mb: int | None = None) -> Any:
    """Have a task executed in a process of its own, as `@task(isolation="process")` does: whatever makes the task.

    Stands above or below `@task`. Holds where `delayq_worker` executes the task, for schedules and for jobs.

    Raises:
        InvalidTask: `memory_mb` is no whole number of MiB from 64 on.
    """
    mark = _checked(PROCESS, memory_mb)

    def note(it: T) -> T:
        setattr(it.func if is_task(it) else it, _MARK, mark)
        return it

    return note if task is None else note(task)


def isolation_of(task: AnyTask) -> Isolation | None:
    """Return what a task has asked for; None where it is executed in the worker's own process."""
    if getattr(task, "isolation", None) == PROCESS:
        return Isolation(getattr(task, "memory_mb", None))
    found: Isolation | None = getattr(task.func, _MARK, None)
    return found


def validate_isolation(task: AnyTask) -> None:
    """Check what a task says of it by its options.

    Raises:
        InvalidTask: It asks for something that there is not.
    """
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
    """Say whether this system has what it takes: process groups and signals of POSIX."""
    return os.name == "posix"
