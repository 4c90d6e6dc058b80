"""The minimal Redis user on a cluster: what it needs beside, also while a slot moves; and what is said without it."""

import pytest
import redis
from redis.crc import key_slot

from django_delayq.exceptions import BrokerError, BrokerUnavailable
from django_delayq.index import Broker
from tests.faults.harness.shapes import Cluster
from tests.security import acl
from tests.security.test_acl import play

PREFIX = "locked"
RULES = acl.rules(PREFIX, cluster=True)
BESIDE = [word for word in RULES if word not in acl.rules(PREFIX)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("locked")) as started:
        yield started


@pytest.fixture
def admin(cluster):
    """The default user, for what the app itself does not do."""
    client = redis.RedisCluster(startup_nodes=[redis.cluster.ClusterNode("127.0.0.1", cluster.nodes[0].port)])
    client.flushall(target_nodes="primaries")
    yield client
    client.close()


@pytest.fixture
def locked(settings, prefix, cluster, admin):
    """Make the user with some rules on every node; return a broker that logs in as it."""
    own, good, brokers = settings.DELAYQ, settings.CACHES, []

    def make(words):
        each_node(cluster, lambda node: acl.make_user(node, words))
        settings.DELAYQ = {**own, "PREFIX": PREFIX}
        default = {**good["default"], "LOCATION": acl.url_of(cluster.location()), "OPTIONS": cluster.options()}
        settings.CACHES = {**good, "default": default}
        brokers.append(Broker(timeout_seconds=5, worker="test"))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()
    settings.DELAYQ, settings.CACHES = own, good


def each_node(cluster, do):
    found = []
    for node in cluster.nodes:
        with redis.Redis.from_url(node.url) as client:
            found.append(do(client))
    return found


def denied(cluster):
    return set().union(*each_node(cluster, acl.denied))


class Moving:
    """A slot that is on its way: its first owner answers with ASK for what is not there any more."""

    def __init__(self, cluster, slot):
        self.cluster, self.slot = cluster, slot
        self.source = cluster.owner(slot)
        self.target = next(node for node in cluster.primaries() if node is not self.source)

    def __enter__(self):
        source, target = self.source.call("CLUSTER", "MYID"), self.target.call("CLUSTER", "MYID")
        self.target.call("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source)
        self.source.call("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target)

    def __exit__(self, *exc_info):
        self.target.call("FLUSHALL")
        for node in (self.source, self.target):
            node.call("CLUSTER", "SETSLOT", self.slot, "STABLE")


def read_while_moving(broker, cluster):
    """Write and read a key whose slot is on its way; return what was read."""
    with Moving(cluster, key_slot(f"{PREFIX}:layout".encode())):
        broker.write_note("layout", "moved")
        return broker.read_layout()


def test_every_command_of_the_app_is_allowed_on_a_cluster(cluster, locked, admin):
    broker = locked(RULES)
    assert play(broker, admin) == []
    assert read_while_moving(broker, cluster) == "moved"
    assert denied(cluster) == set()


@pytest.mark.parametrize("rule", BESIDE)
def test_each_rule_for_a_cluster_is_needed_and_what_is_lacking_is_told(cluster, locked, rule):
    broker = locked([word for word in RULES if word != rule])
    command = rule.lstrip("+").partition("|")[0]  # Redis 6.2 does not tell the subcommand
    with pytest.raises(BrokerError, match=f"permission.* '{command}") as refused:
        read_while_moving(broker, cluster)
    assert not isinstance(refused.value, BrokerUnavailable), "waiting does not help"
    assert command in {name.partition("|")[0] for _, name in denied(cluster)}
