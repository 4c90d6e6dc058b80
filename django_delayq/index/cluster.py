"""Redis Cluster for django-redis, which has no connection factory for it.

Note [The cluster client does not retry commands]
redis-py's cluster client maps slots to nodes, follows MOVED and ASK, waits out TRYAGAIN, and reloads the slots when a
node does not answer or replies CLUSTERDOWN. None of that runs a script twice. Its own retries would, so they are off,
as for a single server: the caller knows what may be repeated.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import redis
from django.core.exceptions import ImproperlyConfigured
from django_redis.pool import ConnectionFactory
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url

#: Since redis-py 6.0 the number of retries is part of the retry object.
NO_RETRIES = {"cluster_error_retry_attempts": 0} if redis.VERSION < (6,) else {}


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """`OPTIONS["CONNECTION_FACTORY"]` of a django-redis alias for a Redis Cluster.

    LOCATION names one or more nodes; the others are discovered. A cluster only has database 0. Commands of
    django-redis on several keys (`get_many`) do not work across slots: use another alias as a cache.
    """

    _clusters: dict[str, Any] = {}
    _lock = Lock()

    def connect(self, url: str) -> Any:
        """Return this process' client for this address, as django-redis expects; raises what `cluster` does."""
        with self._lock:
            if url not in self._clusters:
                self._clusters[url] = self.cluster([url])
            return self._clusters[url]

    def disconnect(self, connection: Any) -> None:
        """Close the connections of a client; it opens new ones when it is used again."""
        connection.disconnect_connection_pools()

    def cluster(self, urls: Sequence[str], **kwargs: Any) -> Any:
        """Return a new client; `kwargs` override the alias' arguments. Queries a node for the slots.

        Raises:
            ImproperlyConfigured: See `check`.
            redis.exceptions.RedisClusterException: No node answers.
        """
        self.check(urls)
        params = self.make_connection_params(urls[0])
        del params["url"], params["parser_class"]
        parts = [_parts(url) for url in urls]
        nodes = [ClusterNode(each.get("host", "localhost"), each.get("port", 6379)) for each in parts]  # type: ignore[no-untyped-call]
        tls = {"ssl": True} if urls[0].startswith("rediss") else {}
        given = {key: value for key, value in parts[0].items() if key not in ("host", "port", "db", "connection_class")}
        options = {**tls, **given, **params, **self.pool_cls_kwargs, **self.redis_client_cls_kwargs, **kwargs}
        return RedisCluster(startup_nodes=nodes, **options)

    def check(self, urls: Sequence[str]) -> None:
        """Raise ImproperlyConfigured unless these addresses can be nodes of a cluster. Opens no connection."""
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("redis", "rediss") or _parts(url).get("db", 0) != 0:
                raise ImproperlyConfigured(
                    "Each node of a Redis Cluster is written as redis://host:6379 or rediss://host:6379, without a "
                    "database: a cluster has only number 0."
                )


def _parts(url: str) -> dict[str, Any]:
    return dict(parse_url(url))  # type: ignore[no-untyped-call]


def primaries(client: Any) -> list[dict[str, Any]]:
    """Return keyword arguments that direct a command to each primary; [{}] for a single server."""
    if not isinstance(client, RedisCluster):
        return [{}]
    return [{"target_nodes": node} for node in client.get_primaries()]  # type: ignore[no-untyped-call]


def node_of(client: Any, key: str) -> dict[str, Any]:
    """Return keyword arguments that direct a command to the node of a key; {} for a single server."""
    if not isinstance(client, RedisCluster):
        return {}
    return {"target_nodes": client.get_node_from_key(key)}  # type: ignore[no-untyped-call]


def pipelines(client: Any) -> bool:
    """Return whether scripts can be pipelined: redis-py's cluster client refuses EVALSHA in pipelines."""
    return not isinstance(client, RedisCluster)


def close(client: Any) -> None:
    """Close all connections of a client of our own."""
    if isinstance(client, RedisCluster):
        client.close()
    else:
        client.connection_pool.disconnect()
