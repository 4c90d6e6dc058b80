"""What a worker looks at before its first claim: refused for real where a server can be made so."""

import logging
import re
import time
from contextlib import closing

import pytest
from django.test import override_settings

from django_delayq.exceptions import BrokerError, BrokerUnavailable
from django_delayq.index import Broker, keys, probe, scripts
from django_delayq.index.probe import look
from django_delayq.models import Run
from tests.acceptance.support import wait_until
from tests.faults.harness.proxy import Proxy
from tests.faults.harness.servers import Server, pointing_at
from tests.faults.harness.shapes import SLOTS, Node, free_ports
from tests.integration.mirroring import schedule
from tests.integration.shard import PLACE, listening
from tests.support import make_due, run_burst


@pytest.fixture
def server(prefix):
    """A server of the test's own, which nobody else uses, and this process points at."""
    with Server() as own, pointing_at(own.url):
        yield own


@pytest.fixture
def warnings(caplog):
    """What the workers' log warns of."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def user(broker, *rules):
    """Return the address of the server for an ACL user who may do everything but what the rules take away."""
    broker.client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all", *rules)
    return pointing_at(url_of(broker).replace("unix://", "unix://app:secret@"))


def url_of(broker):
    return f"unix://{broker.client.connection_pool.connection_kwargs['path']}?db=0"


def start(said=None):
    broker = Broker(timeout_seconds=5, worker="w")
    try:
        probe.examine(broker, set() if said is None else said)
    finally:
        broker.close()


def refusal():
    with pytest.raises(BrokerError) as caught:
        start()
    assert not isinstance(caught.value, BrokerUnavailable)
    return str(caught.value)


def ids(*looks):
    return [finding.id for finding in probe.find_problems(looks)]


def test_a_fit_server_is_looked_at_in_three_commands_of_which_nothing_stays(server, warnings):
    with server.broker() as broker:
        start()
        broker.client.config_resetstat()
        start()
        stats = broker.client.info("commandstats")
        assert {name: stats[f"cmdstat_{name}"]["calls"] for name in ("info", "evalsha")} == {"info": 1, "evalsha": 1}
        assert stats["cmdstat_time"]["calls"] == 2, "in and after the script"
        assert "cmdstat_eval" not in stats
        assert broker.client.dbsize() == 0
    assert warnings() == []


def test_the_hint_of_a_trial_says_nothing(server):
    with server.broker() as broker:
        come = listening(broker, keys.build_keys(broker.config.prefix, PLACE))
        start()
        assert set(come()) <= {None}
        come.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_it_is_fit_by_either_protocol(server, settings, protocol):
    cache = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": {"protocol": protocol}}}
    with override_settings(CACHES={**settings.CACHES, "default": cache}):
        broker = Broker(timeout_seconds=5)
        (each,) = look(broker)
        broker.close()
    assert not ids(each)
    assert each.fault == ""


def test_what_somebody_else_has_written_under_the_key_of_the_trial_goes(server):
    with server.broker() as broker:
        place = broker.list_shards()[0]
        names = keys.build_keys(broker.config.prefix, place, "probe")
        broker.client.rpush(names["journal"], "garbage")
        start()
        assert broker.client.dbsize() == 0


@pytest.mark.django_db(transaction=True)
def test_a_worker_refuses_a_server_that_evicts_before_it_claims_or_writes_anything(server):
    with server.broker() as broker:
        make_due(broker, schedule())
        before = sorted(broker.client.keys())
        broker.client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(BrokerError, match=r"maxmemory-policy 'allkeys-lru'.*Set it to noeviction"):
            run_burst()
        assert sorted(broker.client.keys()) == before
    assert not Run.objects.exists()


DENIED = [
    ("-evalsha", "evalsha"),
    ("-eval", "eval"),
    ("-time", "time"),
    ("-zadd", "ZADD: "),
    ("-del", "DEL: "),
    ("-publish", "PUBLISH: "),
    ("resetchannels", "PUBLISH: "),
]


@pytest.mark.parametrize(("rule", "word"), DENIED, ids=[row[0] for row in DENIED])
def test_a_user_who_may_not_do_what_the_scripts_need_is_refused_by_name(server, rule, word):
    with server.broker() as broker:
        with user(broker, rule):
            text = refusal()
        assert word in text
        assert "does not run the scripts of django-delayq" in text
        assert "(ACL)" in text
        wait_until(lambda: broker.client.dbsize() == 0)  # without DEL its expiry of 1 ms has to do


def test_a_user_who_may_not_use_the_prefix_is_refused(server):
    with server.broker() as broker, user(broker, "resetkeys", "~another:*"):
        assert re.search("permission|access", refusal())


@pytest.mark.parametrize("command", ["EVALSHA", "TIME", "ZMSCORE"])
def test_a_server_without_a_command_is_refused_as_one_before_6_2_would_be(prefix, command):
    with Server(extra_args=("--rename-command", command, "another")) as server, pointing_at(server.url):
        text = refusal()
        assert re.search(rf"(?i)unknown( redis)? command.*{command}|{command}: .*unknown", text), text
        assert "Use Redis 6.2 or later" in text
        with server.broker() as broker:
            assert broker.client.dbsize() == 0


CHANGES = [
    ("digits are lost", ("'%.0f', number", "'%.14g', number"), r"EVAL returns 9\.007\d+e\+15 instead of 9007199"),
    (
        "a range finds nothing",
        ("redis.pcall(", "command[1] == 'ZRANGE' and {} or redis.pcall("),
        "ZRANGE returns nothing",
    ),
]


@pytest.mark.parametrize(("change", "words"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_an_engine_whose_scripts_misbehave_is_refused(server, monkeypatch, change, words):
    """No server here does that: so the script does what such a server would."""
    text, _ = scripts.load("probe")
    assert change[0] in text
    monkeypatch.setattr(scripts, "load", lambda name: (text.replace(*change), "0" * 40))
    assert re.search(words, refusal())
    with server.broker() as broker:
        assert broker.client.dbsize() == 0


def test_a_full_server_is_not_called_unfit(server):
    with server.broker() as broker:
        broker.client.config_set("maxmemory", 1)
        start()
        assert broker.client.dbsize() == 0


def test_a_server_that_cannot_write_to_its_disk_is_not_called_unfit(prefix, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    with Server(extra_args=("--dir", str(folder))) as server, pointing_at(server.url), server.broker() as broker:
        folder.rmdir()
        broker.client.config_set("save", "3600 1")
        broker.client.bgsave()
        try:
            wait_until(lambda: broker.read_info("persistence")[0]["rdb_last_bgsave_status"] == "err")
            with pytest.raises(BrokerUnavailable, match="MISCONF"):
                start()
        finally:
            broker.client.config_set("save", "")  # else its end would wait for what it cannot save


def test_a_replica_is_waited_for(server):
    with server.broker() as broker:
        broker.client.replicaof("127.0.0.1", 1)
        with pytest.raises(BrokerUnavailable, match="read only replica"):
            start()


@pytest.mark.django_db(transaction=True)
def test_a_server_that_does_not_tell_is_warned_of_once_and_worked_with(server, warnings):
    with server.broker() as broker:
        row = schedule()
        make_due(broker, row)
        with user(broker, "-info", "-config"):
            assert run_burst() == 0
            said = set()
            start(said)
            start(said)
    assert Run.objects.filter(schedule=row, status="succeeded").count() == 1
    assert len(warnings()) == 2, "one of the worker's, one of the two that follow"
    assert all("does not report whether it evicts keys" in text and "delayq.W002" in text for text in warnings())


@pytest.mark.parametrize(("off", "words"), [(5000.0, "behind"), (-5000.0, "ahead of")])
def test_a_clock_of_this_machine_that_is_off_is_warned_of_with_the_difference(
    server, warnings, monkeypatch, off, words
):
    real = probe.time.time
    monkeypatch.setattr(probe.time, "time", lambda: real() + off)
    began = time.monotonic()
    start()
    took = time.monotonic() - began
    (text,) = warnings()
    found = re.search(rf"is (\d+\.\d) s {words} this machine's", text)
    assert found, text
    assert float(found[1]) == pytest.approx(abs(off), abs=0.2 + took)


def test_the_time_that_a_round_trip_takes_is_no_difference_of_clocks(server, monkeypatch):
    monkeypatch.setattr(probe, "CLOCK_SECONDS", 0.1)
    with Proxy(server.socket) as proxy, pointing_at(f"redis://127.0.0.1:{proxy.port}/0"):
        broker = Broker(timeout_seconds=5)
        look(broker)  # connects
        proxy.delay_seconds = 0.2
        (each,) = look(broker)
        broker.close()
    least, most = each.ahead_seconds
    assert least < 0.1
    assert most > 0.15, "the server's clock is read at the end of the delay"
    assert "delayq.W003" not in ids(each)


@pytest.fixture
def two_primaries(tmp_path, settings):
    """A cluster of two primaries, each with half of the slots."""
    nodes = [Node(tmp_path / f"node{port}", port, "--cluster-enabled", "yes") for port in free_ports(2)]
    try:
        for number, node in enumerate(nodes):
            node.start()
            node.call("CLUSTER", "ADDSLOTS", *range(SLOTS * number // 2, SLOTS * (number + 1) // 2))
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        nodes[0].call("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
        wait_until(lambda: all("cluster_state:ok" in str(node.call("CLUSTER", "INFO")) for node in nodes), 15)
        location = ",".join(f"redis://127.0.0.1:{node.port}" for node in nodes)
        factory = {"CONNECTION_FACTORY": "django_delayq.index.connection.ClusterConnectionFactory"}
        cache = {**settings.CACHES["default"], "LOCATION": location, "OPTIONS": factory}
        with override_settings(CACHES={**settings.CACHES, "default": cache}):
            yield {f"127.0.0.1:{node.port}": node for node in nodes}
    finally:
        for node in nodes:
            if node.up:
                node.stop()


def test_each_primary_of_a_cluster_is_looked_at_and_named(two_primaries, settings):
    own = settings.DELAYQ
    for shards in (1, 16):
        settings.DELAYQ = {**own, "QUEUES": ["default"], "SHARDS": shards}
        with closing(Broker(timeout_seconds=5)) as broker:
            looks = look(broker)
        assert {each.name for each in looks} == set(two_primaries)
        assert all(each.about["redis_version"] and not each.fault for each in looks)
        assert not list(probe.find_problems(looks))
        assert all(node.call("DBSIZE") == 0 for node in two_primaries.values())
    broker = Broker(timeout_seconds=5)
    name, node = sorted(two_primaries.items())[-1]
    node.call("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    (evicts,) = [finding for finding in probe.find_problems(look(broker)) if finding.id == "delayq.E004"]
    assert f"at {name} has maxmemory-policy 'volatile-ttl'" in evicts.message
    broker.close()
