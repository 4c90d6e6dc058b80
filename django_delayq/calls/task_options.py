"""The `OPTIONS` of a backend in `TASKS`: validated, with defaults. Reads no settings itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, NamedTuple

from ..text import suggest_name
from . import registry
from .compat import AnyTask, InvalidTask, InvalidTaskBackend, is_task

DAY_SECONDS = 86_400.0
MAX_SECONDS = 366 * DAY_SECONDS


class Retries(NamedTuple):
    """Retry options; None if not set. `timeout` 0 means no timeout."""

    max_attempts: int | None = None
    backoff: float | None = None
    timeout: float | None = None

    def merge(self, other: "Retries") -> "Retries":
        """Return these options; an option that is not set gets the value of `other`."""
        return Retries._make(theirs if mine is None else mine for mine, theirs in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True)
class Options:
    """The values of `TASKS[alias]["OPTIONS"]`. Durations are in seconds."""

    #: Retention of rows of jobs that succeeded, or were cancelled while waiting; 0 keeps none.
    result_ttl: float = DAY_SECONDS
    #: Retention of rows of jobs that failed.
    failure_ttl: float = 30 * DAY_SECONDS
    max_attempts: int = 1
    backoff: float = 10.0
    timeout: float = 0.0
    tasks: Mapping[str, Retries] = field(default_factory=dict)

    def get_retries(self, path: str) -> Retries:
        """Return the defaults for a task whose call and decorator do not set them."""
        own = Retries(self.max_attempts, self.backoff, self.timeout)
        return self.tasks[path].merge(own) if path in self.tasks else own


def parse(alias: str, raw: Any) -> Options:
    """Return the options of a backend; raise InvalidTaskBackend for an unknown option or a wrong value."""
    return Options(**_parse(f"TASKS[{alias!r}]['OPTIONS']", raw, [item.name for item in fields(Options)]))


def _parse(where: str, raw: Any, known: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _check_mapping(where, raw).items():
        if name not in known:
            hint = suggest_name(str(name), known)
            all_known = ", ".join(sorted(known))
            raise InvalidTaskBackend(f"{where} has an unknown option {name!r}.{hint} Known: {all_known}.")
        if name == "tasks":
            inner = f"{where}['tasks']"
            tasks = _check_mapping(inner, value).items()
            found[name] = {path: Retries(**_parse(f"{inner}[{path!r}]", item, Retries._fields)) for path, item in tasks}
            continue
        try:
            found[name] = check_value(name, value)
        except ValueError as error:
            raise InvalidTaskBackend(f"{where}: {error}") from None
    return found


def _check_mapping(where: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidTaskBackend(f"{where} must be a dict, not {type(value).__name__}.")
    return value


def check_value(name: str, value: Any) -> Any:
    """Return the value of an option, durations in seconds; raise ValueError if it is not valid."""
    amount = value.total_seconds() if isinstance(value, timedelta) else value
    if name == "max_attempts":
        if type(value) is int and 1 <= value <= 1_000:
            return value
        wanted = "a whole number from 1 to 1,000"
    else:
        if type(amount) in (int, float) and 0 <= amount <= MAX_SECONDS:
            return float(amount)
        wanted = "a number of seconds or a timedelta, up to a year"
    raise ValueError(f"{name!r} must be {wanted}, not {value!r}.")


NAMES = ("on_success", "on_failure")


def get_path(name: str, value: object) -> str:
    """Return the path of the task that an option names, '' for none; raise InvalidTask unless it is task or text."""
    if is_task(value):
        return str(value.module_path)
    if value is not None and not isinstance(value, str):
        raise InvalidTask(f"{name} must be a @task function or its path, not {value!r}.")
    return value or ""


def get_callbacks(task: AnyTask) -> dict[str, str]:
    """Return the paths of on_success and on_failure, if set; raise InvalidTask, UnknownTask or InvalidArguments."""
    paths = {name: path for name in NAMES if (path := get_path(name, getattr(task, name, None)))}
    for path in set(paths.values()):
        registry.check_call(registry.get_task(path), ["id"], {})
    return paths
