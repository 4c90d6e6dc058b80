"""Damage to jobs: what garbage and foreign types under our keys may not do to scripts, reads and the worker."""

import pytest
from django.utils.crypto import get_random_string

from django_delayq.backend.sending import shared
from django_delayq.broker import JobSettlement, keys
from django_delayq.exceptions import DamagedKeys
from tests.app import tasks
from tests.integration.job_shard import JobShard, names_of, new
from tests.integration.shard import LEASE_MS, PLACE
from tests.integration.test_broker_damage import GARBAGE, spoil
from tests.jobs.support import SUCCESSFUL
from tests.support import run_burst


@pytest.fixture
def shard(broker):
    return JobShard(broker)


@pytest.fixture
def fresh():
    """A process that has enqueued nothing yet."""
    shared().forget()
    tasks.CALLS.clear()
    yield
    shared().forget()


@pytest.mark.parametrize("part", keys.JOB_PARTS)
def test_a_key_of_a_foreign_type_is_named_and_deleted(shard, part):
    shard.sound = False
    holder = shard.held("j1", "j2", unique="", priority=3)
    shard.add(new("j3"))
    spoil(shard, part)
    with pytest.raises(DamagedKeys, match="foreign type"):
        shard.jobs.claim(PLACE, limit=5, lease_ms=LEASE_MS, request=10**15)
        shard.jobs.enqueue_each([(PLACE, [new("j4", priority=1, unique="A")])], {PLACE: "e1"}, again=False)
        shard.jobs.renew(PLACE, [("j1", holder)], lease_ms=LEASE_MS, start=True)
        shard.jobs.settle(PLACE, [JobSettlement("j1", holder, "dead")], dead_ms=1, dead_most=1)
        shard.broker.claim(PLACE, limit=5, lease_ms=LEASE_MS, request=1)
        shard.jobs.counts([PLACE])
    assert shard.broker.repair(PLACE) == [shard.names[part]]
    assert shard.jobs.claim(PLACE, limit=5, lease_ms=LEASE_MS, request=10**15 + 1).epoch is None
    assert shard.broker.repair(PLACE) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("part", [part for part in keys.JOB_PARTS if part not in ("payload", "jobs", "ready")])
def test_where_the_jobs_themselves_are_whole_a_worker_mends_the_rest_and_runs_them(fresh, broker, part):
    run_burst()  # takes the prefix
    results = [tasks.add.enqueue(1), tasks.add.using(priority=5, unique_key="A").enqueue(2)]
    shard = JobShard(broker, epoch=None)
    spoil(shard, part)
    run_burst_with_repairs()
    assert sorted(tasks.CALLS) == [(1, 1), (2, 1)]
    for result in results:
        result.refresh()
        assert result.status == SUCCESSFUL


@pytest.mark.parametrize("what", ["done", "dead", "retry", "release"])
@pytest.mark.parametrize("part", [part for part in keys.JOB_SETTLE_PARTS if part not in ("payload", "jobs", "held")])
def test_what_could_not_be_settled_can_be_after_the_repair(shard, part, what):
    """A script that fails half-way must not have given the job out of its hand."""
    shard.sound = False
    holder = shard.held("j1", "j2", unique="", priority=3)
    spoil(shard, part)
    item = JobSettlement("j1", holder, what, 60_000, "" if what == "release" else "text")
    try:
        applied = shard.jobs.settle(PLACE, [item], dead_ms=60_000, dead_most=10)
    except DamagedKeys:
        shard.broker.repair(PLACE)
        applied = shard.jobs.settle(PLACE, [item], dead_ms=60_000, dead_most=10)
    assert applied.replies == [1]
    assert ("j1" in shard.hash("payload")) == (what != "done")
    if what != "done":
        assert "j1" in shard.scores("dead" if what == "dead" else "jobs")
    assert set(shard.hash("held")) == {"j2"}


def run_burst_with_repairs():
    """Run what is due, and once more: the first worker may end while what it has repaired is being rebuilt."""
    for _ in range(2):
        run_burst()


