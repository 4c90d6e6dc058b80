"""Django's `TaskResult` of a job. Reads nothing."""

from datetime import UTC, datetime, timedelta
from typing import Any, Self

from .. import conf
from ..compat import AnyResult, AnyTask, TaskError, TaskResultStatus
from ..exceptions import ResultTooLarge
from .record import Call, State
from .task import as_enqueued


def instant(ms: int | None) -> datetime | None:
    """Return ms since the epoch as Django's `timezone.now()` would: aware, or local where the project is naive."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC if conf.use_tz() else None)


class JobResult(AnyResult):
    """Django's `TaskResult` of a job of ours."""

    __slots__ = ()

    @property
    def return_value(self) -> Any:
        """What the task returned.

        Raises:
            ResultTooLarge: It was too large to be kept; `errors` ends with that too. A ValueError, as the others are.
            ValueError: The task failed, or has not finished yet.
        """
        value = super().return_value
        errors = [(error.exception_class_path, error.traceback) for error in self.errors]
        if why := State("SUCCESSFUL", errors=errors, workers=self.worker_ids).left_out:
            raise ResultTooLarge(why)
        return value

    def wait(self, timeout: float | timedelta | None = None) -> Self:
        """Wait until the job has ended, and return this result, refreshed: successful or failed, but finished.

        `timeout` is in seconds, 0 to look once, None for ever. The result is read every 20 ms at first, later every
        second. A Redis that does not answer is waited for.

        Raises:
            ResultTimeout: The time is over; a TimeoutError. The job goes on.
            WaitRefused: It may not end before this returns: a transaction is open, and what is enqueued in it is sent
                after its commit, or nothing is sent to Redis here.
            TaskResultDoesNotExist: No job has this id, its result has expired, or Redis was flushed.
        """
        backend: Any = self.task.get_backend()
        backend.wait(self, timeout)
        return self

    async def await_(self, timeout: float | timedelta | None = None) -> Self:
        """Do as `wait` does, without blocking the event loop. Cancelled, it leaves nothing behind."""
        backend: Any = self.task.get_backend()
        await backend.await_(self, timeout)
        return self


def as_called(task: AnyTask, call: Call, queue: str) -> AnyTask:
    """Return a task as this call of it was enqueued."""
    run_after = instant(call.run_after)
    return as_enqueued(task, backend=call.backend, queue_name=queue, priority=call.priority, run_after=run_after)


def as_result(task: AnyTask, result_id: str, call: Call, state: State, *, running: bool = False) -> AnyResult:
    """Return what stands of a job as Django shows it."""
    unfinished = "RUNNING" if running else "READY"
    result: AnyResult = JobResult(
        task=task,
        id=result_id,
        status=TaskResultStatus(state.status if state.status in ("SUCCESSFUL", "FAILED") else unfinished),
        enqueued_at=instant(call.enqueued),
        started_at=instant(state.started),
        finished_at=instant(state.finished),
        last_attempted_at=instant(state.attempted),
        args=call.args,
        kwargs=call.kwargs,
        backend=call.backend,
        errors=[TaskError(exception_class_path=path, traceback=trace) for path, trace in state.errors],
        worker_ids=list(state.workers),
    )
    object.__setattr__(result, "_return_value", state.value)
    return result
