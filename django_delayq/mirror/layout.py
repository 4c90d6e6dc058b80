"""Whose prefix this is: the database's fingerprint and the number of shards stand in Redis, and everybody compares.

Note [Fingerprint]
Two databases under one prefix would run and remove each other's schedules. The fingerprint tells a database from its
own copy: where it lives (PostgreSQL's system identifier and database, a SQLite file's path) and when its tables were
created (a copy has the same moment but another place; two projects with equal paths have different moments).

Note [Queues of other settings]
A process whose settings name fewer queues is no stranger, and the numbers of the others stay in the layout whatever it
writes there: they are the guard of those entries. But its sweeps and saves mirror schedules of every queue. Where it
would count the shards of such a queue otherwise, it would put a second entry for each into another place, and both
would be run. So it is refused as soon as the database has something for that queue.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.migrations.recorder import MigrationRecorder

from .. import conf, ledger
from ..broker import Broker
from ..exceptions import ForeignLayout
from ..models import Schedule

_known: dict[tuple[str, str], str] = {}


def check_layout(broker: Broker, *, adopt: bool = False, claim: bool = True) -> None:
    """Claim the prefix for this database and these shard counts, or find that it is theirs already.

    `adopt` takes the prefix over from another database; without `claim` nothing is written, and a prefix that nobody
    has claimed passes.

    Raises:
        ForeignLayout: The prefix belongs to another database or another number of shards, or see Note [Queues of
            other settings]; says what to do.
    """
    text = this_layout(broker)
    stored = _parse(broker.claim_layout(text) if claim else broker.layout() or text)
    if adopt or stored is None:
        if claim:
            store_layout(broker)
        return
    _check_database(broker, stored)
    shards = {queue: broker.config.shard_count(queue) for queue in broker.config.queues}
    for queue, count in shards.items():
        known = stored["shards"].get(queue, count)
        if known != count:
            raise ForeignLayout(
                f"The queue {queue!r} has {known} shards in Redis but {count} in DELAYQ['SHARDS'] here. Nothing was "
                f"changed. If {known} is right, set it here and start again. If {count} is: run, with this setting, "
                "manage.py delayq_sync --reshard; workers and web processes may go on meanwhile."
            )
    _check_others(broker, stored)
    if claim and shards.keys() - stored["shards"].keys():
        stored["shards"].update(shards)
        broker.write_layout(json.dumps(stored, sort_keys=True))


def this_layout(
    broker: Broker, *, former: Mapping[str, int] | None = None, standing: Mapping[str, Any] | None = None
) -> str:
    """Return the layout of this database and these settings; `former` are the shards that are being moved from.

    What `standing` says of queues that these settings do not name is part. See Note [Queues of other settings].
    """
    config = broker.config

    def others(part: str) -> dict[str, int]:
        return {queue: n for queue, n in (standing or {}).get(part, {}).items() if queue not in config.queues}

    own = {queue: config.shard_count(queue) for queue in config.queues}
    layout: dict[str, Any] = {"database": fingerprint(), "shards": {**others("shards"), **own}}
    moved_from = {**others("former"), **(former or {})}
    if moved_from:
        layout["former"] = moved_from
    return json.dumps(layout, sort_keys=True)


def standing_shards(broker: Broker) -> dict[str, int]:
    """Return the number of shards of each queue as it stands in Redis; a queue that is not there yet is not named.

    Who only adds goes by these and not by the settings: so it may go on while the number of shards changes.

    Raises:
        ForeignLayout: The prefix belongs to another database.
    """
    stored = _parse(broker.layout() or "")
    if stored is None:
        return {}
    _check_database(broker, stored)
    return dict(stored["shards"])


def store_layout(broker: Broker, *, former: Mapping[str, int] | None = None) -> None:
    """Write the layout of this database and these settings over the one that stands. See `this_layout`."""
    standing = _parse(broker.layout() or "")
    if standing is not None and standing["database"] != fingerprint():
        standing = None
    broker.write_layout(this_layout(broker, former=former, standing=standing))


def other_shards(broker: Broker) -> dict[str, int]:
    """Return, for each queue whose number of shards in Redis is not that of the settings, how many there are or were.

    Those whose move from a former number was not finished are part.

    Raises:
        ForeignLayout: The prefix belongs to another database, or see Note [Queues of other settings].
    """
    stored = _parse(broker.layout() or "")
    if stored is None:
        return {}
    _check_database(broker, stored)
    _check_others(broker, stored)
    found: dict[str, int] = {}
    unfinished = stored.get("former", {})
    for queue in broker.config.queues:
        count = stored["shards"].get(queue)
        if count is not None and (count != broker.config.shard_count(queue) or queue in unfinished):
            found[queue] = max(count, unfinished.get(queue, 0))
    return found


def moving(text: str | None) -> list[str]:
    """Return the queues whose move to another number of shards has not come to its end, by this stored layout."""
    stored = _parse(text or "")
    return [] if stored is None else sorted(stored.get("former", {}))


def _check_database(broker: Broker, stored: dict[str, Any]) -> None:
    if stored["database"] != fingerprint():
        raise ForeignLayout(
            f"The prefix {broker.config.prefix!r} in Redis belongs to another database. Nothing was changed. If this "
            "is a copy of that database or another project, set another DELAYQ['PREFIX'] here. If this database "
            "replaces the other (restored or moved), or a test run wrote here, stop all workers and run: "
            "manage.py delayq_sync --adopt"
        )


def _check_others(broker: Broker, stored: dict[str, Any]) -> None:
    """Refuse to mirror into wrong places. See Note [Queues of other settings]."""
    for queue, known in stored["shards"].items():
        count = broker.config.shard_count(queue)
        if queue not in broker.config.queues and count != known and _in_use(queue):
            raise ForeignLayout(
                f"The queue {queue!r} has {known} shards in Redis, but DELAYQ['QUEUES'] here does not name it, and its "
                f"schedules would be mirrored as if it had {count}. Nothing was changed. Name it in DELAYQ['QUEUES'] "
                "here too (a worker's --queues says which of them it runs), or move its schedules to another queue."
            )


def _in_use(queue: str) -> bool:
    schedules = Schedule._base_manager.using(ledger.database()).filter(queue=queue)
    return schedules.exists() or ledger.open_apart().filter(queue=queue).exists()


def _parse(text: str) -> dict[str, Any] | None:
    """Return a stored layout, None for garbage: it is then written anew."""
    try:
        value = json.loads(text)
        former = value.get("former", {})
        named = [*value["shards"].items(), *former.items()]
        sound = isinstance(value["database"], str) and all(conf.QUEUE_NAME.fullmatch(name) for name, _ in named)
        sound = sound and all(type(count) is int and 0 < count <= conf.MAX_SHARDS for _, count in named)
        return value if sound else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
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
