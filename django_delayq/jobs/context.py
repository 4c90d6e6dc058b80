"""What a task that takes the context receives when it runs as a job. Holds values only."""

from collections.abc import Callable
from dataclasses import dataclass

from ..compat import TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(TaskContext):  # type: ignore[misc, type-arg]  # the stubs differ from Django here
    """Django's `TaskContext`, plus what a job knows.

    `idempotency_key` is the same text for every execution of one job (retries, take-overs after a crash) and for no
    other: executions are at-least-once, so hand it to whatever must not happen twice.
    """

    idempotency_key: str
    _lease_lost: Callable[[], bool] = bool

    @property
    def lease_lost(self) -> bool:
        """True once this worker lost the lease, or gave the task up after its hard timeout.

        Another worker may run the same job then, and what this one returns is not recorded: a long task should stop.
        """
        return self._lease_lost()
