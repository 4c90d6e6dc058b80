"""The `DELAYQ` setting: validated, with defaults. The only module that reads Django's settings.

Note [Tests send nothing to Redis]
A test suite has its own database, but shares the configured Redis with development workers. So nothing is sent to Redis
while Django's test environment is set up. Its only sign is `_TestState.saved_data`, which `setup_test_environment()`
sets. A subprocess of a test has no such environment, but inherits NO_REDIS, which tests set.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext_noop

from . import rules
from .alerts import AlertSettings
from .alerts import parse as parse_alerts
from .rules import setting

logger = logging.getLogger("django_delayq")

#: Environment variable: if it is not empty, a process sends nothing to Redis. See Note [Tests send nothing to Redis].
NO_REDIS = "DELAYQ_NO_REDIS"
#: Whether this process was started with NO_REDIS. A later value is for its subprocesses.
_INHERITED = bool(os.environ.get(NO_REDIS))
_NOT_MIRRORED = gettext_noop("DELAYQ['MIRROR'] is False")
_IN_A_TEST = gettext_noop("This is a test, and DELAYQ['REDIS_IN_TESTS'] is not True")
_IN_A_RUNNER = gettext_noop("A Runner of django_delayq.testing is active")
_STARTED_BY_A_TEST = gettext_noop("DELAYQ_NO_REDIS is in the environment, as tests set it for what they start")
_marked = _INHERITED
_logged: set[str] = set()
#: Number of active `without_redis` blocks.
_runners = 0
QUEUE_NAME = rules.QUEUE_NAME
MAX_SHARDS = rules.MAX_SHARDS
#: The layout of the database and of the index in Redis. See `sync/layout.py`, Note [Equal layouts coexist].
LAYOUT = 1


@dataclass(frozen=True, slots=True)
class Config:
    """The validated `settings.DELAYQ` with defaults. Durations are in the unit of their name."""

    redis: str = setting("default", rules.ALIAS)
    prefix: str = setting("delayq", rules.PREFIX)
    queues: tuple[str, ...] = setting(("default",), rules.QUEUES)
    #: A mapping has the number for each queue.
    shards: int | Mapping[str, int] = setting(1, rules.SHARDS)
    lease_seconds: float = setting(30, rules.number(1, 3600))
    drain_seconds: float = setting(25, rules.number(0, 3600))
    #: Maximum stored bytes of what an execution logs and prints; 0 stores nothing.
    max_output_bytes: int = setting(64 * 1024, rules.number(0, 512 * 1024, whole=True))
    max_result_bytes: int = setting(64 * 1024, rules.number(1024, 64 * 1024 * 1024, whole=True))
    #: A mapping is by name or label of an app, with `*` for the rest.
    task_modules: tuple[str, ...] | Mapping[str, Sequence[str]] = setting(("tasks",), rules.MODULES)
    #: Former paths of tasks and their present paths. See `registry.find_task`.
    task_aliases: Mapping[str, str] = field(default_factory=dict, metadata={"read": rules.RENAMED.read})
    mirror: bool = setting(True, rules.BOOLEAN)
    redis_in_tests: bool = setting(False, rules.BOOLEAN)
    #: A mapping is by outcome. None, or an outcome that is missing, is kept for ever.
    history_days: int | Mapping[str, int | None] | None = setting(None, rules.HISTORY)
    sync_after_migrate: bool = setting(False, rules.BOOLEAN)
    #: Bearer token for the metrics view; empty closes that view.
    metrics_token: str = setting("", rules.TOKEN, repr=False)
    traces: bool = setting(False, rules.TRACES)
    commands: tuple[str, ...] = setting((), rules.COMMANDS)
    command_memory_mb: int | None = setting(None, rules.MEMORY)
    #: None: no checks, no messages and no pings.
    alerts: AlertSettings | None = field(default=None, metadata={"read": lambda name, value: parse_alerts(value, name)})

    # Constants, which settings do not change. Tests shorten them.
    #: Take-overs after which an execution is recorded as lost.
    max_reclaims: int = 3
    #: Longest wait of a single idle worker between two looks at Redis, in seconds, and so the delay after a lost hint.
    #: Several workers share the looks: see `worker/timers.py`.
    idle_cap_seconds: float = 30
    #: Time in which a task can react to its timeout, in seconds.
    timeout_grace_seconds: float = 10
    #: Running time after which an execution gets a row with the status `running`, in seconds.
    running_after_seconds: float = 1
    #: Entries per claim, per write to the ledger and per settlement. Larger batches block Redis for longer.
    batch_size: int = 100
    #: Shortest interval that a saved schedule may have, in seconds.
    min_interval_seconds: float = 1

    def get_days_kept(self, outcome: str) -> int | None:
        days = self.history_days
        return days.get(outcome) if isinstance(days, Mapping) else days

    def get_shard_count(self, queue: str) -> int:
        return self.shards if isinstance(self.shards, int) else self.shards.get(queue, 1)

    def get_modules(self, app: AppConfig | None = None) -> Sequence[str]:
        """Return the names of an app's task modules, or the default names without an app."""
        modules = self.task_modules
        if not isinstance(modules, Mapping):
            return modules
        names = (app.name, app.label, rules.REST) if app else (rules.REST,)
        return next((modules[name] for name in names if name in modules), ("tasks",))


