"""Whose prefix this is, and how its index is laid out. Redis stores both; each process compares them with its own.

Note [One database per prefix]
Two databases under one prefix would run and remove each other's schedules. A database differs from others by its
location, and from an earlier one at this location by the time of its first migration. On PostgreSQL the location is the
identifier of the cluster and the name, so a standby that is promoted keeps the fingerprint.

Note [Settings agree on the shards of a queue]
A process whose settings name fewer queues may use the prefix. But it mirrors schedules of every queue: with another
number of shards, a schedule would run in two shards. So such a process is refused if that queue has rows.

Note [Equal layouts coexist]
Releases with the same `conf.LAYOUT` work side by side. A release that cannot work beside the former one raises it,
and adds a migration whose name ends with `_layout_<number>`: so the database decides, even after a flush. A worker with
a lower layout drains and does not start again; one with a higher layout waits for `migrate`. Every release must be able
to read the fields `database` and `version` of a stored layout. Other fields may change with the version.
"""

import hashlib
import json
import pkgutil
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import QuerySet

from .. import conf, ledger
from ..exceptions import DelayQError
from ..index import Broker
from ..models import Schedule

APP = "django_delayq"
#: The end of the name of a migration that raises the layout.
RAISES = re.compile(r"_layout_([0-9]{1,9})$")

_known: dict[tuple[str, str], str] = {}


class PendingMigrations(DelayQError):
    """`manage.py migrate` was not run for this release. Workers wait for it."""


class OutdatedRelease(DelayQError):
    """The database has the layout of a later release: this process must end, and not start again."""


class ForeignLayout(DelayQError):
    """The prefix in Redis belongs to another database."""


class OtherLayout(ForeignLayout):
    """The index in Redis was built by a release of another layout, or for another number of shards."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout stored in Redis. If it is `switching`, a worker rebuilds the index, and no other worker may use it."""

    database: str
    version: int
    shards: dict[str, int] = field(default_factory=dict)
    switching: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def find_difference(self, own: "Layout") -> str:
        """Return why a process with the layout `own` cannot use an index with this one; '' if it can."""
        if self.switching:
            return "A worker is rebuilding the index in Redis with another layout."
        if self.version != own.version:
            return f"The index in Redis has the layout {self.version}, but this release has the layout {own.version}."
        for queue, count in own.shards.items():
            if (known := self.shards.get(queue, count)) != count:
                return f"The queue {queue!r} has {known} shards in Redis but {count} in DELAYQ['SHARDS'] here."
        return ""


def get_own_layout(broker: Broker) -> Layout:
    config = broker.config
    return Layout(read_fingerprint(), conf.LAYOUT, {queue: config.get_shard_count(queue) for queue in config.queues})


def check_layout(broker: Broker, *, claim: bool = True) -> None:
    """Claim the prefix, or without `claim` only check it. Raises OtherLayout, ForeignLayout, and as `check_release`."""
    own, text = get_own_layout(broker), broker.read_layout()
    if claim and _parse(text) is None:
        check_release()
        text = broker.claim_layout(own.to_json())
        if _parse(text) is None:
            store_layout(broker)
            return
    stored = read_layout(broker, text)
    if difference := stored.find_difference(own):
        raise OtherLayout(
            f"{difference} Nothing was changed. Workers with the release and the settings of this process build the "
            "index anew as soon as no others live: restart all of them."
        )
    if claim and own.shards.keys() - stored.shards.keys():
        broker.write_note("layout", replace(stored, shards=stored.shards | own.shards).to_json())


