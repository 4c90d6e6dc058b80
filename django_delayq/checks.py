"""System checks: what can be known to be wrong before anything runs. Only `check --deploy` opens a connection.

Every id, with what to do, stands in the README's table.
"""

from collections.abc import Iterator
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from . import broker, checks_databases, checks_declared, conf, registry
from .broker import aliases, engine, probe
from .exceptions import BrokerError
from .jobs.aliases import keepers_of

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
    checks_databases.connect()
    checks_declared.connect()


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
    if aliases.is_cluster() and all(config.shards_of(queue) == 1 for queue in config.queues):
        message = "DELAYQ['SHARDS'] is 1, so that each queue is on one node of the Redis Cluster only."
        hint = "Set SHARDS to the number of masters or a multiple of it."
        yield checks.Warning(message, hint=hint, id="delayq.W009")
