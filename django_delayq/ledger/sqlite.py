"""What SQLite needs so that the writers of several processes wait for each other. Opens no connection."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: A writer of SQLite that waits less than this for its turn gives up while workers are busy.
LEAST_TIMEOUT_SECONDS = 10
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)


def lacking(options: Mapping[str, Any], name: str) -> list[str]:
    """Return what these OPTIONS of the database in this file lack."""
    found = []
    if str(options.get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        found.append("transaction_mode is not IMMEDIATE")
    timeout = options.get("timeout", 5)
    if not isinstance(timeout, int | float) or timeout < LEAST_TIMEOUT_SECONDS:
        found.append(f"timeout is {timeout} s")
    if not _WAL.search(str(options.get("init_command", ""))) and not _is_wal(name):
        found.append("init_command sets no WAL")
    return found


def _is_wal(name: str) -> bool:
    """Say whether the file is in this mode already: it keeps it. Bytes 18 and 19 of its header are 2 then."""
    with suppress(OSError), Path(name).open("rb") as file:
        return file.read(20)[18:] == b"\x02\x02"
    return False
