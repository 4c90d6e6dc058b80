"""The `DELAYQ` setting: validated, with defaults. The only module that reads Django's settings.

Note [No Redis in tests]
A test suite has a database of its own, but the Redis of the settings, where the workers of development wait. So nothing
is sent there while Django's test environment is set up, as its runner and pytest-django do it. What
`setup_test_environment()` keeps for its own end tells that, and nothing else does: a database may have any name, and
e-mail in memory or instrumented templates are found in development too. What a test starts has no such environment, but
inherits NO_REDIS, which stands there meanwhile.
"""

import difflib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.translation import gettext_noop

from .redaction import redact_text

logger = logging.getLogger("django_delayq")

#: The environment variable that, not empty, keeps a process from Redis. See Note [No Redis in tests].
NO_REDIS = "DELAYQ_NO_REDIS"
#: Whether this process was started with it. What it gets later is for those that it starts.
_INHERITED = bool(os.environ.get(NO_REDIS))
_NOT_MIRRORED = gettext_noop("DELAYQ['MIRROR'] is False")
_IN_A_TEST = gettext_noop("This is a test, and DELAYQ['REDIS_IN_TESTS'] is not True")
_IN_A_RUNNER = gettext_noop("A Runner of django_delayq.testing is active")
_STARTED_BY_A_TEST = gettext_noop("DELAYQ_NO_REDIS is in the environment, as tests set it for what they start")
_marked = _INHERITED
_told: set[str] = set()
#: How many `without_redis` are under way.
_runners = 0
QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
MAX_SHARDS = 4096
#: Scripts unpack a whole batch onto Lua's stack, and larger batches only block Redis for longer.
MAX_BATCH_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Config:
    """What `settings.DELAYQ` says, with the defaults filled in. Durations are in the unit of their name."""

    redis: str = "default"
    prefix: str = "delayq"
    queues: tuple[str, ...] = ("default",)
    shards: int | Mapping[str, int] = 1
    lease_seconds: float = 30
    max_reclaims: int = 3
    idle_cap_seconds: float = 5
    drain_seconds: float = 25
    timeout_grace_seconds: float = 10
    running_after_seconds: float = 1
    batch_size: int = 100
    max_result_bytes: int = 64 * 1024
    task_modules: tuple[str, ...] = ("tasks",)
    mirror: bool = True
    redis_in_tests: bool = False
    min_interval_seconds: float = 1
    history_days: int | None = None
    sync_after_migrate: bool = False
    accept_jobs_without_queue: bool = True

    def shard_count(self, queue: str) -> int:
        """Return the number of shards of a queue; a queue that SHARDS does not name has one."""
        if isinstance(self.shards, int):
            return self.shards
        return self.shards.get(queue, 1)


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

    A reason is logged once, and what is started from a test is told. The text is to be translated where it is shown.

    Raises:
        ImproperlyConfigured: See `get_config`.
    """
    config, testing = _load(), ""
    if not config.redis_in_tests:
        testing = _IN_A_TEST if _is_test() else _STARTED_BY_A_TEST if _INHERITED else ""
    if bool(testing) != _marked:
        _mark(bool(testing))
    why = (testing if config.mirror else _NOT_MIRRORED) or (_IN_A_RUNNER if _runners else "")
    if why and why not in _told:
        _told.add(why)
        logger.info("Nothing is sent to Redis, and jobs stay in memory. %s.", why)
    return why


def _is_test() -> bool:
    """See Note [No Redis in tests]."""
    return hasattr(getattr(sys.modules.get("django.test.utils"), "_TestState", None), "saved_data")


def _mark(testing: bool) -> None:
    """Tell the processes that are started from here."""
    global _marked
    _marked = testing
    if testing:
        os.environ[NO_REDIS] = "1"
    else:
        os.environ.pop(NO_REDIS, None)


@contextmanager
def without_redis() -> Iterator[None]:
    """Send Redis nothing meanwhile, whatever the settings say. For tests."""
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


@lru_cache(maxsize=1)
def secret_keys() -> tuple[str | bytes, ...]:
    """Return the key that signs, then those that are still accepted."""
    return (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


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
    names = {field.name.upper(): field.name for field in fields(Config)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in names:
            raise ImproperlyConfigured(_unknown_key(str(key), names))
        values[names[key]] = _VALIDATORS[key](key, value)
    config = Config(**values)
    if isinstance(config.shards, Mapping):
        strangers = sorted(set(config.shards) - set(config.queues))
        if strangers:
            raise ImproperlyConfigured(
                f"DELAYQ['SHARDS'] names the queue {strangers[0]!r}, which is not in DELAYQ['QUEUES'] "
                f"({', '.join(config.queues)}). Add it there or remove it here."
            )
    return config


@lru_cache(maxsize=1)
def _load_without_redis() -> Config:
    return replace(_load(), mirror=False)


def _unknown_key(key: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key.upper(), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"DELAYQ has an unknown key {key!r}.{hint} Known keys: {', '.join(sorted(names))}."


def _fail(key: str, value: object, wanted: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"DELAYQ[{key!r}] must be {wanted}, not {redact_text(repr(value))}.")


def _name(pattern: re.Pattern[str], wanted: str) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _fail(key, value, wanted)
        return value

    return check


def _number(low: float, high: float, *, whole: bool = False) -> Callable[[str, Any], Any]:
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    wanted = f"a{' whole' if whole else ''} number from {low:g} to {high:g}"

    def check(key: str, value: Any) -> Any:
        number: Any = value if isinstance(value, kinds) and not isinstance(value, bool) else None
        if number is None or not low <= number <= high:
            raise _fail(key, value, wanted)
        return number

    return check


def _names(pattern: re.Pattern[str], wanted: str) -> Callable[[str, Any], tuple[str, ...]]:
    def check(key: str, value: Any) -> tuple[str, ...]:
        good = isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value)
        if not good or not all(pattern.fullmatch(v) for v in value) or len(set(value)) != len(value):
            raise _fail(key, value, wanted)
        return tuple(value)

    return check


def _shards(key: str, value: Any) -> int | dict[str, int]:
    number = _number(1, MAX_SHARDS, whole=True)
    if isinstance(value, Mapping):
        for queue, count in value.items():
            try:
                number(key, count)
            except ImproperlyConfigured as error:
                raise ImproperlyConfigured(str(error).replace("']", f"'][{queue!r}]", 1)) from None
        return {str(queue): int(count) for queue, count in value.items()}
    return int(number(key, value))


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(key, value, "True or False")
    return value


def _days(key: str, value: Any) -> int | None:
    return None if value is None else int(_number(1, 36500, whole=True)(key, value))


_VALIDATORS: dict[str, Callable[[str, Any], Any]] = {
    "REDIS": _name(re.compile(r"(?!\w+://).+"), "the alias of a django-redis cache in CACHES (no address)"),
    "PREFIX": _name(PREFIX, "1 to 64 characters of A-Z a-z 0-9 _ . : -"),
    "QUEUES": _names(QUEUE_NAME, "a list of different queue names, each 1 to 64 characters of A-Z a-z 0-9 _ . -"),
    "SHARDS": _shards,
    "LEASE_SECONDS": _number(1, 3600),
    "MAX_RECLAIMS": _number(0, 1000, whole=True),
    "IDLE_CAP_SECONDS": _number(0.05, 60),
    "DRAIN_SECONDS": _number(0, 3600),
    "TIMEOUT_GRACE_SECONDS": _number(0, 3600),
    "RUNNING_AFTER_SECONDS": _number(0, 3600),
    "BATCH_SIZE": _number(1, MAX_BATCH_SIZE, whole=True),
    "MAX_RESULT_BYTES": _number(1024, 64 * 1024 * 1024, whole=True),
    "TASK_MODULES": _names(re.compile(r"[A-Za-z_][\w.]*"), "a list of module names, such as ['tasks']"),
    "MIRROR": _boolean,
    "REDIS_IN_TESTS": _boolean,
    "MIN_INTERVAL_SECONDS": _number(0.001, 86400),
    "HISTORY_DAYS": _days,
    "SYNC_AFTER_MIGRATE": _boolean,
    "ACCEPT_JOBS_WITHOUT_QUEUE": _boolean,
}


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DELAYQ":
        _load.cache_clear()
        _load_without_redis.cache_clear()
        with suppress(ImproperlyConfigured):  # whoever asks is told
            why_no_redis()
    elif setting == "USE_TZ":
        use_tz.cache_clear()
    elif setting in ("SECRET_KEY", "SECRET_KEY_FALLBACKS"):
        secret_keys.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_delayq.conf")
