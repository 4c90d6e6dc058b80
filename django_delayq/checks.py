"""System checks; docs/reference.md lists their ids with remedies. Only `check --deploy` opens a connection."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management import get_commands
from django.db import connections, router

from . import conf, index, ledger
from .calls import registry
from .calls.call import find_alias
from .exceptions import BrokerError
from .index import connection as redis_connection
from .index import probe
from .ledger.bulk import WANTED, list_missing_options
from .models import Run, Schedule, ScheduleState, Tombstone
from .models.differences import build_declared
from .recurrence import zone
from .recurrence.point import utcnow
from .sources import declared
from .sources.declared import format_errors
from .text import suggest_name

LEVELS = {"E": checks.Error, "W": checks.Warning}
#: Seconds that `check --deploy` waits for a reply of Redis.
TIMEOUT_SECONDS = 2.0
_NO_ALIAS = (
    "Correct CACHES or DELAYQ['REDIS']. In settings for tests, which need no Redis, set DELAYQ['MIRROR'] to False."
)

Found = Iterator[checks.CheckMessage]


def _check(find: Callable[[], Found], *, deploy: bool = False) -> Callable[..., list[checks.CheckMessage]]:
    """Register a system check. Only `check_settings` reports unusable settings."""

    def check(**kwargs: Any) -> list[checks.CheckMessage]:
        with suppress(ImproperlyConfigured):
            return list(find())
        return []

    checks.register(check, "delayq", deploy=deploy)
    return check


@_check
def check_settings() -> Found:
    try:
        conf.get_config()
    except ImproperlyConfigured as error:
        yield checks.Error(str(error), hint="Correct DELAYQ in the settings.", id="delayq.E001")
        return
    try:
        _has_redis()
    except ImproperlyConfigured as error:
        yield checks.Error(str(error), hint=_NO_ALIAS, id="delayq.E002")


def _has_redis() -> bool:
    """Return whether the settings use Redis; raise ImproperlyConfigured if the alias has no usable address."""
    return conf.get_config().mirror and bool(index.build_connector(timeout_seconds=1))


@_check
def check_alias() -> Found:
    if not _has_redis():
        return
    config = conf.get_config()
    if redis_connection.has_ignored_sentinels():
        message = f"The cache {config.redis!r} names SENTINELS, but its connection factory asks none."
        hint = "Set OPTIONS['CONNECTION_FACTORY'] to 'django_redis.pool.SentinelConnectionFactory'."
        yield checks.Error(message, hint=hint, id="delayq.E002")
    for name in redis_connection.find_sharing():
        message = (
            f"The cache {name!r} is in the same Redis database as the schedules of django-delayq ({config.redis!r})."
        )
        hint = "cache.clear() empties all of it, whatever its KEY_PREFIX: give one of them another database or server."
        yield checks.Warning(message, hint=hint, id="delayq.W001")
    if redis_connection.is_cluster() and all(config.get_shard_count(queue) == 1 for queue in config.queues):
        message = "DELAYQ['SHARDS'] is 1, so each queue is on only one node of the Redis Cluster."
        hint = "Set SHARDS to the number of masters or a multiple of it."
        yield checks.Warning(message, hint=hint, id="delayq.W004")


@_check
def check_tasks() -> Found:
    for each in registry.list_broken_modules():
        leave_out = f"leave the app out: DELAYQ['TASK_MODULES'] = {{'*': ['tasks'], {each.app!r}: []}}."
        if each.package:
            message = f"The tasks of {each.app} are left out: {each.module} needs a package that is not installed."
            hint = f"Install {each.package}, or {leave_out}"
            yield checks.Warning(f"{message} {each.reason}", hint=hint, id="delayq.W005")
        else:
            hint = f"Correct the module. If the app is not yours, {leave_out}"
            yield checks.Error(f"{each}", hint=hint, id="delayq.E003")


@_check
def check_task_aliases() -> Found:
    tasks, found, aliases = registry.get_tasks(), list[str](), conf.get_config().task_aliases
    for old, new in aliases.items():
        if old in tasks:
            found.append(f"{old!r} is itself a task, so the alias has no effect")
        elif new in aliases:
            found.append(f"{old!r} leads to {new!r}, which is an alias too, and only one alias is followed")
        elif new not in tasks and not registry.find_broken(new):
            found.append(f"{old!r} leads to {new!r}, which is not a @task function of an installed app")
    if found:
        hint = "Map each former path directly to the present path of a task, and remove the other entries."
        yield checks.Error(f"DELAYQ['TASK_ALIASES']: {'; '.join(found)}.", hint=hint, id="delayq.E005")


@_check
def check_time_zones() -> Found:
    if not zone.has_data():
        yield checks.Warning(f"{zone.NO_DATA} Pages of Django's admin fail.", hint=zone.INSTALL, id="delayq.W006")


@_check
def check_commands() -> Found:
    names = conf.get_config().commands
    commands = get_commands() if names else {}
    unknown = [f"{name!r}.{suggest_name(name, commands)}" for name in names if name not in commands]
    if unknown:
        message = f"DELAYQ['COMMANDS'] names management commands that no installed app has: {' '.join(unknown)}"
        hint = "Correct or remove the names, or add their apps to INSTALLED_APPS."
        yield checks.Warning(message, hint=hint, id="delayq.W004")


@_check
def check_alerts() -> Found:
    settings = conf.get_config().alerts
    if settings is None:
        return
    if settings.channels and find_alias(conf.get_config().queues) is None:
        message = "DELAYQ['ALERTS'] sends mail and webhooks as jobs, but no alias of TASKS accepts them."
        hint = 'Add one: "alerts": {"BACKEND": "django_delayq.backend.DelayQBackend"}.'
        yield checks.Error(message, hint=hint, id="delayq.E005")
    if settings.mail is True and not conf.list_admins():
        message = "DELAYQ['ALERTS']['MAIL'] is True, and ADMINS is empty, so the mail has no recipient."
        yield checks.Warning(message, hint="Fill ADMINS, or list addresses in MAIL.", id="delayq.W004")


@partial(_check, deploy=True)
def check_server() -> Found:
    """Inspect the servers, as a worker does at its start. An unavailable Redis is a warning, never an error."""
    if not _has_redis():
        return
    client = index.Broker(timeout_seconds=TIMEOUT_SECONDS, worker="checks")
    try:
        looks = probe.look(client)
    except BrokerError as error:
        hint = "Run the check again where Redis answers, or start a worker, which makes the same checks."
        yield checks.Warning(f"Redis could not be inspected: {error}", hint=hint, id="delayq.W002")
        return
    finally:
        client.close()
    for each in probe.find_problems(looks):
        yield LEVELS[each.level](each.message, each.hint, id=each.id)


_HINT = f'Set in DATABASES: "OPTIONS": {json.dumps(WANTED)}. For more than a few workers use PostgreSQL.'


@_check
def check_routers() -> Found:
    """Check that schedules, states, runs and tombstones are in one database, because they share transactions."""
    models = (Schedule, ScheduleState, Run, Tombstone)
    aliases = {model.__name__: router.db_for_write(model) for model in models}
    if len(set(aliases.values())) > 1:
        found = ", ".join(f"{name} to {alias!r}" for name, alias in aliases.items())
        message = f"DATABASE_ROUTERS send the models of django_delayq to several databases: {found}."
        hint = "Have db_for_write() return the same alias for every model with the app label django_delayq."
        yield checks.Error(message, hint=hint, id="delayq.E006")


@partial(_check, deploy=True)
def check_sqlite() -> Found:
    """Check that writers in web processes wait for workers on SQLite. Workers configure their own connections."""
    connection = connections[ledger.get_database()]
    missing = list_missing_options(connection) if conf.get_config().mirror else []
    if missing:
        message = (
            f'With these OPTIONS of the SQLite database {connection.alias!r} saves may fail with "database is locked" '
            f"while workers run: {', '.join(missing)}."
        )
        yield checks.Warning(message, hint=_HINT, id="delayq.W007")


@_check
def check_declared() -> Found:
    try:
        found = declared.collect()
    except Exception:  # wrong settings or a module that cannot be imported: other checks report it
        return
    for each in found.twice:
        message = f"The key {each.key!r} or name {each.values['name']!r}, declared in {each.module}, is declared twice."
        yield checks.Error(message, hint="Give each @periodic a name of its own: name='…'.", id="delayq.E007")
    for each in found.declared:
        try:
            schedule = build_declared(each)
            if schedule.at is None or schedule.at > utcnow():  # a past one may be stored already
                schedule.clean()
        except ValidationError as error:
            why = format_errors(error)
            message = f"The schedule {each.values['name']!r}, declared in {each.module}, cannot be saved: {why}"
            yield checks.Error(message, hint=f"Correct @periodic of {each.task}.", id="delayq.E007")
    for each in found.outside:
        message = f"The schedule {each.values['name']!r} of {each.task} is not synced: it is declared in {each.module}."
        hint = (
            "Declare it beside its task or in a module of DELAYQ['TASK_MODULES'], and offer the task in such a module: "
            "not every process imports other modules."
        )
        yield checks.Warning(message, hint=hint, id="delayq.W005")
