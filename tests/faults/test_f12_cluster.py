"""F12: a cluster under load: a node is killed with its last second of writes, a slot moves to another node."""

import time

import pytest

from django_delayq import conf
from django_delayq.index import Broker
from tests.acceptance.support import wait_until
from tests.faults.harness.load import mixture, schedules
from tests.faults.harness.shapes import PRIMARIES, Cluster
from tests.faults.harness.verdict import Stall
from tests.faults.harness.workers import ENDLESS, LEASE, Fleet
from tests.faults.test_f11_sentinel import all_go_on

pytestmark = [pytest.mark.django_db(transaction=True)]
SHARDS = 6
#: Of the schedules of a mixture that come due least often.
PERIOD = 3


@pytest.fixture
def six_shards(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": SHARDS}


def slots(cluster, broker):
    """Return the slot of each shard of the queue that is used."""
    return [cluster.slot_of(conf.get_config().prefix, place) for place in broker.list_shards(["default"])]


def running(trace, fleet):
    """Return the schedules of which a fleet executes something now."""
    return {item.schedule for worker in fleet.workers for item in trace.running_in(worker.pid)}


@pytest.mark.usefixtures("six_shards")
@pytest.mark.parametrize("seconds", [pytest.param(0, id="short"), pytest.param(600, marks=pytest.mark.long, id="long")])
def test_f12_a_killed_node_and_a_moved_slot_lose_no_point(seconds, trace, tmp_path, report):
    kills, moves, usual = [], [], [PERIOD]
    with Cluster(tmp_path) as redis:
        histories = mixture(20, trace)
        broker = Broker(timeout_seconds=5)
        places = slots(redis, broker)
        broker.close()
        with Fleet(2, folder=tmp_path, LEASE_SECONDS=LEASE) as fleet, Stall() as stall:
            wait_until(lambda: len(trace.executions()) > 20, 40, "a load")
            end = time.monotonic() + seconds
            while not moves or time.monotonic() < end:
                slot = places[len(moves) % SHARDS]
                others = [node for node in redis.primaries() if node is not redis.owner(slot)]
                usual.append(all_go_on(trace, histories))
                redis.move(slot, others[len(moves) % (PRIMARIES - 1)])
                moves.append(all_go_on(trace, histories))
                former = redis.fail_over(slot, lost_seconds=1)
                kills.append(all_go_on(trace, histories))
                former.start()
                wait_until(redis.whole, 60, "the killed node to follow")
            assert fleet.tend() == 0
            note = f"{len(kills)} kills, {len(moves)} moves, worst {max(moves):.2f} s after one, {max(usual):.2f} else"
            report("F12 cluster", histories, recovery=max(kills), note=note)
            assert fleet.tend() == 0
    if seconds:  # the long form wants a machine of its own
        assert max(moves) < max(usual) + 2 + stall.worst, "it costs no more than a moment"


def test_f12_another_number_of_shards_loses_and_doubles_no_point(settings, trace, tmp_path, report):
    before, after = 5, 2
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": before}
    with Cluster(tmp_path):
        histories = mixture(20, trace)
        # What runs until the former workers have to end.
        gate = tmp_path / "gate"
        gate.touch()
        kwargs = {"path": str(trace.path), "gate": str(gate)}
        long = schedules(6, trace, name="long", task="tests.faults.tasks.held_at", kwargs=kwargs)
        histories += long
        with Fleet(2, folder=tmp_path, LEASE_SECONDS=ENDLESS) as former:
            wait_until(lambda: len(trace.executions()) > 20, 40, "a load")
            wait_until(lambda: running(trace, former) >= {history.pk for history in long}, 40, "runs that take long")
            settings.DELAYQ = {**settings.DELAYQ, "SHARDS": after}
            with Fleet(2, folder=tmp_path, LEASE_SECONDS=ENDLESS) as fleet:
                for worker in fleet.workers:
                    wait_until(lambda worker=worker: former.workers[0].name in worker.log(), 40, "who waits")
                assert f"has {before} shards in Redis but {after} in" in fleet.workers[0].log()
                first, second = former.workers
                first.term()
                gate.unlink()
                assert first.wait() == 0
                all_go_on(trace, histories)
                began = second.term()
                assert second.wait() == 0
                settings.DELAYQ = {**settings.DELAYQ, "SHARDS": before}  # as a web process that was not restarted yet
                histories += schedules(1, trace, name="saved")
                settings.DELAYQ = {**settings.DELAYQ, "SHARDS": after}
                wait_until(lambda: len(trace.first_after(began)) == len(histories), 60, "all to go on")
                verdict = report(f"F12 {before} -> {after} shards", histories, recovery=time.time() - began)
                assert fleet.tend() == 0
            broker = Broker(timeout_seconds=5)
            assert [stats.members > 0 for stats in broker.read_stats(broker.list_shards(["default"]))] == [True] * after
            assert not list(broker.client.scan_iter(f"{{{conf.get_config().prefix}:default:{after}}}:[^j]*"))
            broker.close()
    assert verdict.executions_max == 1, "what ran had ended before the index was built anew"
