"""Rules for the values of settings: a condition, and its description. Reads no settings."""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from importlib.util import find_spec
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from ..text import HIDDEN, is_secret_name, redact_text, suggest_name

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Rule(NamedTuple):
    wanted: str
    holds: Callable[[Any], bool]
    is_secret: bool = False

    def read(self, name: str, value: Any) -> Any:
        """Return the value, a list as a tuple; raise ImproperlyConfigured if it breaks the rule."""
        if not self.holds(value):
            shown = HIDDEN if self.is_secret or is_secret_name(name) else redact_text(repr(value))
            raise ImproperlyConfigured(f"{name} must be {self.wanted}, not {shown}.")
        return tuple(value) if isinstance(value, list) else value


def setting(default: Any, rule: Rule, **options: Any) -> Any:
    return field(default=default, metadata={"read": rule.read}, **options)


def read_settings(settings: type, raw: Any, name: str) -> dict[str, Any]:
    """Return the values of a dataclass' fields; raise ImproperlyConfigured with all unknown keys and wrong values."""
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"{name} must be a dict, not {type(raw).__name__}.")
    readers = {item.name.upper(): item.metadata["read"] for item in fields(settings) if item.metadata}
    values: dict[str, Any] = {}
    problems = [
        f"{name} has an unknown key {str(key)!r}.{suggest_name(str(key).upper(), readers)}"
        for key in raw
        if key not in readers
    ]
    if problems:
        problems.append(f"Known keys: {', '.join(sorted(readers))}.")
    for key in filter(readers.__contains__, raw):
        try:
            values[key.lower()] = readers[key](f"{name}[{key!r}]", raw[key])
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


def texts(pattern: re.Pattern[str], wanted: str, *, empty: bool = False) -> Rule:
    item = text(pattern, "")
    return Rule(
        wanted,
        lambda value: (
            isinstance(value, list | tuple)
            and (empty or len(value) > 0)
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
ALIAS = text(re.compile(r"(?!\w+://).+"), "the alias of a django-redis cache in CACHES (no address)")
PREFIX = text(re.compile(r"[A-Za-z0-9_.:-]{1,64}"), "1 to 64 characters of A-Z a-z 0-9 _ . : -")
OUTCOMES = ("succeeded", "failed", "skipped", "lost")
DAYS = number(1, 36500, whole=True)


def _is_history(value: Any) -> bool:
    by_outcome = value if isinstance(value, Mapping) else {OUTCOMES[0]: value}
    return all(name in OUTCOMES and (days is None or DAYS.holds(days)) for name, days in by_outcome.items())


HISTORY = Rule(f"None, {DAYS.wanted}, or a dict of these by outcome ({', '.join(OUTCOMES)})", _is_history)
QUEUES = texts(QUEUE_NAME, "a list of different queue names, each 1 to 64 characters of A-Z a-z 0-9 _ . -")
MAX_SHARDS = 4096
COUNT = number(1, MAX_SHARDS, whole=True)
SHARDS = Rule(
    f"{COUNT.wanted}, or a dict of these by queue",
    lambda value: all(map(COUNT.holds, value.values())) if isinstance(value, Mapping) else COUNT.holds(value),
)
PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
RENAMED = Rule(
    "a dict of paths of tasks, such as {'old.tasks.send': 'new.tasks.send'}",
    lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(path, str) and PATH.fullmatch(path) for pair in value.items() for path in pair)
    ),
)
COMMANDS = texts(re.compile(r"[A-Za-z0-9_.-]+"), "a list of names of management commands", empty=True)
MEGABYTES = number(64, 1024 * 1024, whole=True)
MEMORY = Rule(f"None or {MEGABYTES.wanted}", lambda value: value is None or MEGABYTES.holds(value))
#: The key of a mapping for everything that the mapping does not name.
REST = "*"
_MODULE = re.compile(r"[A-Za-z_][\w.]*")
_MODULES, _ANY_MODULES = texts(_MODULE, ""), texts(_MODULE, "", empty=True)
MODULES = Rule(
    "a list of module names, such as ['tasks'], or a dict of these by app, such as {'*': ['tasks'], 'shop': []}",
    lambda value: (
        all(isinstance(app, str) and _ANY_MODULES.holds(names) for app, names in value.items())
        if isinstance(value, Mapping)
        else _MODULES.holds(value)
    ),
)
