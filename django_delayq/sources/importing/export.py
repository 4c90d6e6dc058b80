"""Exports and imports schedules as JSON lines: all columns of the definition by name, without state and history."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError

from ... import ledger
from ...models import Schedule
from ...models.differences import FIELDS, from_json, to_json, values_of
from .entry import Entry, Options, Refused, guarded, read_text
from .plan import without_mark

VERSION = 1
CHUNK = 500


def exported(names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield schedules by name as JSON objects: all, or those with these names."""
    rows = Schedule._base_manager.using(ledger.database()).order_by("name")
    if names:
        rows = rows.filter(name__in=names)
    pks = list(rows.values_list("pk", flat=True))
    for start in range(0, len(pks), CHUNK):
        for row in rows.filter(pk__in=pks[start : start + CHUNK]):
            values = {**values_of(row), "description": without_mark(row.description)}
            yield {"version": VERSION, **to_json(values)}


DIFFERS: tuple[str, ...] = ()


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    for number, line in enumerate(read_text(source).split("\n"), 1):
        if line.strip():
            yield guarded(f"line {number}", "", partial(_entry, line))


def _entry(line: str) -> Entry:
    try:
        told = json.loads(line)
    except ValueError as error:
        raise Refused(f"This line is no JSON: {error}") from None
    if not isinstance(told, dict) or not isinstance(told.get("name"), str) or not isinstance(told.get("task"), str):
        raise Refused('This line is no schedule: an object with "version", "name" and "task".')
    name, task, version = told["name"], told["task"], told.pop("version", None)
    if version != VERSION:
        return Entry(name, task, refused=f"It is of version {version!r} of this format; known is {VERSION}.")
    if unknown := sorted(told.keys() - FIELDS.keys()):
        return Entry(name, task, refused=f"This version knows no {', '.join(unknown)}: upgrade first.")
    try:
        values = from_json(told)
    except (ValidationError, TypeError, ValueError) as error:
        return Entry(name, task, refused=f"A value is none of its field: {error}")
    args, kwargs = values.pop("args"), values.pop("kwargs")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return Entry(name, task, refused="args must be a list, and kwargs an object.")
    return Entry(name, task, args, kwargs, values)
