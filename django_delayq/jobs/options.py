"""The `OPTIONS` of a backend in `TASKS`: validated, with defaults. Reads no settings itself."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, NamedTuple

from ..compat import InvalidTaskBackend

DAY_SECONDS = 86_400.0
MAX_SECONDS = 366 * DAY_SECONDS
MAX_ATTEMPTS = 1000


class Retries(NamedTuple):
    """How often and how long a job is tried. None where nothing is said; `timeout` 0 is none."""

    max_attempts: int | None = None
    backoff: float | None = None
    timeout: float | None = None

    def over(self, other: "Retries") -> "Retries":
        """Return these, and where nothing is said the other's."""
        return Retries(
            other.max_attempts if self.max_attempts is None else self.max_attempts,
            other.backoff if self.backoff is None else self.backoff,
            other.timeout if self.timeout is None else self.timeout,
        )


@dataclass(frozen=True, slots=True)
class Options:
    """What `TASKS[alias]["OPTIONS"]` says. Durations are in seconds."""

    enqueue_on_commit: bool = False
    result_ttl: float = DAY_SECONDS
    dead_ttl: float = 30 * DAY_SECONDS
    dead_max: int = 10_000
    max_attempts: int = 1
    backoff: float = 10.0
    timeout: float = 0.0
    durable: bool = False
    results: str = "redis"
    tasks: Mapping[str, Retries] = field(default_factory=dict)

    def retries_of(self, path: str) -> Retries:
        """Return what counts for a task where neither the call nor the decorator says anything."""
        return self.tasks.get(path, Retries()).over(Retries(self.max_attempts, self.backoff, self.timeout))


def parse(alias: str, raw: Any) -> Options:
    """Return the options of a backend.

    Raises:
        InvalidTaskBackend: An unknown option or a wrong value; the message says what to write instead.
    """
    where = f"TASKS[{alias!r}]['OPTIONS']"
    if not isinstance(raw, Mapping):
        raise InvalidTaskBackend(f"{where} must be a dict, not {type(raw).__name__}.")
    known = {item.name for item in fields(Options)}
    return Options(**{name: _value(where, name, value, known) for name, value in raw.items()})


def _value(where: str, name: Any, value: Any, known: set[str]) -> Any:
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidTaskBackend(f"{where} has an unknown option {name!r}.{hint} Known: {', '.join(sorted(known))}.")
    if name == "tasks":
        return _tasks(f"{where}['tasks']", value)
    try:
        return _CHECKS[name](name, value)
    except ValueError as error:
        raise InvalidTaskBackend(f"{where}: {error}") from None


def _tasks(where: str, value: Any) -> dict[str, Retries]:
    if not isinstance(value, Mapping) or not all(isinstance(item, Mapping) for item in value.values()):
        raise InvalidTaskBackend(
            f"{where} must be a dict of dicts, such as {{'shop.tasks.send': {{'max_attempts': 3}}}}."
        )
    found = {}
    for path, item in value.items():
        values = {name: _value(f"{where}[{path!r}]", name, part, set(Retries._fields)) for name, part in item.items()}
        found[str(path)] = Retries(**values)
    return found


def seconds(name: str, value: Any) -> float:
    """Return a duration, given in seconds or as a timedelta.

    Raises:
        ValueError: It is none, or negative, or longer than a year.
    """
    found = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    if not number or not 0 <= found <= MAX_SECONDS:
        raise ValueError(f"{name!r} must be a number of seconds or a timedelta, up to a year, not {value!r}.")
    return float(found)


def whole(name: str, value: Any, least: int = 1, most: int = MAX_ATTEMPTS) -> int:
    """Return a whole number.

    Raises:
        ValueError: It is none, or out of its range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name!r} must be a whole number from {least:,} to {most:,}, not {value!r}.")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name!r} must be True or False, not {value!r}.")
    return value


def _results(name: str, value: Any) -> str:
    if value not in ("redis", "database"):
        raise ValueError(f"{name!r} must be 'redis' or 'database', not {value!r}.")
    return str(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "enqueue_on_commit": _boolean,
    "result_ttl": seconds,
    "dead_ttl": seconds,
    "dead_max": lambda name, value: whole(name, value, 0, 1_000_000),
    "max_attempts": whole,
    "backoff": seconds,
    "timeout": seconds,
    "durable": _boolean,
    "results": _results,
}
