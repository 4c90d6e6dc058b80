"""Every exception of this package. Never raises anything itself."""

import signal
from collections.abc import Iterable


class DelayQError(Exception):
    """Base of all errors raised by django_delayq."""


class InvalidRecurrence(DelayQError, ValueError):
    """A recurrence that cannot be accepted; the message names the field, the value and what is allowed.

    `field` is the model field to blame (`cron`, `every`, `at`, `timezone`, ...), so that a form can point at it.
    """

    def __init__(self, message: str, *, field: str = "cron") -> None:
        super().__init__(message)
        self.field = field


class BrokerError(DelayQError):
    """Redis answered, but with an error: a wrong type under our keys, no memory, no permission."""


class BrokerUnavailable(BrokerError):
    """Redis did not answer in time or cannot serve now. Trying again later is right."""


class UnfitServer(BrokerError):
    """A server that must not be worked with: it evicts keys, or does not run the scripts as it must."""


class DamagedKeys(BrokerError):
    """Something else wrote under our prefix: a key has the wrong type. Deleting it is safe, the mirror rebuilds it."""


class MissingTables(DelayQError):
    """The database does not have our tables yet: `manage.py migrate` makes them."""


class PendingMigrations(DelayQError):
    """`manage.py migrate` was not run for this release. A worker waits for it."""


class OutdatedRelease(DelayQError):
    """The database was migrated to the layout of a later release: this one must not go on, nor be started again."""


class ForeignLayout(DelayQError):
    """The prefix in Redis belongs to another database."""


class OtherLayout(ForeignLayout):
    """The index in Redis was built by a release of another layout, or for another number of shards."""


class UnknownTask(DelayQError, LookupError):
    """No installed app offers a `@task` function of this path."""


class InvalidArguments(DelayQError, ValueError):
    """Arguments that do not fit the signature of a task, or that are not plain JSON."""


class ResultTooLarge(DelayQError, ValueError):
    """A value that a task returned was too large to be kept; the task has succeeded. The message tells the limit."""


class JobCancelled(DelayQError):
    """The error of a job that was cancelled before it started."""


class JobLost(DelayQError):
    """The error of a job whose workers died each time that they executed it."""


class JobHeld(DelayQError):
    """A worker has this job already, so that it can be neither cancelled nor moved."""


class KeyTaken(DelayQError):
    """A failed job is not retried, because another job has its unique key; the message names it."""


class ResultTimeout(DelayQError, TimeoutError):
    """The job of a result had not ended when the time to wait for it was over. It goes on all the same."""


class WaitRefused(DelayQError, RuntimeError):
    """Nothing can end this job while somebody waits for it here; the message says why and what to do instead."""


class InvalidBackfill(DelayQError, ValueError):
    """A backfill that cannot be ordered like this; the message says why and what to do. Nothing was written."""


class HandoverRefused(DelayQError, ValueError):
    """The TASKS backend that a schedule names does not exist, or does not take the task like this.

    Trying again cannot help. `field` is the model field to blame: `backend` or `priority`.
    """

    def __init__(self, message: str, *, field: str = "backend") -> None:
        super().__init__(message)
        self.field = field


class HandoverFailed(DelayQError):
    """A TASKS backend answered at once that the task has failed, or could not be started. The message has its error."""


class ProcessDied(DelayQError):
    """The process of an isolated task ended before the task did: the message says how, and `status` as a shell does."""

    def __init__(self, status: int, last: Iterable[str] = ()) -> None:
        """`last` are the last lines that it wrote to stderr."""
        try:
            how = f"by signal {status - 128} ({signal.Signals(status - 128).name})"
        except ValueError:
            how = f"with exit status {status}"
        super().__init__(f"The process of the task ended {how}, before the task did.")
        self.status = status
        note_last(self, last)


class CommandFailed(DelayQError):
    """A management command ended with an exit status that is not 0, which is `status`; 128 and more: by a signal."""

    def __init__(self, name: str, status: int, last: Iterable[str] = ()) -> None:
        """`last` are the last lines that it wrote to stderr."""
        lines = [line for line in last if line.strip()]
        super().__init__(f"{name}: exit status {status}" + (f": {lines[-1].strip()}" if lines else ""))
        self.status = status
        note_last(self, lines if lines[:-1] else ())


def note_last(error: BaseException, last: Iterable[str]) -> None:
    """Note with an error the last lines that a process wrote to stderr."""
    if lines := [line for line in last if line.strip()]:
        error.add_note("The last that it wrote to stderr:\n" + "\n".join(lines))


class TaskTimeout(BaseException):
    """Raised inside a task that runs longer than its schedule's `timeout`. Catch it to clean up, then raise it again.

    Like `asyncio.CancelledError` it is no `Exception`, so that an `except Exception` around one step of a task's work
    does not swallow it. A task that catches it and returns has succeeded.
    """


class TaskCancelled(TaskTimeout):
    """Raised inside a task that somebody has stopped while it ran. What `TaskTimeout` says holds for it too.

    It is recorded as failed (cancelled), and is not tried again.
    """


class DeliveryFailed(DelayQError):
    """A host that is to be told of something is not listed, cannot be reached, or refuses."""
