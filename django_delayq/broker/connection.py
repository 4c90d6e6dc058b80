"""Connections to Redis, taken from the project's django-redis alias. Never shares the alias' pool.

Note [A client of our own]
django-redis keeps one pool per URL for the whole project, with the project's timeouts and redis-py's retries. A retried
EVALSHA is executed twice, and a shared timeout is either too long for a form or too short for a worker. So each use
gets its own pool, built by the alias' own connection factory (which knows Sentinel, TLS, passwords), with its own
timeouts and no retry: the worker's loop repeats a claim under the same request id, everything else is repeated by its
caller.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from .. import conf
from ..exceptions import BrokerError, BrokerUnavailable, DamagedKeys

#: What a server answers that will serve again by itself.
PASSING = (
    errors.ConnectionError,
    errors.TimeoutError,
    errors.ReadOnlyError,
    errors.ClusterDownError,
    errors.TryAgainError,
    errors.MasterDownError,
    OSError,
)


def connect(*, timeout_seconds: float) -> Any:
    """Return a client of our own for the alias that DELAYQ['REDIS'] names. Opens no connection yet.

    Raises:
        ImproperlyConfigured: The alias does not exist or is not django-redis.
    """
    alias = conf.get_config().redis
    try:
        get_redis_connection(alias)
        cache: Any = caches[alias]
        cache_client = cache.client
        factory, url = cache_client.connection_factory, cache_client._server[0]
    except ValueError as error:  # redis-py reads the address
        raise ImproperlyConfigured(f"The LOCATION of the cache {alias!r} is no address of a Redis: {error}") from None
    except InvalidCacheBackendError:
        raise ImproperlyConfigured(
            f"DELAYQ['REDIS'] is {alias!r}, but CACHES has no such alias ({', '.join(conf.cache_aliases())}). "
            "Add one with the BACKEND 'django_redis.cache.RedisCache'."
        ) from None
    except (NotImplementedError, AttributeError):
        raise ImproperlyConfigured(
            f"The cache {alias!r} is not a django-redis cache: set its BACKEND to 'django_redis.cache.RedisCache', "
            "or name another alias in DELAYQ['REDIS']."
        ) from None
    pool = factory.get_connection_pool(factory.make_connection_params(url))
    pool.connection_kwargs.update(
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        retry_on_error=[],
        decode_responses=False,
    )
    return factory.redis_client_cls(connection_pool=pool, **factory.redis_client_cls_kwargs)


@contextmanager
def translated() -> Iterator[None]:
    """Turn redis-py's errors into ours, so that no other layer imports redis.

    Raises:
        BrokerUnavailable: Trying again later is right.
        DamagedKeys: A key of ours has a foreign type.
        BrokerError: Any other error reply.
    """
    try:
        yield
    except errors.AuthenticationError as error:
        raise BrokerError(f"Redis refused the login: {error}. Check the URL in CACHES.") from error
    except PASSING as error:
        raise BrokerUnavailable(f"Redis cannot be used now: {error or type(error).__name__}") from error
    except errors.ResponseError as error:
        text = str(error)
        if "WRONGTYPE" in text:
            raise DamagedKeys(f"A key under our prefix has a foreign type: {text}") from error
        if text.startswith(("LOADING", "BUSY", "NOREPLICAS", "MASTERDOWN", "READONLY")) or "-READONLY" in text:
            raise BrokerUnavailable(f"Redis cannot be used now: {text}") from error
        raise BrokerError(f"Redis answered with an error: {text}") from error
    except errors.RedisError as error:
        raise BrokerUnavailable(f"Redis cannot be used now: {error}") from error
