"""The `DELAYQ` setting: validated, with defaults. The only module that reads Django's settings.

Note [No Redis in tests]
A test suite has a database of its own, but the Redis of the settings, where the workers of development wait. So nothing
is sent there while Django's test environment is set up, as its runner and pytest-django do it. What
`setup_test_environment()` keeps for its own end tells that, and nothing else does: a database may have any name, and
e-mail in memory or instrumented templates are found in development too. What a test starts has no such environment, but
inherits NO_REDIS, which stands there meanwhile.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import Field, dataclass, field, fields, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext_noop

from . import alert_settings
from . import setting_rules as rules

logger = logging.getLogger("django_delayq")

Value = TypeVar("Value")

#: The environment variable that, not empty, keeps a process from Redis. See Note [No Redis in tests].
NO_REDIS = "DELAYQ_NO_REDIS"
#: Whether this process was started with it. What it gets later is for those that it starts.
_INHERITED = bool(os.environ.get(NO_REDIS))
_NOT_MIRRORED = gettext_noop("DELAYQ['MIRROR'] is False")
_IN_A_TEST = gettext_noop("This is a test, and DELAYQ['REDIS_IN_TESTS'] is not True")
_IN_A_RUNNER = gettext_noop("A Runner of django_delayq.testing is active")
_STARTED_BY_A_TEST = gettext_noop("DELAYQ_NO_REDIS is in the environment, as tests set it for what they start")
_marked = _INHERITED
_logged: set[str] = set()
#: How many `without_redis` are under way.
_runners = 0
QUEUE_NAME = rules.QUEUE_NAME
PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
MAX_SHARDS = 4096
#: The layout of the database and of the index in Redis. See `mirror/layout.py`, Note [Releases of one layout].
LAYOUT = 1
#: Scripts unpack a whole batch onto Lua's stack, and larger batches only block Redis for longer.
MAX_BATCH_SIZE = 1000


def _setting(default: Value, rule: rules.Rule) -> Value:
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True, slots=True)
class Config:
    """What `settings.DELAYQ` says, with the defaults filled in. Durations are in the unit of their name."""

    redis: str = _setting("default", rules.ALIAS)
    prefix: str = _setting("delayq", rules.text(PREFIX, "1 to 64 characters of A-Z a-z 0-9 _ . : -"))
    queues: tuple[str, ...] = _setting(("default",), rules.QUEUES)
    #: For each queue where it is a mapping, whose values are held to the same rule.
    shards: int | Mapping[str, int] = _setting(1, rules.number(1, MAX_SHARDS, whole=True))
    lease_seconds: float = _setting(30, rules.number(1, 3600))
    max_reclaims: int = _setting(3, rules.number(0, 1000, whole=True))
    idle_cap_seconds: float = _setting(30, rules.number(0.05, 60))
    drain_seconds: float = _setting(25, rules.number(0, 3600))
    timeout_grace_seconds: float = _setting(10, rules.number(0, 3600))
    running_after_seconds: float = _setting(1, rules.number(0, 3600))
    batch_size: int = _setting(100, rules.number(1, MAX_BATCH_SIZE, whole=True))
    #: Of what an execution has logged and printed; 0: nothing is kept.
    max_output_bytes: int = _setting(64 * 1024, rules.number(0, 512 * 1024, whole=True))
    max_result_bytes: int = _setting(64 * 1024, rules.number(1024, 64 * 1024 * 1024, whole=True))
    #: By name or label of an app where it is a mapping, and `*` for the rest.
    task_modules: tuple[str, ...] | Mapping[str, Sequence[str]] = _setting(("tasks",), rules.MODULES)
    #: Former paths of tasks, and what they are called now. See `registry.find_task`.
    task_aliases: Mapping[str, str] = field(default_factory=dict, metadata={"rule": rules.RENAMED})
    mirror: bool = _setting(True, rules.BOOLEAN)
    redis_in_tests: bool = _setting(False, rules.BOOLEAN)
    min_interval_seconds: float = _setting(1, rules.number(0.001, 86400))
    #: By outcome where it is a mapping; None and what it does not name is kept for ever.
    history_days: int | Mapping[str, int | None] | None = _setting(None, rules.HISTORY)
    sync_after_migrate: bool = _setting(False, rules.BOOLEAN)
    #: Whoever has it may read the metrics of the web view; empty: nobody.
    metrics_token: str = field(default="", repr=False, metadata={"rule": rules.TOKEN})
    traces: bool = _setting(False, rules.TRACES)
    commands: tuple[str, ...] = _setting((), rules.COMMANDS)
    command_memory_mb: int | None = _setting(None, rules.MEMORY)
    #: None: nobody looks, nobody is told, and nothing is pinged.
    alerts: alert_settings.AlertSettings | None = None

    def days_kept(self, outcome: str) -> int | None:
        """Return for how many days runs of this outcome are kept; None for ever."""
        days = self.history_days
        return days.get(outcome) if isinstance(days, Mapping) else days

    def shard_count(self, queue: str) -> int:
        """Return the number of shards of a queue; a queue that SHARDS does not name has one."""
        if isinstance(self.shards, int):
            return self.shards
        return self.shards.get(queue, 1)

    def modules_of(self, app: AppConfig | None = None) -> Sequence[str]:
        """Return the names of the modules of an app that offer tasks; without one those of the most."""
        modules = self.task_modules
        if not isinstance(modules, Mapping):
            return modules
        names = (app.name, app.label, rules.REST) if app else (rules.REST,)
        return next((modules[name] for name in names if name in modules), ("tasks",))


def get_config() -> Config:
    """Return the validated configuration. Its `mirror` is False wherever `why_no_redis` has a reason.

    Raises:
        ImproperlyConfigured: An unknown key or a value of the wrong type; the message says what to write instead.
    """
    return _load_without_redis() if why_no_redis() else _load()


def mirrors() -> bool:
    """Say whether the settings let schedules be mirrored; what goes with that in the database is also done in tests."""
    return _load().mirror


def why_no_redis() -> str:
    """Return why this process sends Redis nothing, '' where it may. The only place where that is chosen.

    A reason is logged once; what is started from a test inherits it. The text is to be translated where it is shown.

    Raises:
        ImproperlyConfigured: See `get_config`.
    """
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
    """Say whether this process is a test suite's. See Note [No Redis in tests]."""
    return hasattr(getattr(sys.modules.get("django.test.utils"), "_TestState", None), "saved_data")


