"""What every origin yields: one schedule of another scheduler as plain values. Reads no database, writes nothing."""

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
    """This entry cannot be taken over; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """What somebody says about the origin. `timezone` is for entries that name none; `system`: a crontab has users."""

    timezone: str | None = None
    system: bool | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One schedule as its origin has it. `name` stays the same at every reading.

    `task` is what it calls there, as a path; `command` is what a crontab runs, which another task may take over,
    without the arguments. `values` are fields of our `Schedule`, those not named have their defaults. `phase` is a
    point that an interval goes through; it counts while the schedule is not there yet. `notes` say what differs in
    meaning. `refused`, `skipped` and `no_task` say why nothing is made of it: for good; because it is not needed here,
    which is no failure; unless its task is given by hand. `numbered`: the name is only what it calls, so that several
    entries may have it; see Note [Equal names].
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
    """Return what was read, or a refused entry: one that cannot be read keeps none of the others back."""
    try:
        return read()
    except (Refused, InvalidRecurrence) as error:
        return Entry(name, task, refused=str(error))
    except DatabaseError:
        raise
    except Exception as error:  # of values that the other scheduler would not take either
        return Entry(name, task, refused=f"It cannot be read: {type(error).__name__}: {error}")


def load(source: str, what: str) -> Any:
    """Return the object of a dotted path; where it is a function, what that returns.

    Raises:
        UnreadableSource: There is none.
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
    """Return a file as text; `-` is the standard input.

    Raises:
        UnreadableSource: It cannot be read.
    """
    try:
        with Path("/dev/stdin" if source == "-" else source).open(newline="\n") as file:  # a line ends at nothing else
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSource(f"{source or 'SOURCE'} cannot be read: {error}. Give a file, or - for input.") from error


def zone_name(zone: tzinfo | str) -> str:
    """Return a zone's name as a schedule has it; what has none, as a fixed offset, is refused by its check."""
    name = zone if isinstance(zone, str) else getattr(zone, "key", None) or getattr(zone, "zone", None) or str(zone)
    if name in ("UTC", "UTC+00:00", "tzutc()"):
        return "UTC"
    return str(name)


def seconds(value: Any) -> timedelta:
    """Return a number of seconds, or a timedelta, as a timedelta.

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
    """Return an instant; a naive one is read in this zone."""
    return value.replace(tzinfo=zone) if value.tzinfo is None else value


def once(value: datetime) -> dict[str, Any]:
    """Return the recurrence of an instant to come.

    Raises:
        Refused: It has passed.
    """
    at = aware(value)
    if at <= utcnow():
        raise Refused(f"Its only time, {at:%Y-%m-%d %H:%M:%S %Z}, has passed.")
    return {"kind": "once", "at": at}


def local_zone(options: Options, who: str) -> tuple[str, list[str]]:
    """Return the zone of what runs by its machine's clock, and what is to be said of it."""
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
