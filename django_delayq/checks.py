"""System checks: what can be known to be wrong before anything runs. Only `check --deploy` opens a connection.

Every id, with what to do, stands in the table of docs/reference.md.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import connections, router

from . import broker, conf, declared, ledger, registry
from .broker import aliases, engine, probe
from .declared.sync import said
from .declared.values import declared_schedule
from .decorators import Declared
from .exceptions import BrokerError
from .fields import utcnow
from .jobs.aliases import keepers_of
from .models import Declaration, Job, Run, Schedule, ScheduleState, Tombstone

LEVELS = {"E": checks.Error, "W": checks.Warning, "I": checks.Info}
#: How long `check --deploy` waits for an answer of Redis.
TIMEOUT_SECONDS = 2.0


def connect() -> None:
    """Register every check once."""
    checks.register(check_settings, "delayq")
    checks.register(check_alias, "delayq")
    checks.register(check_tasks, "delayq")
    checks.register(check_dead_jobs, "delayq")
    checks.register(check_mirror, "delayq", deploy=True)
    checks.register(check_server, "delayq", deploy=True)
    checks.register(check_routers, "delayq")
    checks.register(check_sqlite, "delayq")
    checks.register(check_declared, "delayq")


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check the DELAYQ setting and the cache alias that it names."""
    try:
        config = conf.get_config()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint="Correct DELAYQ in the settings.", id="delayq.E001")]
    found: list[checks.CheckMessage] = []
    if config.history_days is not None:
        hint = "Delete old rows yourself: Run.objects.finished().filter(finished_at__lt=…).delete()"
        found.append(checks.Warning("DELAYQ['HISTORY_DAYS'] has no effect yet.", hint=hint, id="delayq.W001"))
    if not config.mirror:
        return found
    try:
        broker.connector(timeout_seconds=1)
    except ImproperlyConfigured as error:
        found.append(checks.Error(str(error), hint="Correct CACHES or DELAYQ['REDIS'].", id="delayq.E002"))
    return found


