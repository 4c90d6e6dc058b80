"""Exports and imports schedules as JSON lines: all columns of the definition by name, without state and history."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from ... import ledger
from ...models import Schedule
from ...models.columns import from_json, to_json
from ...models.differences import FIELDS
from ..declared import format_errors
from .entry import ImportedEntry, ReadOptions, Refused, read_entry, read_text
from .plan import get_unmarked_values

VERSION = 1


def export_schedules(names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield schedules by name as JSON objects: all, or those with these names."""
    using = ledger.get_database()
    rows = Schedule._base_manager.using(using).order_by("name")
    with transaction.atomic(using=using):  # PgBouncer keeps a cursor of the server only within a transaction
        for row in rows.filter(name__in=names) if names else rows.iterator():
            yield {"version": VERSION, **to_json(get_unmarked_values(row))}


def read(source: str, _options: ReadOptions) -> Iterator[ImportedEntry]:
    """Yield an entry for each line of a file that `delayq_export` wrote."""
    for number, line in enumerate(read_text(source).split("\n"), 1):
        if line.strip():
            yield read_entry(f"line {number}", "", _fill, line)


def _fill(entry: ImportedEntry, line: str) -> None:
    try:
        stored = json.loads(line)
    except ValueError as error:
        raise Refused(f"This line is not JSON: {error}") from None
    if (
        not isinstance(stored, dict)
        or not isinstance(stored.get("name"), str)
        or not isinstance(stored.get("task"), str)
    ):
        raise Refused('This line is not a schedule, which is an object with "version", "name" and "task".')
    entry.name, entry.task, version = stored["name"], stored["task"], stored.pop("version", None)
    if version != VERSION:
        raise Refused(f"Its format has the version {version!r}; this release reads only {VERSION}.")
    if unknown := sorted(stored.keys() - FIELDS.keys()):
        raise Refused(f"This release has no fields {', '.join(unknown)}: upgrade first.")
    try:
        entry.values = from_json(stored)
    except (ValidationError, TypeError, ValueError) as error:
        reason = format_errors(error) if isinstance(error, ValidationError) else error
        raise Refused(f"A value does not fit its field: {reason}") from None
    entry.args, entry.kwargs = entry.values.pop("args"), entry.values.pop("kwargs")
