"""Every exception of this package. Never raises anything itself."""


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


class WaitRefused(DelayQError, RuntimeError):
    """Nothing can end this job while somebody waits for it here; the message says why and what to do instead."""


class TaskTimeout(BaseException):
    """Raised inside a task that runs longer than its schedule's `timeout`. Catch it to clean up, then raise it again.

    Like `asyncio.CancelledError` it is no `Exception`, so that an `except Exception` around one step of a task's work
    does not swallow it. A task that catches it and returns has succeeded.
    """


class TaskCancelled(TaskTimeout):
    """Raised inside a task that somebody has stopped while it ran. What `TaskTimeout` says holds for it too.

    It is recorded as failed (cancelled), and is not tried again.
    """