@pytest.mark.parametrize("value", GARBAGE, ids=ascii)
def test_garbage_values_stop_no_script(shard, value):
    names = ("j1", "j2", "j3")
    shard.add(*(new(name, unique=name) for name in names), new("j4", wake=shard.now + 60_000))
    shard.sound = False
    for part in ("priority", "reclaims", "unique"):
        shard.client.hset(shard.names[part], mapping=dict.fromkeys((*names, "j4"), value))
    shard.client.hset(shard.names["unique"], mapping={f"k{name}": value for name in names})
    shard.client.hset(shard.names["held"], mapping=dict.fromkeys(("j2", "j4"), value))
    shard.client.set(shard.names["fence"], value)
    shard.client.set(shard.names["taken"], value)
    shard.client.zadd(shard.names["jobs"], {"j4": shard.now - 5})
    shard.client.zadd(shard.names["due"], {keys.POINTER: shard.now - 5})

    assert shard.add(new("j5", unique="j1"), new("j6")) == ["", ""]
    claim = shard.claim(request=10**12)
    assert sorted(names_of(claim)) == ["j1", "j2", "j3", "j4", "j5", "j6"]
    assert {entry.member for entry in claim.entries if entry.lapsed} == {"j2", "j4"}
    holder = claim.holder
    assert shard.renew(("j1", holder), ("j2", holder), start=True) == set()
    assert shard.settle(("j1", holder, "retry", 0, "text"), ("j2", holder, "release", 0, "begun"),
                        ("j3", holder, "dead", 0, ""), ("j4", holder, "release", 60_000, "")) == [True] * 4  # fmt: skip
    assert shard.change("j4", "move", shard.now - 1) == "OK"
    assert shard.change("j3", "revive", 5, "text") == "OK"
    again = shard.claim(request=10**12 + 1)
    assert sorted(names_of(again)) == ["j1", "j2", "j3", "j4"]
    shard.jobs.views([(PLACE, name) for name in names])
    shard.jobs.counts([PLACE])
    items = [(entry.member, claim.holder, "done", 1, "x") for claim in (claim, again) for entry in claim.entries]
    assert sum(shard.settle(*items)) == 6
    assert shard.scores("jobs") == shard.scores("ready") == shard.hash("payload") == {}


@pytest.mark.parametrize("score", ["-inf", "inf", -1e300, 1e300, -1, 0.5, 2.0**60])
@pytest.mark.parametrize("part", ["due", "jobs", "ready", "dead"])
def test_garbage_scores_stop_no_script(shard, part, score):
    shard.add(new("j1", wake=shard.now + 60_000), new("j2"), new("j3"), new("j4", priority=5))
    shard.sound = False
    shard.client.zadd(shard.names[part], {keys.POINTER if part == "due" else "j1": score})
    holders = {}
    for request in (1, 2):
        claim = shard.claim(request=request, limit=1 if request == 1 else 100)
        assert claim.entries
        holders |= dict.fromkeys(names_of(claim), claim.holder)
        shard.add(new(f"j{4 + request}", priority=-5))
    assert {"j2", "j3", "j4"} <= set(holders)
    whats = {"j2": "dead", "j3": "retry", "j4": "release"}
    assert shard.settle(*((name, holders[name], what, 0, "") for name, what in whats.items())) == [True] * 3
    assert {"j3", "j4"} <= set(names_of(shard.claim(request=3)))
    shard.jobs.views([(PLACE, "j1"), (PLACE, "j2")])
    shard.jobs.counts([PLACE])


def test_a_garbage_journal_does_not_stop_this_process_for_ever(shard):
    shard.add(new("j1"))
    shard.client.set(shard.names["taken"], "99999999999999999999 f 0j1")
    assert names_of(shard.claim(request=1)) == ["j1"]


def test_a_garbage_member_cannot_bring_another_twice(shard):
    shard.add(new("j1"))
    shard.sound = False
    shard.client.zadd(shard.names["ready"], {"x 0j1": 5})
    shard.claim()
    assert names_of(shard.claim()).count("j1") == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("shards", [1, 4])
def test_what_is_no_job_is_dropped_by_a_worker_and_the_others_run(fresh, broker, settings, shards):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": shards}
    run_burst()
    for place in broker.shards(["default"]):
        shard = JobShard(broker, epoch=None, shard=place)
        for garbage in (b"\xff\xfe", "a b", "", "x", "s1", get_random_string(5000)):
            shard.client.zadd(shard.names["ready"], {garbage: 1})
            shard.client.hset(shard.names["payload"], garbage, b"\xff{}")
        shard.client.zadd(shard.names["jobs"], {"j without a payload": 1})
    tasks.add.enqueue_many(((n,), {}) for n in range(8))
    run_burst()
    assert sorted(tasks.CALLS) == [(n, 1) for n in range(8)]
    for place in broker.shards(["default"]):
        assert JobShard(broker, epoch=None, shard=place).state() == {}


def test_purge_takes_jobs_and_results_with_it(shard):
    holder = shard.held("j1", "j2", priority=1)
    shard.settle(("j1", holder, "done", 60_000, "text"), ("j2", holder, "dead", 0, ""))
    shard.add(new("j3", unique="A"), new("j4", wake=shard.now + 60_000))
    shard.broker.purge()
    assert shard.raw() == {}
    assert shard.result("j1") is None
