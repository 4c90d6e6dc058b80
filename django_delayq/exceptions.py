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


class DamagedKeys(BrokerError):
    """Something else wrote under our prefix: a key has the wrong type. Deleting it is safe, the mirror rebuilds it."""


class MissingTables(DelayQError):
    """The database does not have our tables yet: `manage.py migrate` makes them."""


class ForeignLayout(DelayQError):
    """The prefix in Redis belongs to another database, or to another number of shards."""


class UnknownTask(DelayQError, LookupError):
    """No installed app offers a `@task` function of this path."""


class InvalidArguments(DelayQError, ValueError):
    """Arguments that do not fit the signature of a task, or that are not plain JSON."""
