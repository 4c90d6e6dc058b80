"""The upkeep lease: which worker does the upkeep, and what becomes of a holder that dies or loses it."""

import math
import sys
import time

import pytest

from django_delayq import sync
from django_delayq.index.broker import UPKEEP_MS
from django_delayq.monitoring import alerts, minutes
from django_delayq.sync import pages, pruning, sweep
from django_delayq.worker import upkeep
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until
from tests.integration.mirroring import absent, look, mirrored, schedule
from tests.support import hold_upkeep

pytestmark = pytest.mark.django_db(transaction=True)
mirror_rebuild = sys.modules["django_delayq.sync.rebuild"]


@pytest.fixture
def three(broker):
    """Three workers, of which the first holds the lease."""
    workers = [Worker(WorkerOptions(queues=("default", "mail"), threads=1)) for _ in range(3)]
    sync.rebuild(broker, broker.list_shards())
    for worker in workers:
        worker.upkeep.run_round()
    assert [worker.upkeep.holds for worker in workers] == [True, False, False]
    yield workers
    for worker in workers:
        worker.broker.close()


def key(broker):
    return f"{broker.config.prefix}:upkeep"


def lose_shard(broker, row):
    """Take a whole shard away; all else in Redis stays, also the note of the last full sweep."""
    place = broker.get_shard(f"s{row.pk}", row.queue)
    broker.drop([place])
    assert absent(broker, row)


CHORES = [(sync, "sweep_if_due"), (pruning, "prune_if_due"), (minutes, "roll_up"), (alerts, "look_now")]


def test_the_holder_does_all_upkeep_and_the_others_none_of_it(three, settings, monkeypatch):
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": {"EVERY": 1}}
    done = []
    for module, name in CHORES:
        monkeypatch.setattr(module, name, lambda *args, name=name, **options: done.append(name))
    three[0].upkeep._due["look"] = 0.0  # it has seen that nothing was to be told
    for worker in three:
        worker.upkeep._due = {name: 0.0 if at < math.inf else at for name, at in worker.upkeep._due.items()}
        worker.upkeep.run_round()
        assert sorted(done) == (sorted(name for _, name in CHORES) if worker is three[0] else [])
        done.clear()


def test_a_holder_that_dies_is_replaced_when_its_lease_ends_and_what_it_left_is_rebuilt(three, broker):
    _, second, third = three
    row = schedule()
    assert 0 < broker.client.pttl(key(broker)) <= UPKEEP_MS
    assert second.upkeep._due["lease"] <= time.monotonic() + UPKEEP_MS / 1000, "it looks when that would end"
    lose_shard(broker, row)
    broker.client.pexpire(key(broker), 1)  # the first one does nothing more
    wait_until(lambda: broker.read_upkeep_holder() is None)
    second.upkeep._due["lease"] = 0.0
    second.upkeep.run_round()
    assert second.upkeep.holds
    assert broker.read_upkeep_holder() == second.options.name
    assert mirrored(broker, row)
    third.upkeep._due["lease"] = 0.0
    third.upkeep.run_round()
    assert not third.upkeep.holds


def test_a_worker_that_finds_a_shard_flushed_takes_the_lease_over_and_rebuilds(three, broker):
    first, second, _ = three
    row = schedule()
    lose_shard(broker, row)
    second.upkeep.rebuild_soon()
    second.upkeep.run_round()
    assert mirrored(broker, row)
    assert (second.upkeep.rebuilds, second.upkeep.holds, broker.read_upkeep_holder()) == (1, True, second.options.name)
    first.upkeep._due["lease"] = 0.0
    first.upkeep.run_round()
    assert not first.upkeep.holds


def test_a_worker_that_finds_another_one_rebuilding_comes_again_until_all_is_built(three, broker):
    _, second, _ = three
    row = schedule()
    lose_shard(broker, row)
    other = mirror_rebuild.Build(broker, broker.list_shards())
    second.upkeep.rebuild_soon()
    second.upkeep.run_round()
    assert not second.upkeep.holds
    assert absent(broker, row)
    assert time.monotonic() < second.upkeep._due["build"] <= time.monotonic() + upkeep.RENEW_SECONDS
    broker.swap_epochs(other.shards, other._mark, other._mark, ttl_ms=1)  # it has died
    wait_until(lambda: None in broker.read_epochs(broker.list_shards()))
    second.upkeep._due["build"] = 0.0
    second.upkeep.run_round()
    assert mirrored(broker, row)
    assert second.upkeep._due["build"] == float("inf")


def test_a_sweep_whose_worker_loses_the_lease_ends_after_its_page(three, broker, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    rows = [schedule(f"s{n}") for n in range(4)]
    for row in rows:
        broker.remove(broker.get_shard(f"s{row.pk}", row.queue), [(f"s{row.pk}", 10**15, "")])
    broker.client.delete(f"{broker.config.prefix}:swept")
    compare = sweep.compare

    def losing(*args, **options):
        hold_upkeep(broker)
        return compare(*args, **options)

    monkeypatch.setattr(sweep, "compare", losing)
    look(three[0])
    assert [mirrored(broker, row) for row in rows[:1]] == [True]
    assert all(absent(broker, row) for row in rows[1:])
    assert sweep.read_last(broker) is None
    assert not three[0].upkeep.holds
    assert broker.read_upkeep_holder() == "another"


def test_a_worker_that_ends_gives_the_lease_back_and_only_its_own(three, broker):
    first, second, _ = three
    second.upkeep.sign_off()
    assert broker.read_upkeep_holder() == first.options.name
    first.upkeep.sign_off()
    assert broker.read_upkeep_holder() is None
    assert broker.take_upkeep() == 0


def test_a_lease_that_was_damaged_hinders_nobody(three, broker):
    second = three[1].upkeep
    for end in (None, 10 * UPKEEP_MS):
        broker.client.set(key(broker), "invented", px=end)
        second.holds, second._due["lease"] = False, 0.0
        second.run_round()
        assert broker.read_upkeep_holder() == second.broker.worker
    broker.client.delete(key(broker))
    broker.client.hset(key(broker), "x", "y")
    for _ in range(3):  # one finds it, one finds that it is gone, one takes the lease
        second._due["lease"] = 0.0
        second._backoff.note_success()
        second.run_round()
    assert broker.read_upkeep_holder() == second.broker.worker
