"""What a worker locks: only what is free, and what it cannot skip it does not wait for long.

Note [Nobody's row is waited for]
On PostgreSQL a row stays locked until its transaction ends: minutes, where somebody imports or has forgotten a COMMIT.
A worker that waited for one row would hold up everything else that it has to record, perhaps also the job that the
owner of the lock waits for. So it locks what is free, in the order of `models/locks.py`, Note [Order of locks], writes
that, and comes back to the rest (`worker/recorder.py`). What cannot be skipped, such as the lock of a whole table, is
an error after LOCK_MS: less than PostgreSQL's `deadlock_timeout`, so that nobody waits in a circle with a worker for
long enough to be made its victim.
"""

from collections.abc import Collection, Sequence
from typing import Any

from django.db import connections
from django.db.models import Model

from .bulk import database, reader

#: The oldest transaction that has locked rows of some tables, or all of one; other people's may not be seen in full.
_OLDEST = """
    SELECT a.pid, a.application_name, a.state, extract(epoch FROM now() - a.xact_start)
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.relation = ANY(%s::regclass[]) AND l.granted
      AND a.pid <> pg_backend_pid() AND a.datname = current_database()
      AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
    ORDER BY a.xact_start LIMIT 1
"""


def lock_free(
    model: type[Model], pks: Collection[int], using: str, *fields: str
) -> tuple[dict[int, tuple[Any, ...]], set[int]]:
    """Lock those of these rows that are free; return their fields by primary key, and the keys that others have locked.

    Keys of rows that are not there are in neither. Where a database cannot skip locks, it is waited for as it does.
    """
    rows = reader(model, _key(model), ("pk", *fields), using, lock=True).read(list(pks))
    found = {pk: tuple(values) for pk, *values in rows}
    return found, locked_by_others(model, set(pks) - found.keys(), using)


def leave_locked(model: type[Model], pks: Collection[int], using: str) -> set[int]:
    """Lock those of these rows that are free; return the keys of the others, to be left out. Asks nothing on SQLite."""
    if not connections[using].features.has_select_for_update_skip_locked:
        return set()
    return lock_free(model, pks, using)[1]


def locked_by_others(model: type[Model], missing: Collection[int], using: str) -> set[int]:
    """Return those of the keys that were not found by a lock of what is free and whose rows are there all the same."""
    if not missing or not connections[using].features.has_select_for_update_skip_locked:
        return set()
    return {pk for (pk,) in reader(model, _key(model), ("pk",), using).read(list(missing))}


def _key(model: type[Model]) -> str:
    return str(model._meta.pk.name)


def owner_of_locks(models: Sequence[type[Model]]) -> str:
    """Say in words whose transaction has probably locked rows of these tables: the oldest one that writes there."""
    using = database()
    if connections[using].vendor != "postgresql":
        return "not known"
    with connections[using].cursor() as cursor:
        cursor.execute(_OLDEST, [[connections[using].ops.quote_name(model._meta.db_table) for model in models]])
        row = cursor.fetchone()
    if row is None:
        return "it has just ended"
    pid, application, state, seconds = row
    return f"pid {pid}, application {application!r}, {state or 'state not known'}, begun {seconds or 0:.0f} s ago"
