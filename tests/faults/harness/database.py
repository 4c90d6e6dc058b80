"""A database that does not serve: locked, so that nobody can write, gone, so that nobody can ask, or refusing what is
written.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from django.db import connection

from django_delayq.models import Run, Schedule, ScheduleState, Tombstone

TABLES = [model._meta.db_table for model in (Run, ScheduleState, Tombstone, Schedule)]
#: Workers of these tests wait so long for a lock of SQLite before they call it an error.
LOCK_SECONDS = {"DELAYQ_TEST_LOCK_SECONDS": "0.5"}


@contextmanager
def locked() -> Iterator[None]:
    """Hold a lock that no writer passes. SQLite's writers get an error after their timeout; PostgreSQL's wait."""
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=30, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            yield
    else:
        with _transaction() as cursor:
            cursor.execute(f"LOCK TABLE {', '.join(TABLES)} IN EXCLUSIVE MODE")
            yield


@contextmanager
def rows_locked(every: int) -> Iterator[None]:
    """Hold locks of one in so many schedules, and of their states, as a long transaction of PostgreSQL does."""
    with _transaction() as cursor:
        for model in (Schedule, ScheduleState):
            table, key = model._meta.db_table, model._meta.pk.column
            rows = f"SELECT 1 FROM {table} WHERE {key} %% %s = 0 ORDER BY {key} FOR UPDATE"  # noqa: S608 - our own
            cursor.execute(rows, [every])
        yield


@contextmanager
def _transaction() -> Iterator[Any]:
    """Yield a cursor of another connection, whose transaction is rolled back."""
    holder: Any = connection.copy()
    holder.set_autocommit(False)
    try:
        with holder.cursor() as cursor:
            yield cursor
    finally:
        holder.rollback()
        holder.close()


@contextmanager
def gone() -> Iterator[None]:
    """Make every question an error. SQLite: the tables have other names; PostgreSQL: it ends and refuses connections.

    The test must not ask anything itself meanwhile.
    """
    if connection.vendor == "sqlite":
        _rename("", "_away")
        try:
            yield
        finally:
            _rename("_away", "")
    else:
        name = connection.settings_dict["NAME"]
        _refuse(name, False)
        try:
            yield
        finally:
            _refuse(name, True)
            connection.close()


@contextmanager
def told(name: str, value: str) -> Iterator[None]:
    """Give PostgreSQL's sessions, all but the test's own, another value of a parameter: they begin anew with it."""
    database = f'ALTER DATABASE "{connection.settings_dict["NAME"]}"'
    with connection.cursor() as cursor:
        cursor.execute(f"{database} SET {name} = {value}")
        _end_others(cursor)
        try:
            yield
        finally:
            cursor.execute(f"{database} RESET {name}")
            _end_others(cursor)


def _end_others(cursor: Any) -> None:
    cursor.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
        [connection.settings_dict["NAME"]],
    )


@contextmanager
def revoked() -> Iterator[None]:
    """Let PostgreSQL's sessions read and not write, as a user without the rights."""
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS delayq_reader")
        cursor.execute("CREATE ROLE delayq_reader")
        cursor.execute(f"GRANT SELECT ON {', '.join(TABLES)} TO delayq_reader")
    try:
        with told("role", "delayq_reader"):
            yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP OWNED BY delayq_reader")
            cursor.execute("DROP ROLE delayq_reader")


@contextmanager
def without_columns() -> Iterator[None]:
    """Take columns away, as where `migrate` was not run, or ran too early."""
    columns = ((Run, "worker"), (Schedule, "queue"))
    with connection.cursor() as cursor:
        for model, name in columns:
            cursor.execute(f"ALTER TABLE {model._meta.db_table} RENAME COLUMN {name} TO {name}_away")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for model, name in columns:
                cursor.execute(f"ALTER TABLE {model._meta.db_table} RENAME COLUMN {name}_away TO {name}")


def _rename(old: str, new: str) -> None:
    file = sqlite3.connect(connection.settings_dict["NAME"], timeout=30, isolation_level=None)
    file.execute("BEGIN IMMEDIATE")
    for table in TABLES:
        file.execute(f'ALTER TABLE "{table}{old}" RENAME TO "{table}{new}"')
    file.execute("COMMIT")
    file.close()


def _refuse(name: str, allowed: bool) -> None:
    other = connection.copy()
    other.settings_dict = {**connection.settings_dict, "NAME": "postgres"}
    with other.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {"true" if allowed else "false"}')
        if not allowed:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    other.close()
