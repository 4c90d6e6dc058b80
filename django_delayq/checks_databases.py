"""System checks of the app's database. Looks at routers, settings and a file's header; opens no connection."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from . import conf, ledger
from .models import Declaration, Job, Run, Schedule, ScheduleState, Tombstone

#: A writer of SQLite that waits less than this for its turn gives up while workers are busy.
LEAST_TIMEOUT_SECONDS = 10
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)
_HINT = (
    'Set in DATABASES: "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA '
    'journal_mode=WAL; PRAGMA synchronous=NORMAL;"}. For more than a few workers use PostgreSQL.'
)


def connect() -> None:
    """Register every check once."""
    checks.register(check_routers, "delayq")
    checks.register(check_sqlite, "delayq")


def check_routers(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that all models are in one database: outcomes, states and definitions are written in one transaction."""
    models = (Schedule, ScheduleState, Declaration, Run, Tombstone, Job)
    aliases = {model.__name__: router.db_for_write(model) for model in models}
    if len(set(aliases.values())) == 1:
        return []
    found = ", ".join(f"{name} to {alias!r}" for name, alias in aliases.items())
    message = f"DATABASE_ROUTERS send the models of django_delayq to several databases: {found}."
    hint = "Have db_for_write() return the same alias for every model with the app label django_delayq."
    return [checks.Error(message, hint=hint, id="delayq.E020")]


def check_sqlite(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that SQLite lets the writers of several processes wait for each other."""
    try:
        mirror = conf.get_config().mirror
    except ImproperlyConfigured:
        return []  # the settings' own check says it
    connection = connections[ledger.database()]
    database = connection.settings_dict
    name = str(database["NAME"])
    if connection.vendor != "sqlite" or not mirror or ":memory:" in name or "mode=memory" in name:
        return []
    lacking = _lacking(database.get("OPTIONS", {}), name)
    if not lacking:
        return []
    message = (
        f'With these OPTIONS of the SQLite database {connection.alias!r} saves may fail with "database is locked" '
        f"while workers run: {', '.join(lacking)}."
    )
    return [checks.Warning(message, hint=_HINT, id="delayq.W020")]


def _lacking(options: Mapping[str, Any], name: str) -> list[str]:
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
