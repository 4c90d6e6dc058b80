"""Schedules as JSON lines: the definition, all of its columns by name. No state, no history."""

from collections.abc import Iterator, Sequence
from typing import Any

from ... import ledger
from ...models import Schedule
from ...models.differences import to_json, values_of
from .plan import without_mark

VERSION = 1
CHUNK = 500


def exported(names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield each schedule, by name, as an object that JSON can carry; all of them, or those of these names.

    Raises:
        DatabaseError: The database does not answer.
    """
    rows = Schedule._base_manager.using(ledger.database()).order_by("name")
    if names:
        rows = rows.filter(name__in=names)
    pks = list(rows.values_list("pk", flat=True))
    for start in range(0, len(pks), CHUNK):
        for row in rows.filter(pk__in=pks[start : start + CHUNK]):
            values = {**values_of(row), "description": without_mark(row.description)}
            yield {"version": VERSION, **to_json(values)}
