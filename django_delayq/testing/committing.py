"""Lets a task run in a test's transaction as if it were outside of one. Independent of tasks.

Note [Each call has a savepoint]
A worker calls a task outside of any transaction: writes are permanent, a failed query affects only itself, and
`on_commit` callbacks run. Django's `TestCase` and pytest-django's `db` wrap a test in a transaction that never commits.
So each call has a savepoint, which is rolled back only if the transaction was broken, and its pending callbacks are
called afterwards. Outside of a transaction, nothing is done.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def as_committed() -> Iterator[None]:
    """Emulate autocommit. See Note [Each call has a savepoint]."""
    marks = [
        (connection, connection.savepoint(), len(connection.run_on_commit))
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block
    ]
    yield
    for connection, savepoint, waiting in marks:
        _mend(connection, savepoint)
        while len(connection.run_on_commit) > waiting:
            item: tuple[Any, ...] = connection.run_on_commit.pop(waiting)
            _, callback, robust = item
            try:
                callback()
            except Exception:
                if not robust:
                    raise


def _mend(connection: BaseDatabaseWrapper, savepoint: str | None) -> None:
    if savepoint is None:
        return
    try:
        connection.savepoint_commit(savepoint)
    except DatabaseError:
        connection.needs_rollback = False
        connection.savepoint_rollback(savepoint)
        connection.savepoint_commit(savepoint)
