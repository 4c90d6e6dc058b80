"""Locks rows for workers: only rows that are free. Waits only briefly for locks that cannot be skipped.

Note [Locked rows are skipped]
On PostgreSQL a row stays locked until its transaction ends, which may take minutes. A worker that waited would delay
all its other outcomes. So it locks and writes free rows (`models/primary.py`, Note [Schedules are locked first]), and
returns to the others later (`worker/recorder.py`). A lock that cannot be skipped, as of a table, is an error after
LOCK_MS: less than `deadlock_timeout`, so that PostgreSQL does not cancel the other transaction.
"""

from collections.abc import Collection
from typing import Any

from django.db import connections
from django.db.models import Model

from .bulk import reader


def lock_free(
    model: type[Model], pks: Collection[int], using: str, *fields: str
) -> tuple[dict[int, tuple[Any, ...]], set[int]]:
    """Lock the free rows, or all without SKIP LOCKED; return their fields, and the keys that others locked."""
    rows = reader(model, str(model._meta.pk.name), ("pk", *fields), using, lock=True).read(list(pks))
    found = {pk: tuple(values) for pk, *values in rows}
    return found, find_locked(model, set(pks) - found.keys(), using)


def leave_locked(model: type[Model], pks: Collection[int], using: str) -> set[int]:
    """Lock the free rows; return the keys of the others. Queries nothing if the database cannot skip locks."""
    if not connections[using].features.has_select_for_update_skip_locked:
        return set()
    return lock_free(model, pks, using)[1]


def find_locked(model: type[Model], missing: Collection[int], using: str) -> set[int]:
    """Return the keys that `lock_free` did not find although their rows exist: others have locked them."""
    if not missing or not connections[using].features.has_select_for_update_skip_locked:
        return set()
    return {pk for (pk,) in reader(model, str(model._meta.pk.name), ("pk",), using).read(list(missing))}