def check_alias(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check what the aliases say beside an address that can be read."""
    return list(_of_alias()) if _usable() else []


def check_tasks(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that the task modules of the installed apps can be imported: the workers and the admin do."""
    try:
        registry.get_tasks()
    except ImproperlyConfigured:
        return []  # the settings' own check says it
    except Exception as error:
        message = f"A module of tasks cannot be imported: {type(error).__name__}: {error}"
        return [checks.Error(message, hint="Import it in manage.py shell to see where.", id="delayq.E003")]
    return []


def check_dead_jobs(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that all aliases keep the dead jobs of a queue for as long, and as many: they are in one list."""
    try:
        queues = conf.get_config().queues
    except ImproperlyConfigured:
        return []
    for queue in queues:
        kept = {alias: (item.dead_ttl, item.dead_max) for alias, item in keepers_of(queue).items()}
        if len(set(kept.values())) > 1:
            said = "; ".join(f"{alias!r} {ttl:,.0f} s and {most:,}" for alias, (ttl, most) in sorted(kept.items()))
            message = f"Aliases of TASKS say different dead_ttl and dead_max for the queue {queue!r}: {said}."
            hint = "The largest count for all of them. Say the same in their OPTIONS, or give them QUEUES of their own."
            return [checks.Warning(message, hint=hint, id="delayq.W021")]
    return []


def check_mirror(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that what is deployed mirrors its schedules."""
    try:
        mirrors = conf.mirrors()
    except ImproperlyConfigured:
        return []
    message = "DELAYQ['MIRROR'] is False: no schedule gets into Redis, and no worker starts."
    hint = "Take it out where schedules are to run; it is for the tests of a project."
    return [] if mirrors else [checks.Warning(message, hint=hint, id="delayq.W003")]


def check_server(**kwargs: Any) -> list[checks.CheckMessage]:
    """Look at the servers, as a worker does at its start. Redis that does not answer is a warning, never an error."""
    if not _usable():
        return []
    client = broker.Broker(timeout_seconds=TIMEOUT_SECONDS, worker="checks")
    try:
        found = [
            LEVELS[each.level](each.message, each.hint, id=each.id) for each in probe.findings(engine.look(client))
        ]
        if engine.keeps_nothing(client):
            message = "Redis keeps nothing on its disk: after a restart the workers rebuild it from the database first."
            hint = "Nothing is lost by that. To spare the seconds of a rebuild: appendonly yes."
            found.append(checks.Info(message, hint=hint, id="delayq.I001"))
    except BrokerError as error:
        hint = "Run the check again where Redis answers, or start a worker: it looks at the same things."
        return [checks.Warning(f"Redis could not be looked at: {error}", hint=hint, id="delayq.W008")]
    finally:
        client.close()
    return found


def _usable() -> bool:
    """Say whether there is an alias to look at; what else is wrong with the settings, their own check says."""
    try:
        if conf.get_config().mirror:
            broker.connector(timeout_seconds=1)
            return True
    except ImproperlyConfigured:
        pass
    return False


def _of_alias() -> Iterator[checks.CheckMessage]:
    config = conf.get_config()
    if aliases.ignores_sentinels():
        message = f"The cache {config.redis!r} names SENTINELS, but its connection factory asks none."
        hint = "Set OPTIONS['CONNECTION_FACTORY'] to 'django_redis.pool.SentinelConnectionFactory'."
        yield checks.Error(message, hint=hint, id="delayq.E006")
    for name in aliases.sharing():
        message = (
            f"The cache {name!r} is in the same Redis database as the schedules of django-delayq ({config.redis!r})."
        )
        hint = "cache.clear() empties all of it, whatever its KEY_PREFIX: give one of them another database or server."
        yield checks.Warning(message, hint=hint, id="delayq.W002")
    if aliases.is_cluster() and all(config.shard_count(queue) == 1 for queue in config.queues):
        message = "DELAYQ['SHARDS'] is 1, so that each queue is on one node of the Redis Cluster only."
        hint = "Set SHARDS to the number of masters or a multiple of it."
        yield checks.Warning(message, hint=hint, id="delayq.W009")


#: A writer of SQLite that waits less than this for its turn gives up while workers are busy.
LEAST_TIMEOUT_SECONDS = 10
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)
_HINT = (
    'Set in DATABASES: "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA '
    'journal_mode=WAL; PRAGMA synchronous=NORMAL;"}. For more than a few workers use PostgreSQL.'
)


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


def check_declared(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that each declared schedule can be saved, is the only one of its key and name, and is found everywhere."""
    try:
        found = declared.collect()
    except Exception:  # the settings are wrong or a module cannot be imported: other checks say it
        return []
    return [*map(_twice, found.twice), *filter(None, map(_invalid, found.declared)), *map(_outside, found.outside)]


def _invalid(each: Declared) -> checks.CheckMessage | None:
    try:
        schedule = declared_schedule(each)
        if schedule.at is None or schedule.at > utcnow():  # whether one that has passed is known, the database says
            schedule.clean()
    except ValidationError as error:
        message = f"The schedule {each.values['name']!r}, declared in {each.module}, cannot be saved: {said(error)}"
        return checks.Error(message, hint=f"Correct @periodic of {each.task}.", id="delayq.E030")
    return None


def _twice(each: Declared) -> checks.CheckMessage:
    message = f"The key {each.key!r} or name {each.values['name']!r}, declared in {each.module}, is declared twice."
    return checks.Error(message, hint="Give each @periodic a name of its own: name='…'.", id="delayq.E031")


def _outside(each: Declared) -> checks.CheckMessage:
    message = f"The schedule {each.values['name']!r} of {each.task} is not synced: it is declared in {each.module}."
    hint = (
        "Have it beside a task that a module of DELAYQ['TASK_MODULES'] offers, or in such a module: others are not "
        "imported by every process."
    )
    return checks.Warning(message, hint=hint, id="delayq.W030")
