"""Django's `Task` with the options of our jobs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from .compat import AnyTask, InvalidTask, Task
from .task_options import Retries, check_value

if TYPE_CHECKING:
    from .results import JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayQTask(Task):  # type: ignore[type-arg]
    """The class of tasks with our backend.

    `max_attempts`: attempts in all; `backoff`: delay after the first failure, doubling; `timeout`: maximum duration of
    an attempt (seconds or timedelta); None: the backend's options apply. `unique_key`: while a job of this task with
    the same key waits, enqueueing another one returns the result of the first. `on_success`, `on_failure`: a task, or
    its path, that is enqueued after this outcome, with the result id as its only argument.
    """

    max_attempts: int | None = None
    backoff: float | timedelta | None = None
    timeout: float | timedelta | None = None
    unique_key: str | None = None
    unique_until: Literal["start", "end"] | None = None
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
        """Enqueue a job for each (args, kwargs), in few round trips; return their results in the same sequence."""
        backend: Any = self.get_backend()
        return list(backend.enqueue_many((self, args, kwargs) for args, kwargs in calls))


def get_retries(task: Any) -> Retries:
    """Return a task's own retry options, empty if its class is not ours; raise InvalidTask if a value is wrong."""
    if not isinstance(task, DelayQTask):
        return Retries()
    try:
        given = {name: getattr(task, name) for name in Retries._fields}
        return Retries(**{name: check_value(name, value) for name, value in given.items() if value is not None})
    except ValueError as error:
        raise InvalidTask(str(error)) from None


def get_unique_key(task: Any) -> str:
    """Return a task's unique key, '' for none; raise InvalidTask if it or `unique_until` is not valid."""
    key, until = getattr(task, "unique_key", None), getattr(task, "unique_until", None)
    if until not in (None, "start", "end"):
        raise InvalidTask(f"unique_until must be 'start' or 'end', not {until!r}.")
    if key is None:
        return ""
    if not isinstance(key, str) or not 0 < len(key) <= 255:
        raise InvalidTask(f"unique_key must be a text of 1 to 255 characters, not {key!r}.")
    return key
