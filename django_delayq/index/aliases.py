"""The project's cache aliases, read without a connection."""

from typing import Any

from django.core.cache import caches
from django_redis.pool import ConnectionFactory
from redis.connection import parse_url

from .. import conf
from .cluster import ClusterConnectionFactory


def is_cluster() -> bool:
    """Return whether our alias connects to a Redis Cluster."""
    return isinstance(_client().connection_factory, ClusterConnectionFactory)


def ignores_sentinels() -> bool:
    """Return whether our alias has SENTINELS, but a connection factory that ignores them."""
    client = _client()
    ours = type(client.connection_factory) in (ConnectionFactory, ClusterConnectionFactory)
    return ours and bool(client._options.get("SENTINELS"))


def sharing() -> list[str]:
    """Return the other aliases in the database of ours: their clear() would delete our keys."""
    own = conf.get_config().redis
    database = _databases(caches[own])
    return [name for name in conf.cache_aliases() if name != own and database & _databases(_cache(name))]


def _client() -> Any:
    cache: Any = caches[conf.get_config().redis]
    return cache.client


def _cache(name: str) -> Any:
    try:
        return caches[name]
    except Exception:  # another alias may be broken in any way: Django reports it on use
        return None


def _databases(cache: Any) -> set[tuple[object, ...]]:
    """Return what identifies the databases of a cache; empty if it is not Redis."""
    try:
        client = getattr(cache, "client", None)  # django-redis; Django's own backend has `_servers`
        urls = client._server if client is not None else cache._servers
        options = client._options if client is not None else cache._options
    except Exception:
        return set()
    found: set[tuple[object, ...]] = set()
    for url in urls:
        try:
            parts = dict(parse_url(url))  # type: ignore[no-untyped-call]
        except ValueError:  # not an address of Redis
            continue
        where = parts.get("path") or (parts.get("host", "localhost"), parts.get("port", 6379))
        kwargs = options.get("CONNECTION_POOL_KWARGS") or options
        found.add((where, parts.get("db", kwargs.get("db", 0)), str(options.get("SENTINELS", ""))))
    return found
