"""Defines `ImportedEntry`, a schedule of another scheduler as plain values, and what readers share. Writes nothing."""

import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
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
class ReadOptions:
    """About the origin. `timezone` is for entries without one; `system` means a crontab with a user column."""

    timezone: str | None = None
    system: bool | None = None


@dataclass(slots=True)
class ImportedEntry:
    """A schedule at its origin; its name is the same at every reading."""

    name: str
    task: str = ""  # the path of what the origin calls
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # fields of our `Schedule`; others have their defaults
    phase: datetime | None = None  # a point of an interval, used only when the schedule is created
    notes: list[str] = field(default_factory=list)  # differences in meaning
    refused: str = ""  # why it cannot be imported
    skipped: str = ""  # why it is not needed here, which is not a failure
    no_task: str = ""  # why it is refused unless `--map` gives a task
    command: str = ""  # of a crontab; `--map` may give it to another task without arguments
    numbered: bool = False  # several entries may have the name: see Note [Equal entries keep their schedules]

    def set_cron(self, expression: str, zone: str) -> None:
        self.values |= {"kind": "cron", "cron": expression, "timezone": zone}

    def set_every(self, every: timedelta, phase: datetime | None = None) -> None:
        self.values |= {"kind": "every", "every": every}
        self.phase = phase

    def set_once(self, at: datetime) -> None:
        at = make_aware(at)
        if at <= utcnow():
            raise Refused(f"Its only time, {at:%Y-%m-%d %H:%M:%S %Z}, has passed.")
        self.values |= {"kind": "once", "at": at}

    def set_expiry(self, expires: Any) -> None:
        """Skip points that are later than this number of seconds."""
        self.values |= {"grace": to_timedelta(expires), "missed": "skip"}

    def leave_out(self, options: Mapping[str, Any]) -> None:
        """Note which of these options, unless empty, have no equivalent here."""
        if names := sorted(name for name, value in options.items() if value not in (None, "", {}, (), [], False)):
            self.notes.append(f"left out: {', '.join(names)}")


def read_entry(name: str, task: str, fill: Callable[..., None], *args: Any) -> ImportedEntry:
    """Return an entry that `fill` completes; refused if it raises, so that the other entries are still read."""
    entry = ImportedEntry(name, task)
    try:
        fill(entry, *args)
    except (Refused, InvalidRecurrence) as error:
        entry.refused = str(error)
    except DatabaseError:
        raise
    except Exception as error:  # invalid values, which the other scheduler would reject too
        entry.refused = f"It cannot be read: {type(error).__name__}: {error}"
    return entry


def load(source: str, what: str, *attributes: str) -> Any:
    """Return the object at a dotted path; if it is a function, its result. It has one of the attributes."""
    try:
        found = pkgutil.resolve_name(source)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnreadableSource(
            f"Give the dotted path to a {what}, or to a function that returns one; {source!r} is invalid: {error}"
        ) from error
    found = found() if inspect.isroutine(found) else found
    if not any(hasattr(found, name) for name in attributes):
        raise UnreadableSource(f"{source} is not a {what}, but a {type(found).__name__}.")
    return found


def read_text(source: str) -> str:
    """Return the text of a file; `-` is the standard input."""
    if not source:
        raise UnreadableSource("SOURCE is missing. Give a file, or - for input.")
    try:
        with Path("/dev/stdin" if source == "-" else source).open(newline="\n") as file:  # only \n ends a line
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSource(f"{source} cannot be read: {error}. Give a file, or - for input.") from error


def name_zone(zone: tzinfo | str) -> str:
    """Return the name of a zone; validation rejects zones without a name, such as fixed offsets."""
    name = zone if isinstance(zone, str) else getattr(zone, "key", None) or getattr(zone, "zone", None) or str(zone)
    return "UTC" if name in ("UTC+00:00", "tzutc()") else str(name)


def to_timedelta(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=float(value))


def make_aware(value: datetime) -> datetime:
    """Return an aware datetime; a naive one is in UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def find_local_zone(entry: ImportedEntry, options: ReadOptions, who: str) -> str:
    """Return the zone for a scheduler that uses its machine's clock."""
    if options.timezone:
        return options.timezone
    zone = conf.get_project_timezone()
    entry.notes.append(f"read in TIME_ZONE ({zone}), {who} has its machine's zone: --timezone names another")
    return zone


def read_rows(app: str, name: str) -> Any:
    try:
        return apps.get_model(app, name)._default_manager.order_by("pk")
    except LookupError:
        raise UnreadableSource(
            f"INSTALLED_APPS lacks {app!r}, whose models read its tables. Add it until everything is imported."
        ) from None
