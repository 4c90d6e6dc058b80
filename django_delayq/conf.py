"""The `DELAYQ` setting: validated, with defaults. The only module that reads Django's settings."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .redaction import redact_text

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
    batch_size: int = 100
    task_modules: tuple[str, ...] = ("tasks",)
    mirror: bool = True
    min_interval_seconds: float = 1
    history_days: int | None = None
    sync_after_migrate: bool = False
    accept_jobs_without_queue: bool = True

    def shards_of(self, queue: str) -> int:
        """Return the number of shards of a queue; a queue that SHARDS does not name has one."""
        if isinstance(self.shards, int):
            return self.shards
        return self.shards.get(queue, 1)


def get_config() -> Config:
    """Return the validated configuration.

    Raises:
        ImproperlyConfigured: An unknown key or a value of the wrong type; the message says what to write instead.
    """
    return _without_redis or _load()


_without_redis: Config | None = None


@contextmanager
def without_redis() -> Iterator[None]:
    """Let MIRROR be False meanwhile, whatever the settings say. For tests."""
    global _without_redis
    before, _without_redis = _without_redis, replace(_load(), mirror=False)
    try:
        yield
    finally:
        _without_redis = before


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
    "BATCH_SIZE": _number(1, MAX_BATCH_SIZE, whole=True),
    "TASK_MODULES": _names(re.compile(r"[A-Za-z_][\w.]*"), "a list of module names, such as ['tasks']"),
    "MIRROR": _boolean,
    "MIN_INTERVAL_SECONDS": _number(0.001, 86400),
    "HISTORY_DAYS": _days,
    "SYNC_AFTER_MIGRATE": _boolean,
    "ACCEPT_JOBS_WITHOUT_QUEUE": _boolean,
}


def _forget(*, setting: str, **kwargs: Any) -> None:
    global _without_redis
    if setting == "DELAYQ":
        _load.cache_clear()
        _without_redis = _without_redis and replace(_load(), mirror=False)
    elif setting == "USE_TZ":
        use_tz.cache_clear()
    elif setting in ("SECRET_KEY", "SECRET_KEY_FALLBACKS"):
        secret_keys.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_delayq.conf")
