"""Connections to Redis for the project's django-redis alias, and what the aliases say. Never shares the alias' pool.

Note [Own pool, own timeouts, no retries]
django-redis keeps one pool per URL for the whole project, with the project's timeouts and redis-py's retries. A
retried EVALSHA runs twice, and a shared timeout is too long for a form or too short for a worker. So each use gets its
own pool, built by the alias' connection factory (which supports Sentinel, Cluster, TLS and passwords), with its own
timeouts and no retries; callers repeat commands. In a cluster, redis-py follows MOVED and ASK, waits out TRYAGAIN and
reloads the slots: none of that runs a script twice.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NoReturn
from urllib.parse import urlsplit

import redis
from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError
from django.core.exceptions import ImproperlyConfigured
from django_redis.pool import ConnectionFactory
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from .. import conf
from ..exceptions import BrokerError, BrokerUnavailable

#: Since redis-py 6.0 the number of retries is part of the retry object.
NO_RETRIES = {"cluster_error_retry_attempts": 0} if redis.VERSION < (6,) else {}
#: Errors after which a server will serve again by itself.
PASSING = (
    errors.ConnectionError,
    errors.TimeoutError,
    errors.ReadOnlyError,
    errors.ClusterDownError,
    errors.TryAgainError,
    errors.MasterDownError,
    OSError,
)
#: Other error replies with the same meaning. Redis 6.2 quotes those to a script inside its own error, after a hyphen.
NOT_NOW = re.compile("(^|-)(LOADING|BUSY|NOREPLICAS|MASTERDOWN|READONLY|MISCONF)")
FAILURES = errors.RedisError, errors.RedisClusterException, OSError


class DamagedKeys(BrokerError):
    """Another program wrote under our prefix: a key has the wrong type. Deleting it is safe, the mirror rebuilds it."""


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """`OPTIONS["CONNECTION_FACTORY"]` of a django-redis alias for a Redis Cluster.

    LOCATION names one or more nodes. `get_many` and the like fail across slots: use another alias as a cache.
    """

    _clusters: dict[str, Any] = {}
    _lock = Lock()

    def connect(self, url: str) -> Any:
        with self._lock:
            if url not in self._clusters:
                self._clusters[url] = self.build_client([url])
            return self._clusters[url]

    def disconnect(self, connection: Any) -> None:
        connection.disconnect_connection_pools()

    def build_client(self, urls: Sequence[str], **kwargs: Any) -> Any:
        """Return a new client; `kwargs` override the alias' arguments. Queries a node for the slots."""
        self.check(urls)
        params = self.make_connection_params(urls[0])
        del params["url"], params["parser_class"]
        parts = [dict(parse_url(url)) for url in urls]  # type: ignore[no-untyped-call]
        nodes = [ClusterNode(each.get("host", "localhost"), each.get("port", 6379)) for each in parts]  # type: ignore[no-untyped-call]
        tls = {"ssl": True} if urls[0].startswith("rediss") else {}
        given = {key: value for key, value in parts[0].items() if key not in ("host", "port", "db", "connection_class")}
        options = {**tls, **given, **params, **self.pool_cls_kwargs, **self.redis_client_cls_kwargs, **kwargs}
        return RedisCluster(startup_nodes=nodes, **options)

    def check(self, urls: Sequence[str]) -> None:
        """Raise ImproperlyConfigured unless these addresses can be nodes of a cluster. Opens no connection."""
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("redis", "rediss") or parse_url(url).get("db", 0) != 0:  # type: ignore[no-untyped-call]
                raise ImproperlyConfigured(
                    "Each node of a Redis Cluster is written as redis://host:6379 or rediss://host:6379, without a "
                    "database: a cluster has only number 0."
                )


def list_primaries(client: Any) -> list[dict[str, Any]]:
    """Return keyword arguments that direct a command to each primary; [{}] for a single server."""
    if not isinstance(client, RedisCluster):
        return [{}]
    return [{"target_nodes": node} for node in client.get_primaries()]  # type: ignore[no-untyped-call]


def find_node(client: Any, key: str) -> dict[str, Any]:
    """Return keyword arguments that direct a command to the node of a key; {} for a single server."""
    if not isinstance(client, RedisCluster):
        return {}
    return {"target_nodes": client.get_node_from_key(key)}  # type: ignore[no-untyped-call]


def close(client: Any) -> None:
    if isinstance(client, RedisCluster):
        client.close()
    else:
        client.connection_pool.disconnect()


