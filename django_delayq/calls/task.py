"""Django's `Task` with the options of our jobs."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from .compat import AnyTask, InvalidTask, Task
from .options import Retries, checked

if TYPE_CHECKING:
    from .results import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayQTask(Task):  # type: ignore[type-arg]
    """What `@task` makes where its backend is ours.

    `max_attempts`: how often it is tried in all; `backoff`: the delay after the first failure, doubling; `timeout`: how
    long an attempt may take (seconds or timedelta). None: as the backend's options say. `unique_key`: while a job of
    this task with the same key waits, enqueueing another one returns that one's result.
    `on_success`, `on_failure`: a task, or its path, of which a job is enqueued when this one has ended so, with the id
    of its result as the only argument.

    `isolation="process"`: executed in a process of its own, which may have `memory_mb` MiB of address space (None: as
    much as there is). That is the task's, and not to be chosen by `using()`.
    """

    max_attempts: int | None = None
    backoff: float | timedelta | None = None
    timeout: float | timedelta | None = None
    unique_key: str | None = None
    unique_until: Literal["start", "end"] | None = None
    isolation: Literal["process"] | None = None
    memory_mb: int | None = None
    on_success: AnyTask | str | None = None
    on_failure: AnyTask | str | None = None

    if TYPE_CHECKING:

        def enqueue(self, *args: Any, **kwargs: Any) -> "JobResult":
            """See Django's method."""

        async def aenqueue(self, *args: Any, **kwargs: Any) -> "JobResult":
            """See Django's method."""

        def get_result(self, result_id: str) -> "JobResult":
            """See Django's method."""

        async def aget_result(self, result_id: str) -> "JobResult":
            """See Django's method."""

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> "DelayQTask":
        """Return a copy with other values, as Django's method does; also of `max_attempts`, `backoff`, ... ."""
        given = {"priority": priority, "queue_name": queue_name, "run_after": run_after, "backend": backend, **options}
        unknown = options.keys() - {*Retries._fields, "unique_key", "unique_until", "on_success", "on_failure"}
        if unknown:
            raise TypeError(f"using() got an unexpected keyword argument {sorted(unknown)[0]!r}")
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def enqueue_many(self, calls: Iterable[tuple[Iterable[Any], dict[str, Any]]]) -> "list[JobResult]":
        """Enqueue one job for each (args, kwargs), in few round trips; return their results in the same order."""
        backend: Any = self.get_backend()
        return list(backend.enqueue_many((self, args, kwargs) for args, kwargs in calls))


def as_enqueued(task: AnyTask, **values: Any) -> AnyTask:
    """Return a copy with the values that it was enqueued with, without validating it.

    It was valid then. What the settings say now, such as fewer queues, must hide no result and stop no job.
    """
    made: AnyTask = object.__new__(type(task))
    for item in fields(task):
        object.__setattr__(made, item.name, values.get(item.name, getattr(task, item.name)))
    return made


def retries_of(task: Any) -> Retries:
    """Return what a task says of its retries; nothing, where it is not of our class.

    Raises:
        InvalidTask: One of the values is wrong.
    """
    if not isinstance(task, DelayQTask):
        return Retries()
    try:
        given = {name: value for name in Retries._fields if (value := getattr(task, name)) is not None}
        return Retries(**{name: checked(name, value) for name, value in given.items()})
    except ValueError as error:
        raise InvalidTask(str(error)) from None


def unique_key_of(task: Any) -> str:
    """Return a task's unique key, '' for none.

    Raises:
        InvalidTask: It is no text, or too long; or it is to be held until something else than the start or the end.
    """
    key, until = getattr(task, "unique_key", None), getattr(task, "unique_until", None)
    if until not in (None, "start", "end"):
        raise InvalidTask(f"unique_until must be 'start' or 'end', not {until!r}.")
    if key is None:
        return ""
    if not isinstance(key, str) or not 0 < len(key) <= 255:
        raise InvalidTask(f"unique_key must be a text of 1 to 255 characters, not {key!r}.")
    return key