def get_config() -> Config:
    """Return the validated configuration, or raise ImproperlyConfigured. `mirror` is False if `explain_no_redis()`."""
    return _load_without_redis() if explain_no_redis() else _load()


def can_mirror() -> bool:
    """Return whether the settings enable the sync. In tests it still writes its part of the database."""
    return _load().mirror


def explain_no_redis() -> str:
    """Return why this process sends nothing to Redis, '' if it may. No other code decides this. Translate the text."""
    global _marked
    config, testing = _load(), ""
    if not config.redis_in_tests:
        testing = _IN_A_TEST if is_test() else _STARTED_BY_A_TEST if _INHERITED else ""
    if bool(testing) != _marked:
        _marked = bool(testing)
        if testing:
            os.environ[NO_REDIS] = "1"
        else:
            os.environ.pop(NO_REDIS, None)
    why = (testing if config.mirror else _NOT_MIRRORED) or (_IN_A_RUNNER if _runners else "")
    if why and why not in _logged:
        _logged.add(why)
        logger.info("Nothing is sent to Redis. %s.", why)
    return why


def is_test() -> bool:
    """Return whether this process runs a test suite. See Note [Tests send nothing to Redis]."""
    return hasattr(getattr(sys.modules.get("django.test.utils"), "_TestState", None), "saved_data")


@contextmanager
def without_redis() -> Iterator[None]:
    """Send nothing to Redis within this block, whatever the settings say. For tests."""
    global _runners
    _runners += 1
    try:
        yield
    finally:
        _runners -= 1


@lru_cache(maxsize=1)
def is_tz_on() -> bool:
    return bool(settings.USE_TZ)


def get_project_timezone() -> str:
    return str(settings.TIME_ZONE or "UTC")


def get_mail_from() -> tuple[str, str]:
    return str(settings.SERVER_EMAIL), str(settings.EMAIL_SUBJECT_PREFIX)


def list_admins() -> list[str]:
    """Return the addresses of ADMINS, which are pairs in Django 5.2."""
    return [each if isinstance(each, str) else each[1] for each in settings.ADMINS]


def get_settings_module() -> str:
    return str(getattr(settings, "SETTINGS_MODULE", "") or "")


def list_cache_aliases() -> list[str]:
    return sorted(settings.CACHES)


def list_silenced_checks() -> list[str]:
    return list(settings.SILENCED_SYSTEM_CHECKS)


@lru_cache(maxsize=1)
def _load() -> Config:
    config = Config(**rules.read_settings(Config, getattr(settings, "DELAYQ", {}), "DELAYQ"))
    named = set(config.shards) - set(config.queues) if isinstance(config.shards, Mapping) else ()
    if named:
        raise ImproperlyConfigured(
            f"DELAYQ['SHARDS'] names {', '.join(map(repr, sorted(map(str, named))))}, and DELAYQ['QUEUES'] has "
            f"{', '.join(config.queues)}. Add the queue to QUEUES, or remove it from SHARDS."
        )
    return config


@lru_cache(maxsize=1)
def _load_without_redis() -> Config:
    return replace(_load(), mirror=False)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DELAYQ":
        _load.cache_clear()
        _load_without_redis.cache_clear()
        with suppress(ImproperlyConfigured):  # raised at the next use
            explain_no_redis()
    elif setting == "USE_TZ":  # read several times per job
        is_tz_on.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_delayq.conf")
