"""Whose prefix this is: the database's fingerprint and the number of shards stand in Redis, and everybody compares.

Note [Fingerprint]
Two databases under one prefix would run and remove each other's schedules. The fingerprint tells a database from its
own copy: where it lives (PostgreSQL's system identifier and database, a SQLite file's path) and when its tables were
created (a copy has the same moment but another place; two projects with equal paths have different moments).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.migrations.recorder import MigrationRecorder

from .. import ledger
from ..broker import Broker
from ..exceptions import ForeignLayout

_known: dict[tuple[str, str], str] = {}


def check_layout(broker: Broker, *, adopt: bool = False, dry_run: bool = False) -> None:
    """Claim the prefix for this database and these shard counts, or find that it is theirs already.

    `adopt` takes the prefix over from another database; `dry_run` only compares.

    Raises:
        ForeignLayout: The prefix belongs to another database or another number of shards; says what to do.
    """
    config = broker.config
    mine: dict[str, Any] = {
        "database": fingerprint(),
        "shards": {queue: config.shards_of(queue) for queue in config.queues},
    }
    text = json.dumps(mine, sort_keys=True)
    stored = _parse((broker.layout() or text) if dry_run else broker.claim_layout(text))
    if dry_run and stored is None:
        return
    if adopt or stored is None:
        broker.write_layout(text)
        return
    if stored["database"] != mine["database"]:
        raise ForeignLayout(
            f"The prefix {config.prefix!r} in Redis belongs to another database. Nothing was changed. If this is a "
            "copy of that database or another project, set another DELAYQ['PREFIX'] here. If this database replaces "
            "the other (restored or moved), or a test run wrote here, stop all workers and run: "
            "manage.py delayq_sync --adopt"
        )
    for queue, count in mine["shards"].items():
        if stored["shards"].get(queue, count) != count:
            raise ForeignLayout(
                f"The queue {queue!r} has {stored['shards'][queue]} shards in Redis but {count} in DELAYQ['SHARDS']. "
                "Nothing was changed. Set it back, or stop all workers and web processes, run "
                "manage.py delayq_sync --purge with the new setting, and start them again."
            )
    if not dry_run and mine["shards"].keys() - stored["shards"].keys():
        stored["shards"].update(mine["shards"])
        broker.write_layout(json.dumps(stored, sort_keys=True))


def _parse(text: str) -> dict[str, Any] | None:
    """Return a stored layout, None for garbage: it is then written anew."""
    try:
        value = json.loads(text)
        return value if isinstance(value["database"], str) and isinstance(value["shards"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def fingerprint() -> str:
    """Return what tells this database from every other, including its own copies. See Note [Fingerprint]."""
    using = ledger.database()
    settings = connections[using].settings_dict
    key = (using, str(settings["NAME"]))
    if key not in _known:
        parts = [connections[using].vendor, _location(using), _created(using)]
        _known[key] = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
    return _known[key]


def forget_fingerprints() -> None:
    """Ask the database again. For tests that create databases."""
    _known.clear()


def _location(using: str) -> str:
    connection = connections[using]
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return str(Path(str(settings["NAME"])).resolve())
    if connection.vendor == "postgresql":
        try:
            with transaction.atomic(using=using), connection.cursor() as cursor:
                cursor.execute("SELECT (SELECT system_identifier FROM pg_control_system()), current_database()")
                return "|".join(str(part) for part in cursor.fetchone())
        except DatabaseError:  # a server that hides its control data
            pass
    return f"{settings['HOST']}:{settings['PORT']}/{settings['NAME']}"


def _created(using: str) -> str:
    recorder = MigrationRecorder(connections[using])
    if not recorder.has_table():
        return ""
    row = recorder.migration_qs.filter(app="django_delayq").order_by("pk").values_list("applied", flat=True).first()
    return "" if row is None else row.isoformat()
