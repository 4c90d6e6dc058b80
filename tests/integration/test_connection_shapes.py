"""Clients of our own for a cluster and behind Sentinels, as far as settings decide; the faults are F11 and F12."""

import pytest
from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.test import override_settings
from redis.cluster import RedisCluster

from django_delayq.embedded import EmbeddedServer
from django_delayq.exceptions import BrokerError, BrokerUnavailable
from django_delayq.index import Broker, ClusterConnectionFactory, build_connector
from tests.faults.harness.shapes import Cluster, free_ports
from tests.integration.mirroring import attempts

CLUSTER = {"CONNECTION_FACTORY": "django_delayq.index.connection.ClusterConnectionFactory"}


@pytest.fixture
def alias(settings):
    """Have the default alias be something else."""

    def set_alias(location, **options):
        default = {**settings.CACHES["default"], "LOCATION": location, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "default": default}

    good = settings.CACHES
    yield set_alias
    settings.CACHES = good  # the prefix is purged after this


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One for the tests here, each of which points at it itself."""
    own = django_settings.CACHES
    with Cluster(tmp_path_factory.mktemp("cluster")) as started, override_settings(CACHES=own):
        yield started


@pytest.mark.parametrize("url", ["redis://localhost:6379/1", "unix:///tmp/s", ["redis://a:1", "redis://a:2/3"]])
def test_an_address_that_no_node_of_a_cluster_has_is_refused_before_anything_connects(alias, url):
    alias(url, **CLUSTER)
    with pytest.raises(ImproperlyConfigured, match="only number 0"):
        build_connector(timeout_seconds=1)


@pytest.mark.django_db
def test_a_cluster_that_is_away_is_unavailable_and_found_again(alias, cluster):
    (port,) = free_ports(1)
    alias(f"redis://127.0.0.1:{port}", **CLUSTER)
    broker = Broker(timeout_seconds=1)
    with pytest.raises(BrokerUnavailable, match="cannot be connected"):
        broker.read_layout()
    alias(cluster.location(), **CLUSTER)
    found = Broker(timeout_seconds=1)
    assert found.read_layout() is None
    assert isinstance(found.client, RedisCluster)
    found.close()
    assert found.read_layout() is None
    found.close()


def test_a_single_server_is_no_cluster(alias, settings):
    (port,) = free_ports(1)
    with EmbeddedServer(extra_args=("--port", str(port), "--bind", "127.0.0.1")):
        alias(f"redis://127.0.0.1:{port}", **CLUSTER)
        with pytest.raises(BrokerError, match="take CONNECTION_FACTORY out"):
            Broker(timeout_seconds=1).read_layout()


@pytest.mark.django_db  # played beside the other one with a cluster, else that would be started twice
def test_django_redis_can_cache_in_a_cluster(alias, cluster):
    alias(cluster.location(), **CLUSTER)
    cache = caches["default"]
    cache.set("a", 1)
    assert cache.get("a") == 1
    cache.close()
    ClusterConnectionFactory._clusters.clear()


@pytest.mark.django_db
def test_a_dead_sentinel_holds_up_nobody_for_longer_than_the_timeout(alias, monkeypatch):
    silent = free_ports(2)
    alias(
        "redis://mymaster/0",
        CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
        SENTINELS=[["192.0.2.1", silent[0]], ["127.0.0.1", silent[1]]],
    )
    broker = Broker(timeout_seconds=0.2)
    tried = attempts(monkeypatch)
    with pytest.raises(BrokerUnavailable):
        broker.read_layout()
    assert set(tried) == {(0.2, 0.2)}
    assert len(tried) == 2, "each Sentinel once"
    assert call_command("check") is None
