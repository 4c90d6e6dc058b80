"""Rules for the values of settings: a condition, and its description. Reads no settings."""

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from ..text import HIDDEN, did_you_mean, looks_secret, redact_text

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Rule(NamedTuple):
    """A condition on a value, and its description."""

    wanted: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: object) -> None:
        """Refuse a value that breaks the rule."""
        if not self.holds(value):
            shown = HIDDEN if looks_secret(name) else redact_text(repr(value))
            raise ImproperlyConfigured(f"DELAYQ{name} must be {self.wanted}, not {shown}.")


def read_all(raw: Mapping[str, Any], name: str, readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the values as their readers convert them.

    Raises:
        ImproperlyConfigured: There are unknown keys or invalid values; the message lists all of them.
    """
    values: dict[str, Any] = {}
    problems = [
        f"{name} has an unknown key {str(key)!r}.{did_you_mean(str(key).upper(), readers)}"
        for key in raw
        if key not in readers
    ]
    if problems:
        problems.append(f"Known keys: {', '.join(sorted(readers))}.")
    for key in filter(readers.__contains__, raw):
        try:
            values[key.lower()] = readers[key](raw[key])
        except ImproperlyConfigured as error:
            problems.append(str(error))
    if problems:
        raise ImproperlyConfigured(" ".join(problems))
    return values


def number(low: float, high: float, *, whole: bool = False) -> Rule:
    kinds: Any = int if whole else int | float
    return Rule(
        f"a{' whole' if whole else ''} number from {low:g} to {high:g}",
        lambda value: isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high,
    )


def text(pattern: re.Pattern[str], wanted: str) -> Rule:
    return Rule(wanted, lambda value: isinstance(value, str) and bool(pattern.fullmatch(value)))


def texts(pattern: re.Pattern[str], wanted: str) -> Rule:
    item = text(pattern, "")
    return Rule(
        wanted,
        lambda value: (
            isinstance(value, list | tuple)
            and len(value) > 0
            and all(map(item.holds, value))
            and len(set(value)) == len(value)
        ),
    )


BOOLEAN = Rule("True or False", lambda value: isinstance(value, bool))
TRACES = Rule(
    'False, or True with the packages of: pip install "django-delayq[otel]"',
    lambda value: isinstance(value, bool) and (not value or find_spec("opentelemetry") is not None),
)
TOKEN = text(re.compile(r"|\S{16,}"), "a text of at least 16 characters without spaces, or empty")
DAYS = number(1, 36500, whole=True)
ALIAS = text(re.compile(r"(?!\w+://).+"), "the alias of a django-redis cache in CACHES (no address)")
OUTCOMES = ("succeeded", "failed", "skipped", "lost")


def _is_history(value: Any) -> bool:
    by_outcome = value if isinstance(value, Mapping) else {OUTCOMES[0]: value}
    return all(name in OUTCOMES and (days is None or DAYS.holds(days)) for name, days in by_outcome.items())


HISTORY = Rule(f"None, {DAYS.wanted}, or a dict of these by outcome ({', '.join(OUTCOMES)})", _is_history)
QUEUES = texts(QUEUE_NAME, "a list of different queue names, each 1 to 64 characters of A-Z a-z 0-9 _ . -")
PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
RENAMED = Rule(
    "a dict of paths of tasks, such as {'old.tasks.send': 'new.tasks.send'}",
    lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(path, str) and PATH.fullmatch(path) for pair in value.items() for path in pair)
    ),
)
NAMES = texts(re.compile(r"[A-Za-z0-9_.-]+"), "")
COMMANDS = Rule("a list of names of management commands", lambda value: value in ([], ()) or NAMES.holds(value))
MEGABYTES = number(64, 1024 * 1024, whole=True)
MEMORY = Rule(f"None or {MEGABYTES.wanted}", lambda value: value is None or MEGABYTES.holds(value))
#: The key of a mapping for everything that the mapping does not name.
REST = "*"
_MODULES = texts(re.compile(r"[A-Za-z_][\w.]*"), "")
MODULES = Rule(
    "a list of module names, such as ['tasks'], or a dict of these by app, such as {'*': ['tasks'], 'shop': []}",
    lambda value: (
        all(isinstance(app, str) and (names in ([], ()) or _MODULES.holds(names)) for app, names in value.items())
        if isinstance(value, Mapping)
        else _MODULES.holds(value)
    ),
)
