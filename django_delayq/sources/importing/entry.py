"""Defines `Entry`, a schedule of another scheduler as plain values, and what readers share. Writes nothing."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db import DatabaseError

from ... import conf
from ...exceptions import DelayQError, InvalidRecurrence
from ...recurrence.point import utcnow


class UnreadableSource(DelayQError):
    """There is nothing to read: no such file, object or table. The message says what to give instead."""


class Refused(Exception):
    """This entry cannot be imported. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options about the origin. `timezone` is for entries without one; `system` means a crontab with a user column."""

    timezone: str | None = None
    system: bool | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule at its origin. `name` is the same at every reading.

    `task` is the path of what the origin calls; `command` is the command of a crontab, which `--map` may give to
    another task without arguments. `values` are fields of our `Schedule`; the others have their defaults. `phase` is a
    point of an interval, used only when the schedule is created. `notes` are differences in meaning. An entry with a
    reason in `refused`, `skipped` (not needed here, not a failure) or `no_task` (unless `--map` gives a task) is not
    imported. With `numbered`, several entries may have the name: see Note [Equal names].
    """

    name: str
    task: str = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    phase: datetime | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""
    skipped: str = ""
    no_task: str = ""
    command: str = ""
    numbered: bool = False


def guarded(name: str, task: str, read: Callable[[], Entry]) -> Entry:
    """Return what `read` returns, or a refused entry for an error, so that the other entries are still read."""
    try:
        return read()
    except (Refused, InvalidRecurrence) as error:
        return Entry(name, task, refused=str(error))
    except DatabaseError:
        raise
    except Exception as error:  # invalid values, which the other scheduler would reject too
        return Entry(name, task, refused=f"It cannot be read: {type(error).__name__}: {error}")


def load(source: str, what: str) -> Any:
    """Return the object at a dotted path; if it is a function, its result.

    Raises:
        UnreadableSource: There is no such object.
    """
    parts = source.replace(":", ".").split(".")
    if not source:
        raise UnreadableSource(f"Give the dotted path to {what}, or to a function that returns one.")
    if not all(part.isidentifier() for part in parts):
        raise UnreadableSource(f"{source!r} is no dotted path to {what}.")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            found: Any = import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise UnreadableSource(f"{module} cannot be imported: {error}") from error
            continue
        for name in parts[end:]:
            if not hasattr(found, name):
                raise UnreadableSource(f"{module} has no {'.'.join(parts[end:])!r}. Give the dotted path to {what}.")
            found = getattr(found, name)
        return found() if inspect.isroutine(found) else found
    raise UnreadableSource(f"There is no module {parts[0]!r}. Give the dotted path to {what}.")


def read_text(source: str) -> str:
    """Return the text of a file; `-` is the standard input.

    Raises:
        UnreadableSource: It cannot be read.
    """
    try:
        with Path("/dev/stdin" if source == "-" else source).open(newline="\n") as file:  # only \n ends a line
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSource(f"{source or 'SOURCE'} cannot be read: {error}. Give a file, or - for input.") from error


def zone_name(zone: tzinfo | str) -> str:
    """Return the name of a zone; validation rejects zones without a name, such as fixed offsets."""
    name = zone if isinstance(zone, str) else getattr(zone, "key", None) or getattr(zone, "zone", None) or str(zone)
    if name in ("UTC", "UTC+00:00", "tzutc()"):
        return "UTC"
    return str(name)


def seconds(value: Any) -> timedelta:
    """Convert a number of seconds, or a timedelta, to a timedelta.

    Raises:
        Refused: It is neither, or too large.
    """
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=float(value))
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"{value!r} is no number of seconds.") from None


def aware(value: datetime, zone: tzinfo = UTC) -> datetime:
    """Return an aware datetime; a naive one is in `zone`."""
    return value.replace(tzinfo=zone) if value.tzinfo is None else value


def once(value: datetime) -> dict[str, Any]:
    """Return the recurrence of a single instant.

    Raises:
        Refused: It has passed.
    """
    at = aware(value)
    if at <= utcnow():
        raise Refused(f"Its only time, {at:%Y-%m-%d %H:%M:%S %Z}, has passed.")
    return {"kind": "once", "at": at}


def local_zone(options: Options, who: str) -> tuple[str, list[str]]:
    """Return the zone for a scheduler that uses its machine's clock, and notes about it."""
    if options.timezone:
        return options.timezone, []
    zone = conf.project_timezone()
    return zone, [f"read in TIME_ZONE ({zone}), {who} has its machine's zone: --timezone names another"]


def model_of(app: str, name: str) -> Any:
    """Return a model of another app.

    Raises:
        UnreadableSource: The app is not installed, or has no such model.
    """
    try:
        return apps.get_model(app, name)
    except LookupError:
        raise UnreadableSource(
            f"Its tables are read by its own models: leave {app!r} in INSTALLED_APPS until everything has come over."
        ) from None
