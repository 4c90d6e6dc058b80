"""Marks tasks for a process of their own (`worker/isolated.py`). Needs neither models nor settings."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, overload

from ..conf.rules import MEMORY
from .compat import AnyTask, InvalidTask, is_task

T = TypeVar("T", bound=Callable[..., Any] | AnyTask)
#: Attribute of a task's function that holds its `Isolation`.
MARK = "delayq_isolation"


class Isolation(NamedTuple):
    """The requested isolation: maximum address space in MiB; None for no limit."""

    memory_mb: int | None = None


@overload
def isolated(task: T) -> T: ...
@overload
def isolated(*, memory_mb: int | None = None) -> Callable[[T], T]: ...
def isolated(task: Any = None, *, memory_mb: int | None = None) -> Any:
    """Execute a task in a process of its own, with at most `memory_mb` MiB of address space.

    Works above or below `@task`, with any backend; applies where `delayq_worker` executes the task. Raises InvalidTask
    if `memory_mb` is not an integer of at least 64.
    """
    if not MEMORY.holds(memory_mb):
        raise InvalidTask(f"memory_mb must be {MEMORY.wanted} (MiB), not {memory_mb!r}.")

    def mark(it: T) -> T:
        setattr(it.func if is_task(it) else it, MARK, Isolation(memory_mb))
        return it

    return mark if task is None else mark(task)
