"""The context that tasks with `takes_context` receive. Values only."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .compat import TaskContext

#: The worker's entry that the current context executes.
EXECUTING: ContextVar[Any] = ContextVar("delayq_executing", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext(TaskContext):  # type: ignore[misc, type-arg]  # the stubs differ from Django here
    """Django's `TaskContext`, with the fields of every execution.

    `idempotency_key` is the same for all executions of one job or due point and for no other: pass it to every API that
    must not act twice.
    """

    idempotency_key: str
    _lease_lost: Callable[[], bool] = bool

    @property
    def lease_lost(self) -> bool:
        """True if another worker may execute this too, and the result is not recorded: a long task should stop."""
        return self._lease_lost()


class JobContext(ExecutionContext):
    __slots__ = ()