def check_release() -> None:
    """Raise OutdatedRelease if the database has a later layout, PendingMigrations if migrations of this release were
    not run. See Note [Equal layouts coexist].
    """
    using = ledger.get_database()
    applied = set(_query_migrations(using).values_list("name", flat=True))
    if not applied:  # the tables were created without migrations, as in some test suites
        return
    layout = max((int(found[1]) for name in applied if (found := RAISES.search(name))), default=1)
    if layout > conf.LAYOUT:
        raise OutdatedRelease(
            f"The database {using!r} has the layout {layout} of a later release, but this release has the layout "
            f"{conf.LAYOUT}. It must not run beside the later release: install that one."
        )
    if layout < conf.LAYOUT or not _list_shipped() <= applied:
        raise PendingMigrations(
            f"Not all migrations of this release, whose layout is {conf.LAYOUT}, were run on the database {using!r}, "
            f"whose layout is {layout}. Run: manage.py migrate"
        )


@cache
def _list_shipped() -> frozenset[str]:
    """Return the migrations of this release; cached, since the next release may be installed over it."""
    module, _ = MigrationLoader.migrations_module(APP)
    found = pkgutil.iter_modules(import_module(module).__path__) if module else ()
    return frozenset(each.name for each in found if each.name[0] not in "_~")


def store_layout(broker: Broker) -> None:
    """Write the layout of this process. Queues that its settings do not name keep their shards."""
    own, stored = get_own_layout(broker), _parse(broker.read_layout())
    shards = stored.shards if stored is not None and stored.database == own.database else {}
    broker.write_note("layout", replace(own, shards=shards | own.shards).to_json())


def read_layout(broker: Broker, text: str | None) -> Layout:
    """Return the layout stored as `text`. Raises ForeignLayout: see Note [Settings agree on the shards of a queue]."""
    stored = _parse(text)
    if stored is None:
        return Layout("", conf.LAYOUT)
    if stored.database != read_fingerprint():
        raise ForeignLayout(
            f"The prefix {broker.config.prefix!r} in Redis belongs to another database. Nothing was changed. If this "
            "is a copy of that database or another project, set another DELAYQ['PREFIX'] here. If this database "
            "replaces the other (restored or moved), or a test run wrote here, stop all workers and run: "
            "manage.py delayq_sync --adopt"
        )
    for queue, known in stored.shards.items():
        count = broker.config.get_shard_count(queue)
        if queue not in broker.config.queues and count != known and _is_in_use(queue):
            raise ForeignLayout(
                f"The queue {queue!r} has {known} shards in Redis, but DELAYQ['QUEUES'] here does not name it, and its "
                f"schedules would be mirrored as if it had {count}. Nothing was changed. Name it in DELAYQ['QUEUES'] "
                "here too (a worker's --queues says which of them it runs), or move its schedules to another queue."
            )
    return stored


def _is_in_use(queue: str) -> bool:
    schedules = Schedule._base_manager.using(ledger.get_database()).filter(queue=queue)
    return schedules.exists() or ledger.query_open_separate().filter(queue=queue).exists()


def _parse(text: str | None) -> Layout | None:
    try:
        value = json.loads(text or "")
        database, version, shards = value["database"], value["version"], value.get("shards")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(database, str) or type(version) is not int:
        return None
    if _is_sound(shards):
        return Layout(database, version, shards, value.get("switching") is True)
    return None if version == conf.LAYOUT else Layout(database, version)


def _is_sound(shards: Any) -> bool:
    return isinstance(shards, dict) and all(
        conf.QUEUE_NAME.fullmatch(name) and type(count) is int and 0 < count <= conf.MAX_SHARDS
        for name, count in shards.items()
    )


def read_fingerprint() -> str:
    """Return an id of this database, which copies elsewhere do not share. See Note [One database per prefix]."""
    using = ledger.get_database()
    key = (using, str(connections[using].settings_dict["NAME"]))
    if key not in _known:
        created = _query_migrations(using).order_by("pk").values_list("applied", flat=True).first()
        parts = [connections[using].vendor, _find_location(using), created.isoformat() if created else ""]
        _known[key] = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
    return _known[key]


def _find_location(using: str) -> str:
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


def _query_migrations(using: str) -> "QuerySet[Any]":
    recorder = MigrationRecorder(connections[using])
    return recorder.migration_qs.filter(app=APP) if recorder.has_table() else recorder.migration_qs.none()
