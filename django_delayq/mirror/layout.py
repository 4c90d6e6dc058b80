"""Whose prefix this is: the database's fingerprint and the number of shards stand in Redis, and everybody compares.

Note [Fingerprint]
Two databases under one prefix would run and remove each other's schedules. The fingerprint tells a database from its
own copy: where it lives (PostgreSQL's system identifier and database, a SQLite file's path) and when its tables were
created (a copy has the same moment but another place; two projects with equal paths have different moments).

Note [Queues of other settings]
A process whose settings name fewer queues belongs here too, and the numbers of the others stay in the layout whatever
it writes there: they are the guard of those entries. But its sweeps and saves mirror schedules of every queue. Where it
would count the shards of such a queue otherwise, it would put a second entry for each into another shard, and both
would be run. So it is refused as soon as the database has something for that queue.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from django.db import DatabaseError, connections, transaction
from django.db.migrations.recorder import MigrationRecorder

from .. import conf, ledger
from ..broker import Broker
from ..exceptions import ForeignLayout
from ..models import Schedule

_known: dict[tuple[str, str], str] = {}


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands in Redis: the database, the number of shards of each queue, and from which one it is being moved."""

    database: str
    shards: dict[str, int] = field(default_factory=dict)
    former: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return it as it is stored."""
        stored = {"database": self.database, "shards": self.shards}
        return json.dumps(stored | {"former": self.former} if self.former else stored, sort_keys=True)


def check_layout(broker: Broker, *, claim: bool = True) -> None:
    """Claim the prefix for this database and these shard counts, or find that it is theirs already.

    Without `claim` nothing is written, and a prefix that nobody has claimed passes.

    Raises:
        ForeignLayout: The prefix belongs to another database or another number of shards, or see Note [Queues of
            other settings]; says what to do.
    """
    own = {queue: broker.config.shard_count(queue) for queue in broker.config.queues}
    text = broker.claim_layout(Layout(fingerprint(), own).text()) if claim else broker.layout()
    if claim and _parse(text) is None:
        store_layout(broker)
        return
    standing = _checked(broker, text)
    for queue, count in own.items():
        known = standing.shards.get(queue, count)
        if known != count:
            raise ForeignLayout(
                f"The queue {queue!r} has {known} shards in Redis but {count} in DELAYQ['SHARDS'] here. Nothing was "
                f"changed. If {known} is right, set it here and start again. If {count} is: run, with this setting, "
                "manage.py delayq_sync --reshard; workers and web processes may go on meanwhile."
            )
    _check_others(broker, standing)
    if claim and own.keys() - standing.shards.keys():
        broker.write_layout(Layout(standing.database, standing.shards | own, standing.former).text())


def standing_shards(broker: Broker) -> dict[str, int]:
    """Return the number of shards of each queue as it stands in Redis; a queue that is not there yet is not named.

    Who only adds goes by these and not by the settings: so it may go on while the number of shards changes.

    Raises:
        ForeignLayout: The prefix belongs to another database.
    """
    return _checked(broker, broker.layout()).shards


def store_layout(broker: Broker, *, former: Mapping[str, int] | None = None) -> None:
    """Write the layout of this database and these settings; `former` are the shards that are being moved from.

    What stands of queues that these settings do not name stays. See Note [Queues of other settings].
    """
    standing, own = _parse(broker.layout()), broker.config.queues
    if standing is None or standing.database != fingerprint():
        standing = Layout(fingerprint())
    shards = {queue: count for queue, count in standing.shards.items() if queue not in own}
    moved_from = {queue: count for queue, count in standing.former.items() if queue not in own}
    shards |= {queue: broker.config.shard_count(queue) for queue in own}
    broker.write_layout(Layout(standing.database, shards, {**moved_from, **(former or {})}).text())


def other_shards(broker: Broker) -> dict[str, int]:
    """Return, for each queue whose number of shards in Redis is not that of the settings, how many there are or were.

    Those whose move from a former number was not finished are part.

    Raises:
        ForeignLayout: The prefix belongs to another database, or see Note [Queues of other settings].
    """
    standing = _checked(broker, broker.layout())
    _check_others(broker, standing)
    return {
        queue: max(standing.shards[queue], standing.former.get(queue, 0))
        for queue in broker.config.queues
        if queue in standing.shards
        and (queue in standing.former or standing.shards[queue] != broker.config.shard_count(queue))
    }


def moving(text: str | None) -> list[str]:
    """Return the queues whose move to another number of shards has not come to its end, by this stored layout."""
    standing = _parse(text)
    return [] if standing is None else sorted(standing.former)


def _checked(broker: Broker, text: str | None) -> Layout:
    """Return a stored layout, an empty one where there is none; refuse that of another database."""
    standing = _parse(text)
    if standing is None:
        return Layout("")
    if standing.database != fingerprint():
        raise ForeignLayout(
            f"The prefix {broker.config.prefix!r} in Redis belongs to another database. Nothing was changed. If this "
            "is a copy of that database or another project, set another DELAYQ['PREFIX'] here. If this database "
            "replaces the other (restored or moved), or a test run wrote here, stop all workers and run: "
            "manage.py delayq_sync --adopt"
        )
    return standing


def _check_others(broker: Broker, standing: Layout) -> None:
    """Refuse to mirror into wrong shards. See Note [Queues of other settings]."""
    for queue, known in standing.shards.items():
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


def _parse(text: str | None) -> Layout | None:
    """Return a stored layout, None for garbage: it is then written anew."""
    try:
        value = json.loads(text or "")
        layout = Layout(value["database"], value["shards"], value.get("former", {}))
        named = [*layout.shards.items(), *layout.former.items()]
        sound = isinstance(layout.database, str) and all(conf.QUEUE_NAME.fullmatch(name) for name, _ in named)
        sound = sound and all(type(count) is int and 0 < count <= conf.MAX_SHARDS for _, count in named)
        return layout if sound else None
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