@contextmanager
def without_redis() -> Iterator[None]:
    """Send Redis nothing meanwhile, whatever the settings are. For tests."""
    global _runners
    _runners += 1
    try:
        yield
    finally:
        _runners -= 1


@lru_cache(maxsize=1)
def use_tz() -> bool:
    """Say whether the project stores aware datetimes."""
    return bool(settings.USE_TZ)


def project_timezone() -> str:
    """Return the name of the project's zone, the default for a new schedule."""
    return str(settings.TIME_ZONE or "UTC")


def mail_from() -> tuple[str, str]:
    """Return who mail to the admins comes from, and what its subject begins with."""
    return str(settings.SERVER_EMAIL), str(settings.EMAIL_SUBJECT_PREFIX)


def admins() -> list[str]:
    """Return the addresses of ADMINS, which Django 5.2 has as pairs."""
    return [each if isinstance(each, str) else each[1] for each in settings.ADMINS]


def settings_module() -> str:
    """Return the module of the project's settings, '' where they were made without one."""
    return str(getattr(settings, "SETTINGS_MODULE", "") or "")


def cache_aliases() -> list[str]:
    """Return the configured cache aliases, for messages."""
    return sorted(settings.CACHES)


def silenced_checks() -> list[str]:
    """Return the ids of the system checks that the project does not want to hear of."""
    return list(settings.SILENCED_SYSTEM_CHECKS)


@lru_cache(maxsize=1)
def _load() -> Config:
    raw = getattr(settings, "DELAYQ", {})
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"DELAYQ must be a dict, not {type(raw).__name__}.")
    readers = {item.name.upper(): partial(_read, item) for item in fields(Config)}
    config = Config(**rules.read_all(raw, "DELAYQ", readers))
    _check_queues(config)
    return config


def _read(item: "Field[Any]", value: Any) -> Any:
    key = item.name.upper()
    if key == "ALERTS":
        return None if value is None else alert_settings.parse(value)
    rule: rules.Rule = item.metadata["rule"]
    if key == "SHARDS" and isinstance(value, Mapping):
        for queue, count in value.items():
            rule.check(f"[{key!r}][{queue!r}]", count)
        return dict(value)
    rule.check(f"[{key!r}]", value)
    return tuple(value) if isinstance(value, list) else value


def _check_queues(config: Config) -> None:
    """Refuse shards of queues that there are not."""
    named = set(config.shards) - set(config.queues) if isinstance(config.shards, Mapping) else ()
    if named:
        raise ImproperlyConfigured(
            f"DELAYQ['SHARDS'] names {', '.join(map(repr, sorted(map(str, named))))}, and DELAYQ['QUEUES'] has "
            f"{', '.join(config.queues)}. Add the queue there or remove it here."
        )


@lru_cache(maxsize=1)
def _load_without_redis() -> Config:
    return replace(_load(), mirror=False)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DELAYQ":
        _load.cache_clear()
        _load_without_redis.cache_clear()
        with suppress(ImproperlyConfigured):  # raised where it is asked for
            why_no_redis()
    elif setting == "USE_TZ":  # asked several times for every job
        use_tz.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_delayq.conf")
