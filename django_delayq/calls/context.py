"""What a task that takes the context receives. Holds values only."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from .compat import TaskContext

if TYPE_CHECKING:
    from ..models import Schedule
    from ..worker.held import Held

#: What the present context executes.
EXECUTING: "ContextVar[Held | None]" = ContextVar("delayq_executing", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext(TaskContext):  # type: ignore[misc, type-arg]  # the stubs differ from Django here
    """Django's `TaskContext`, plus what every execution knows.

    `idempotency_key` is the same text for every execution of one job or due point (retries, take-overs after a crash)
    and for no other: executions are at-least-once, so hand it to whatever must not happen twice.
    """

    idempotency_key: str
    _lease_lost: Callable[[], bool] = bool

    @property
    def lease_lost(self) -> bool:
        """True once this worker lost the lease, or gave the task up after its hard timeout.

        Another worker may run the same then, and what this one returns is not recorded: a long task should stop.
        """
        return self._lease_lost()


class JobContext(ExecutionContext):
    """What a task receives that runs as a job."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(ExecutionContext):  # type: ignore[misc]
    """What a task receives that a schedule runs.

    `schedule` is the definition this run was started with, `due_at` the nominal instant (UTC).
    """

    schedule: "Schedule"
    due_at: datetime
    attempt_number: int = 1

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1; a take-over after a crash is no new attempt."""
        return self.attempt_number
