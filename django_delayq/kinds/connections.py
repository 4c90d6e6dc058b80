"""The database connections of a thread that runs tasks. Knows no task and no ledger.

Note [Left open]
What a task leaves of its connection would reach the next task of the thread. In a transaction that nobody ends the next
one's writes are never committed, and its locks hold up everybody; a driver's connection that is closed is an error of
the next one. Django's `close_old_connections` sees neither: it leaves alone what it takes for a block that will
be left, and tries out only what has failed. So a connection that is not idle after a task is given up.
"""

from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def tidy_connections() -> None:
    """Leave each connection of this thread closed, or idle and as old as Django allows. See Note [Left open]."""
    for connection in connections.all(initialized_only=True):
        if not _is_left_open(connection):
            with suppress(Exception):
                connection.close_if_unusable_or_obsolete()
                continue
        _forget(connection)


def forget_connections() -> None:
    """Give this thread new database connections: an exception from outside may have left these in any state."""
    for connection in connections.all(initialized_only=True):
        _forget(connection)


def _forget(connection: BaseDatabaseWrapper) -> None:
    with suppress(Exception):
        connection.close()
    del connections[connection.alias]


def _is_left_open(connection: BaseDatabaseWrapper) -> bool:
    """Say whether a transaction is open, in Django's eyes or only in the driver's, or the driver's end is closed."""
    if connection.in_atomic_block:
        return True
    driver: Any = connection.connection
    try:
        if driver is not None and connection.vendor == "sqlite":
            return bool(driver.in_transaction)
        if driver is not None and connection.vendor == "postgresql":
            return bool(driver.info.transaction_status)  # 0 is idle; of a closed one it is "unknown"
    except Exception:  # closed
        return True
    return False