def build_connector(*, timeout_seconds: float) -> Callable[[], Any]:
    """Return a factory of clients for the alias DELAYQ['REDIS']. Opens no connection.

    Raises BrokerUnavailable if this process does not use Redis, ImproperlyConfigured if the alias is not usable.
    """
    if not conf.get_config().mirror:
        raise BrokerUnavailable(f"Nothing is sent to Redis. {conf.explain_no_redis()}.")
    alias, timeouts = conf.get_config().redis, ("socket_timeout", "socket_connect_timeout")
    # see Note [Own pool, own timeouts, no retries]
    own = {**dict.fromkeys(timeouts, timeout_seconds), "retry": Retry(NoBackoff(), 0), "decode_responses": False}
    try:
        cache: Any = caches[alias]
        ours = cache.client
        factory, urls, options = ours.connection_factory, list(ours._server), dict(ours._options)
        if isinstance(factory, ClusterConnectionFactory):
            factory.check(urls)
            return partial(factory.build_client, urls, **own, **NO_RETRIES)
        if "SENTINELS" in options:  # else a dead sentinel would block its client
            options["SENTINEL_KWARGS"] = {**own, **(options.get("SENTINEL_KWARGS") or {})}
        factory = type(factory)(options)
        pool = factory.get_connection_pool(factory.make_connection_params(urls[0]))
        pool.connection_kwargs.update(**own, retry_on_timeout=False, retry_on_error=[])
        client = factory.redis_client_cls(connection_pool=pool, **factory.redis_client_cls_kwargs)
        return lambda: client
    except ValueError:  # redis-py reads the address; its message may quote a part of the password
        raise ImproperlyConfigured(
            f"The LOCATION of the cache {alias!r} is not the address of a Redis server. Write redis://host:6379/0; "
            "special characters of a password are percent-encoded."
        ) from None
    except InvalidCacheBackendError:
        raise ImproperlyConfigured(
            f"DELAYQ['REDIS'] is {alias!r}, but CACHES has no such alias ({', '.join(conf.list_cache_aliases())}). "
            "Add one with the BACKEND 'django_redis.cache.RedisCache'."
        ) from None
    except (NotImplementedError, AttributeError):
        raise ImproperlyConfigured(
            f"The cache {alias!r} is not a django-redis cache. Leave it, add another alias to CACHES with the BACKEND "
            "'django_redis.cache.RedisCache', and name that in DELAYQ['REDIS']."
        ) from None


def is_cluster() -> bool:
    return isinstance(_get_client().connection_factory, ClusterConnectionFactory)


def has_ignored_sentinels() -> bool:
    """Return whether our alias has SENTINELS, but a connection factory that ignores them."""
    client = _get_client()
    ours = type(client.connection_factory) in (ConnectionFactory, ClusterConnectionFactory)
    return ours and bool(client._options.get("SENTINELS"))


def find_sharing() -> list[str]:
    """Return the other aliases in the database of ours: their clear() would delete our keys."""
    own = conf.get_config().redis
    database = _list_databases(own)
    return [name for name in conf.list_cache_aliases() if name != own and database & _list_databases(name)]


def _get_client() -> Any:
    cache: Any = caches[conf.get_config().redis]
    return cache.client


def _list_databases(alias: str) -> set[tuple[object, ...]]:
    found: set[tuple[object, ...]] = set()
    with suppress(Exception):  # another alias may be broken in any way: Django reports it on use
        cache: Any = caches[alias]
        client = getattr(cache, "client", None)  # django-redis; Django's own backend has `_servers`
        urls = client._server if client is not None else cache._servers
        options = client._options if client is not None else cache._options
        kwargs = options.get("CONNECTION_POOL_KWARGS") or options
        for url in urls:
            with suppress(ValueError):  # an invalid one does not hide the others
                parts = dict(parse_url(url))  # type: ignore[no-untyped-call]
                where = parts.get("path") or (parts.get("host", "localhost"), parts.get("port", 6379))
                found.add((where, parts.get("db", kwargs.get("db", 0)), str(options.get("SENTINELS", ""))))
    return found


class translated:
    """Translates redis-py's errors into ours, so that no other layer imports redis: see `Broker`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FAILURES):
            raise_translated(error)


def raise_translated(error: Exception) -> NoReturn:
    text, by_cluster = str(error), isinstance(error, errors.RedisClusterException)
    if isinstance(error.__cause__ if by_cluster else error, errors.AuthenticationError):
        raise BrokerError(f"Redis refused the login: {text}. Check the URL in CACHES.") from error
    if by_cluster and (refusal := _find_refusal(error)):
        what = f"{refusal}. SECURITY.md lists what a cluster's user needs."
        raise BrokerError(f"Redis answered with an error: {what}") from error
    if by_cluster and "not enabled" in text:
        what = "LOCATION names no Redis Cluster: take CONNECTION_FACTORY out of the alias' OPTIONS."
        raise BrokerError(f"{text}. {what}") from error
    if isinstance(error, MasterNotFoundError):
        # redis-py adds each Sentinel's client with all its arguments, in some releases with the password: left out.
        what, _, clients = text.partition(" : ")
        text = f"{what}: {clients.rpartition(' - ')[2]}" if clients else what
        raise BrokerUnavailable(f"Redis cannot be used now: {text}") from None
    if isinstance(error, errors.ResponseError) and not isinstance(error, PASSING):
        if "WRONGTYPE" in text:
            raise DamagedKeys(f"A key under our prefix has a foreign type: {text}") from error
        if not NOT_NOW.search(text):
            raise BrokerError(f"Redis answered with an error: {text}") from error
    raise BrokerUnavailable(f"Redis cannot be used now: {text or type(error).__name__}") from error


def is_refusal(error: BrokerError) -> bool:
    """Return whether the server answers, but refuses permanently."""
    return isinstance(error.__cause__, errors.ResponseError) and not isinstance(error, BrokerUnavailable)


def _find_refusal(error: BaseException) -> BaseException | None:
    """Return the NoPermissionError behind this error: redis-py reports it as a server without cluster support."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, errors.NoPermissionError):
        link = link.__cause__ or link.__context__
    return link
