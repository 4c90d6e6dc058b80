"""What a task that takes the context receives. Holds values only."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from .compat import TaskContext

if TYPE_CHECKING:
    from .models import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(TaskContext):  # type: ignore[misc, type-arg]  # the stubs differ from Django here
    """Django's `TaskContext`, plus what a due point knows.

    `schedule` is the definition this run was started with, `due_at` the nominal instant (UTC). `idempotency_key` is
    the same text for every execution of one due point (retries, take-overs after a crash) and for no other: executions
    are at-least-once, so hand it to whatever must not happen twice. `attempt` counts from 1.
    """

    schedule: "Schedule"
    due_at: datetime
    idempotency_key: str
    attempt_number: int = 1
    _lease_lost: Callable[[], bool] = bool

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1; a take-over after a crash is no new attempt."""
        return self.attempt_number

    @property
    def lease_lost(self) -> bool:
        """True once this worker lost the lease, or gave the task up after its hard timeout.

        Another worker may run the same point then, and what this one returns is not recorded: a long task should stop.
        """
        return self._lease_lost()
