"""The public exceptions of this package."""


class DelayQError(Exception):
    """Base of all errors raised by django_delayq."""


class InvalidRecurrence(DelayQError, ValueError):
    """A recurrence is invalid: the message says what is allowed, `field` is the model field at fault."""

    def __init__(self, message: str, *, field: str = "cron") -> None:
        super().__init__(message)
        self.field = field


class BrokerError(DelayQError):
    """Redis replied with an error: a wrong type under our keys, no memory, no permission."""


class BrokerUnavailable(BrokerError):
    """Redis did not answer in time or cannot serve now. A retry may succeed."""


class UnknownTask(DelayQError, LookupError):
    """No installed app has a `@task` function with this path."""


class InvalidArguments(DelayQError, ValueError):
    """Arguments do not fit the signature of a task, or are not plain JSON."""


class ResultTooLarge(DelayQError, ValueError):
    """A task returned a value that is too large to store; the task has succeeded. The message has the limit."""


class JobCancelled(DelayQError):
    """The error of a job that was cancelled before it started."""


class JobLost(DelayQError):
    """The error of a job whose worker died at each execution."""


class JobHeld(DelayQError):
    """A worker holds this job, so that it can be neither cancelled nor moved."""


class KeyTaken(DelayQError):
    """A failed job is not retried because another job, named in the message, has its unique key."""


class WaitRefused(DelayQError, RuntimeError):
    """The job cannot end while the caller waits for it here; the message says why and what to do instead."""


class TaskTimeout(BaseException):
    """Raised inside a task that runs longer than its `timeout`. Catch it to clean up, then raise it again.

    It is not an `Exception`, so that `except Exception` does not swallow it. A task that returns has succeeded.
    """


class TaskCancelled(TaskTimeout):
    """Raised inside a running task that a user stops. It is recorded as failed (cancelled), and not retried."""
