"""What SQLite needs so that the writers of several processes wait for each other. Opens no connection."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

#: Seconds. A writer of SQLite that waits less than this for its turn gives up while workers are busy.
LEAST_TIMEOUT_SECONDS = 10
WANTED = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"}
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)


def lacking(connection: BaseDatabaseWrapper) -> list[str]:
    """Return what the OPTIONS of this database lack; nothing where it is no file of SQLite."""
    name, options = str(connection.settings_dict["NAME"]), _options(connection)
    if connection.vendor != "sqlite" or ":memory:" in name or "mode=memory" in name:
        return []
    found = []
    if str(options.get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        found.append("transaction_mode is not IMMEDIATE")
    timeout = options.get("timeout", 5)
    if not isinstance(timeout, int | float) or timeout < LEAST_TIMEOUT_SECONDS:
        found.append(f"timeout is {timeout} s")
    if not _WAL.search(str(options.get("init_command", ""))) and not _is_wal(name):
        found.append("init_command sets no WAL")
    return found


def prepare(connection: BaseDatabaseWrapper) -> list[str]:
    """Set the OPTIONS that the project does not set, for all threads of this process; return what was lacking.

    For a process of ours, at its start: the file keeps the WAL mode, the rest is of this process alone.
    """
    found = lacking(connection)
    if found:
        options = _options(connection)
        for name, value in WANTED.items():
            options.setdefault(name, value)
        connection.close()
    return found


def _options(connection: BaseDatabaseWrapper) -> dict[str, Any]:
    options: dict[str, Any] = connection.settings_dict.setdefault("OPTIONS", {})
    return options


def _is_wal(name: str) -> bool:
    """Say whether the file is in this mode already: it keeps it. Bytes 18 and 19 of its header are 2 then."""
    with suppress(OSError), Path(name).open("rb") as file:
        return file.read(20)[18:] == b"\x02\x02"
    return False
