"""What is asked of jobs: one call, then a look at the whole state. See `job_shard.py`.

Tests of `index` hold the scripts and the memory against each other; tests of `shard` are of what only Redis knows.
"""

import time

import pytest

from django_delayq.broker import callback_text
from tests.integration.in_memory import MemoryJobShard
from tests.integration.job_shard import DEAD_MS, LEASE_MS, PATIENCE_MS, JobShard, names_of, new
from tests.integration.shard import PLACE, about


@pytest.fixture
def shard(broker):
    return JobShard(broker)


@pytest.fixture(params=["redis", "memory"])
def index(request, broker):
    """A shard by either implementation."""
    return JobShard(broker) if request.param == "redis" else MemoryJobShard()


# -- enqueue


def test_what_is_added_waits_for_its_time_or_its_turn_with_its_payload(index):
    assert index.add(new("j1"), new("j2", wake=index.now + 60_000), new("j3", wake=index.now - 5)) == ["", "", ""]
    assert index.state() == {
        "ready": ["j1", "j3"],
        "jobs": {"j2": 60_000},
        "payload": {name: f"payload of {name}" for name in ("j1", "j2", "j3")},
    }


def test_what_is_there_already_is_not_added_again(index):
    index.add(new("j1", wake=index.now + 60_000, priority=5, payload="first"))
    before = index.raw()
    assert index.add(new("j1", priority=-3, payload="second")) == ["j1"]
    assert index.raw() == before


def test_in_one_call_only_the_first_of_two_of_one_name_is_added(index):
    assert index.add(new("j1", payload="first"), new("j1", payload="second")) == ["", "j1"]
    assert index.state() == {"ready": ["j1"], "payload": {"j1": "first"}}


def test_where_the_epoch_is_another_nothing_is_added_and_it_is_told(shard):
    for known in ("e0", "", "building:e1"):
        replies = shard.jobs.enqueue_each([(PLACE, [new("j1")])], {PLACE: known}, again=False)
        assert replies == [("e1", None)]
    assert shard.state() == {}
    assert shard.pointer() is None


def test_a_shard_that_is_being_built_takes_jobs(shard):
    shard.client.set(shard.names["epoch"], "building:e1")
    assert shard.add(new("j1"), epoch="e1") == [""]


def test_a_shard_without_an_epoch_takes_jobs_of_who_knows_that(shard):
    shard.client.delete(shard.names["epoch"])
    assert shard.add(new("j1"), epoch="e1") is None
    assert shard.add(new("j1"), epoch="") == [""]


def test_sent_again_after_a_lost_reply_it_is_added_once(shard):
    shard.add(new("j1"))
    assert shard.add(new("j1"), new("j2"), again=True) == ["j1", ""]
    assert shard.state()["ready"] == ["j1", "j2"]


def test_sent_again_after_its_end_it_is_not_added(shard):
    holder = shard.held("j1")
    assert shard.settle(("j1", holder, "done", 60_000, "its result")) == [True]
    assert shard.add(new("j1"), again=True) == ["j1"]
    assert shard.state() == {}
    assert shard.result("j1") == ("its result", True)


def test_sent_again_each_job_is_compared_with_its_own_result(shard):
    shard.put_result("j2")
    assert shard.add(new("j1"), new("j2"), new("j3"), again=True) == ["", "j2", ""]
    assert shard.state()["ready"] == ["j1", "j3"]


def test_one_that_is_sent_twice_in_one_part_is_added_once(index):
    index.add(new("j0"))
    assert index.add(new("j1", payload="first"), new("j1", payload="second"), new("j0"), new("j2")) == [
        "",
        "j1",
        "j0",
        "",
    ]
    assert index.state()["ready"] == ["j0", "j1", "j2"]
    assert index.hash("payload")["j1"] == "first"


def test_of_one_key_the_first_of_a_part_stands_for_the_others(index):
    assert index.add(new("j1", unique="A"), new("j2", unique="B"), new("j3", unique="A")) == ["", "", "j1"]
    assert index.state()["ready"] == ["j1", "j2"]


def test_a_pointer_that_was_lost_is_found_by_the_next_one_that_comes(shard):
    shard.add(new("j1", wake=shard.now + 10_000), new("j2", wake=shard.now + 20_000))
    shard.client.delete(shard.names["due"])
    come = shard.hints()
    try:
        shard.add(new("j3", wake=shard.now + 90_000))
        assert come() == [(PLACE, shard.now + 10_000)]
    finally:
        come.close()
    assert shard.pointer() == shard.now + 10_000


def test_priorities_are_kept_where_there_are_any(index):
    index.add(new("j1", priority=7), new("j2"), new("j3", priority=-100))
    assert index.state()["priority"] == {"j1": "7", "j3": "-100"}


def test_a_hint_is_sent_where_something_comes_due_earlier_than_all_else(shard):
    come = shard.hints()
    try:
        shard.add(new("j1", wake=shard.now + 60_000))
        assert come() == [(PLACE, shard.now + 60_000)]
        shard.add(new("j2", wake=shard.now + 90_000))
        assert come() == []
        shard.add(new("j3"))
        ((place, at),) = come()
        assert (place, at - shard.now) == (PLACE, about(0))
        shard.client.zadd(shard.names["due"], {"s1": shard.now - 60_000})
        shard.change("j1", "move", shard.now - 5)
        assert come() == []
    finally:
        come.close()


def test_what_is_handed_back_is_hinted_at(shard):
    holder = shard.held("j1", "j2")
    come = shard.hints()
    try:
        shard.settle(("j1", holder, "release", 10_000, ""), ("j2", holder, "retry", 5_000, "again"))
        assert [(place, at - shard.now) for place, at in come()] == [(PLACE, about(5_000))]
    finally:
        come.close()


# -- unique keys


def test_the_first_job_with_a_key_stands_for_the_others_while_it_waits(index):
    assert index.add(new("j1", wake=index.now + 60_000, unique="A")) == [""]
    before = index.raw()
    assert index.add(new("j2", unique="A"), new("j3", unique="A")) == ["j1", "j1"]
    assert index.raw() == before
    assert index.add(new("j4", unique="B")) == [""]


def test_in_one_call_only_the_first_of_two_with_a_key_is_added(index):
    assert index.add(new("j1", unique="A"), new("j2", unique="A"), new("j3")) == ["", "j1", ""]
    assert index.state()["ready"] == ["j1", "j3"]


def test_a_claim_frees_the_key_and_the_second_job_has_it_for_good(index):
    holder = index.held("j1", unique="A")
    assert index.add(new("j2", unique="A")) == [""]
    assert index.settle(("j1", holder, "release", 60_000, "")) == [True]
    assert index.add(new("j3", unique="A")) == ["j2"]
    index.claim(request=10**15, limit=1)
    assert index.add(new("j4", unique="A")) == [""]


@pytest.mark.parametrize("what", ["release", "retry"])
def test_who_is_handed_back_has_its_key_again(index, what):
    holder = index.held("j1", unique="A")
    index.settle(("j1", holder, what, 60_000, ""))
    assert index.add(new("j2", unique="A")) == ["j1"]


@pytest.mark.parametrize("what", ["done", "dead"])
def test_who_has_ended_frees_its_key(index, what):
    holder = index.held("j1", unique="A")
    index.settle(("j1", holder, "release", 0, ""))
    holder = index.claim(request=10**15).holder
    index.settle(("j1", holder, what, 60_000, "text"))
    assert index.hash("unique") == {}
    assert index.add(new("j2", unique="A")) == [""]


def test_who_is_cancelled_frees_its_key(index):
    index.add(new("j1", wake=index.now + 60_000, unique="A"))
    assert index.change("j1", "cancel") == "OK"
    assert index.add(new("j2", unique="A")) == [""]


def test_sent_again_who_has_the_key_itself_is_told_so(shard):
    shard.add(new("j1", unique="A"))
    assert shard.add(new("j1", unique="A"), again=True) == ["j1"]


def test_a_key_whose_job_has_vanished_stands_for_nothing(shard):
    shard.add(new("j1", wake=shard.now + 60_000, unique="A"))
    shard.client.hdel(shard.names["payload"], "j1")
    shard.sound = False
    assert shard.add(new("j2", unique="A")) == [""]


# -- claim


def test_a_claim_leases_what_is_ready_and_tells_all_of_it(index):
    index.add(new("j1", priority=3), new("j2"), new("j3", wake=index.now + 60_000))
    claim = index.claim()
    assert [(e.member, e.payload, e.lapsed, e.reclaims) for e in claim.entries] == [
        ("j1", "payload of j1", False, 0),
        ("j2", "payload of j2", False, 0),
    ]
    assert (claim.epoch, claim.holder.split(" ")[1]) == (index.epoch, "test")
    assert claim.now_ms - index.now == about(0)
    after = index.state()
    assert after["jobs"] == {"j1": about(LEASE_MS), "j2": about(LEASE_MS), "j3": 60_000}
    assert after["held"] == {"j1": claim.holder, "j2": claim.holder}
    assert "ready" not in after


def test_a_claim_tells_the_next_head(shard):
    shard.add(new("j1"), new("j2"))
    assert shard.claim(limit=1).head_ms - shard.now == about(0)
    assert shard.claim(request=2).head_ms - shard.now == about(LEASE_MS)


def test_what_is_not_due_is_not_claimed_and_the_head_is_told(shard):
    shard.add(new("j1", wake=shard.now + 60_000))
    before = shard.raw()
    claim = shard.claim()
    assert (claim.entries, claim.head_ms) == ((), shard.now + 60_000)
    assert shard.raw() == before
    assert JobShard(shard.broker, epoch=None, shard=PLACE).claim().entries == ()


def test_jobs_of_one_call_start_in_their_order_and_before_later_ones(index):
    first = [f"j{n * 7 % 250:03}" for n in range(250)]  # in no order of their names, which decides between equals
    index.add(*map(new, first))
    index.add(new("b"), new("a"))
    found = [name for request in (1, 2, 3) for name in names_of(index.claim(request=request))]
    assert found == [*first, "b", "a"]


def test_what_has_waited_for_a_time_starts_in_the_order_of_these_times(index):
    index.add(new("j1", wake=index.now + 60_000), new("j2", wake=index.now + 60_000), new("j3"))
    index.set_times(j1=index.now - 1000, j2=index.now - 2000)
    assert names_of(index.claim()) == ["j2", "j1", "j3"]


def test_the_urgent_one_goes_first_and_a_step_is_worth_a_minute_of_waiting(index):
    index.add(*(new(name, wake=index.now + 60_000, priority=rank) for name, rank in
                [("low", -1), ("plain", 0), ("high", 1), ("old", 0), ("older", -1)]))  # fmt: skip
    ago = {"low": 0, "plain": 1, "high": 0, "old": 1.5 * PATIENCE_MS, "older": 2.7 * PATIENCE_MS}
    index.set_times(**{name: index.now - 10 - ms for name, ms in ago.items()})
    # their turns, in minutes before now: older 1.7, old 1.5, high 1, plain 0, low -1
    assert names_of(index.claim()) == ["older", "old", "high", "plain", "low"]


def test_the_lower_is_not_starved_by_any_number_of_urgent_ones(index):
    index.add(new("low", wake=index.now + 60_000, priority=-100))
    index.set_times(low=index.now - 201 * PATIENCE_MS)
    index.add(*(new(f"j{n}", priority=100) for n in range(50)))
    assert names_of(index.claim(limit=1)) == ["low"]


def test_the_limit_is_kept_and_what_is_left_is_due(index):
    index.add(*(new(f"j{n}") for n in range(5)))
    claim = index.claim(limit=2)
    assert names_of(claim) == ["j0", "j1"]
    assert index.state()["ready"] == ["j2", "j3", "j4"]


def test_more_than_one_claim_moves_what_became_due_at_once(shard):
    """It is moved in parts; none of it is left behind, and nothing is held by nobody."""
    names = [f"j{n:04}" for n in range(1200)]
    shard.add(*(new(name, wake=shard.now + 60_000) for name in names))
    shard.client.zadd(shard.names["jobs"], {name: shard.now - 5000 + n for n, name in enumerate(names)})
    found = [name for request in range(1, 4) for name in names_of(shard.claim(request=request, limit=400))]
    assert found == names
    assert shard.claim(request=9).entries == ()


def test_a_lapsed_lease_is_told_and_has_another_holder(shard):
    shard.add(new("j1"), new("j2"))
    first = shard.claim(lease_ms=0, limit=1)
    second = shard.claim(request=2)
    assert {e.member: e.lapsed for e in second.entries} == {"j1": True, "j2": False}
    assert {e.member: e.former for e in second.entries} == {"j1": first.holder, "j2": ""}
    assert second.holder != first.holder
    assert set(shard.hash("held").values()) == {second.holder}


def test_the_same_request_gets_the_same_jobs_and_their_leases_anew(shard):
    shard.add(new("j1"), new("j2"))
    shard.claim(lease_ms=0, limit=1)
    first = shard.claim(request=2)
    shard.set_times(j1=shard.now + 5, j2=shard.now + 6)
    shard.add(new("j3"))
    again = shard.claim(request=2)
    forgotten = tuple(entry._replace(former="") for entry in first.entries)
    assert (again.entries, again.holder) == (forgotten, first.holder)
    assert {entry.member: entry.lapsed for entry in again.entries} == {"j1": True, "j2": False}
    assert shard.state()["jobs"] == {"j1": about(LEASE_MS), "j2": about(LEASE_MS)}


def test_the_same_request_gets_nothing_that_was_settled_or_taken_over(shard):
    shard.add(new("j1"), new("j2"), new("j3"))
    first = shard.claim(lease_ms=0)
    shard.settle(("j1", first.holder, "done", 1, ""))
    assert names_of(shard.claim(worker="other", limit=1)) == ["j2"]
    before = shard.hash("held")
    assert names_of(shard.claim()) == ["j3"]
    assert shard.hash("held") == before


def test_an_older_request_gets_nothing_and_another_process_has_its_own(shard):
    shard.add(new("j1"))
    shard.claim(request=5)
    shard.add(new("j2"))
    before = shard.raw()
    late = shard.claim(request=4)
    assert (late.entries, late.head_ms) == ((), None)
    assert shard.raw() == before
    assert names_of(shard.claim(request=1, worker="other")) == ["j2"]
    assert 0 < shard.client.pttl(shard.names["taken"]) <= 10 * LEASE_MS


def test_a_claim_of_points_and_one_of_jobs_may_have_one_request_number(shard):
    shard.add(new("j1"))
    shard.client.zadd(shard.names["due"], {"s1": shard.now - 1000})
    points = shard.broker.claim(PLACE, limit=5, lease_ms=LEASE_MS, request=1)
    assert ([entry.member for entry in points.entries], points.jobs_due) == (["s1"], True)
    assert names_of(shard.claim(request=1)) == ["j1"]
    assert not shard.broker.claim(PLACE, limit=5, lease_ms=LEASE_MS, request=2).jobs_due


def test_where_there_is_no_epoch_nothing_is_claimed(shard):
    shard.add(new("j1"))
    shard.client.delete(shard.names["epoch"])
    before = shard.raw()
    claim = shard.claim()
    assert (claim.epoch, claim.entries) == (None, ())
    assert shard.raw() == before


def test_fences_of_points_and_jobs_never_come_twice(shard):
    fences = []
    for request in range(1, 6):
        shard.client.zadd(shard.names["due"], {"s1": shard.now - 1000})
        fences.append(shard.broker.claim(PLACE, limit=5, lease_ms=0, request=request).fence)
        shard.add(new(f"j{request}"))
        fences.append(shard.claim(request=request).holder.split(" ")[0])
    assert fences == sorted(set(fences))


@pytest.mark.parametrize(
    "member", [b"\xff\xfe", "a b", "x", "", "j" * 5000], ids=["bytes", "space", "x", "empty", "long"]
)
@pytest.mark.parametrize("part", ["jobs", "ready"])
@pytest.mark.parametrize("score", ["-inf", 0.0, 1.5, "past"])
def test_a_garbage_member_can_be_dropped_by_its_claimer(shard, member, part, score):
    shard.client.zadd(shard.names[part], {member: shard.now - 1000 if score == "past" else score})
    shard.sound = False
    claim = shard.claim()
    (entry,) = claim.entries
    assert entry.payload == ""
    assert shard.claim().entries in ((), claim.entries)  # one that reads like several is not repeated
    shard.renew((entry.member, claim.holder), start=True)
    assert shard.settle((entry.member, claim.holder, "done", 0, "")) == [True]
    assert shard.state() == {}
    assert shard.pointer() is None


# -- renew and start


def test_a_renewal_extends_own_leases_and_creates_nothing(index):
    holder = index.held("j1", "j2")
    index.set_times(j1=index.now + 5, j2=index.now + 6)
    index.give_to("other", "j2")
    assert index.renew(("j1", holder), ("j2", holder), ("j3", holder)) == {"j2", "j3"}
    after = index.state()
    assert after["jobs"] == {"j1": about(LEASE_MS), "j2": 6}
    assert "reclaims" not in after
    assert index.renew() == set()


def test_a_renewal_takes_back_what_has_lapsed_and_nobody_has_taken(shard):
    shard.add(new("j1"), new("j2"))
    holder = shard.claim(lease_ms=0).holder
    assert names_of(shard.claim(worker="other", limit=1)) == ["j1"]
    assert shard.state()["ready"] == ["j2"]
    assert shard.renew(("j1", holder), ("j2", holder)) == {"j1"}
    assert shard.state()["jobs"] == {"j1": about(LEASE_MS), "j2": about(LEASE_MS)}


def test_a_start_after_a_lapsed_lease_is_counted_and_told_to_the_next_claimer(shard):
    shard.add(new("j1"))
    for count in range(3):
        claim = shard.claim(request=count + 1, lease_ms=0)
        assert [entry.reclaims for entry in claim.entries] == [count]
        assert shard.renew(("j1", claim.holder), start=True) == set()
        shard.client.zadd(shard.names["jobs"], {"j1": shard.now - 5})
    assert shard.hash("reclaims") == {"j1": "3"}


def test_a_start_of_what_has_a_result_is_none_and_forgets_it(shard):
    holder = shard.held("j1", "j2", "j3", unique="")
    shard.put_result("j2")
    assert shard.renew(("j1", holder), ("j2", holder), ("j3", holder), start=True) == {"j2"}
    assert set(shard.state()["jobs"]) == {"j1", "j3"}
    assert shard.result("j2") == ("result", True)


def test_a_start_under_a_foreign_holder_counts_nothing(shard):
    shard.held("j1")
    shard.put_result("j1")
    before = shard.raw()
    assert shard.renew(("j1", "1.e1 somebody"), start=True) == {"j1"}
    assert shard.raw() == before


# -- settle


def test_done_leaves_the_result_and_nothing_else(index):
    holder = index.held("j1", "j2", priority=4, unique="")
    index.renew(("j1", holder), start=True)
    assert index.settle(("j1", holder, "done", 60_000, "text"), ("j2", holder, "done", 0, "")) == [True, True]
    assert index.state() == {}
    assert (index.result("j1"), index.result("j2")) == (("text", True), None)


def test_dead_keeps_the_text_among_the_dead(index):
    holder = index.held("j1", priority=4, unique="A")
    index.renew(("j1", holder), start=True)
    assert index.settle(("j1", holder, "dead", 0, "why")) == [True]
    assert index.state() == {"dead": {"j1": about(0)}, "payload": {"j1": "why"}}
    assert index.pointer() is None


def test_retry_keeps_the_text_and_the_priority_and_forgets_take_overs(index):
    holder = index.held("j1", "j2", priority=4)
    index.renew(("j1", holder), start=True)
    assert index.settle(("j1", holder, "retry", 10_000, "once"), ("j2", holder, "retry", 0, "at once")) == [True, True]
    assert index.state() == {
        "jobs": {"j1": about(10_000)},
        "ready": ["j2"],
        "payload": {"j1": "once", "j2": "at once"},
        "priority": {"j1": "4", "j2": "4"},
    }
    assert index.renew(("j1", holder), ("j2", holder)) == {"j1", "j2"}, "their leases are over"


def test_release_keeps_everything_and_frees_the_lease(index):
    holder = index.held("j1", "j2")
    assert index.settle(("j1", holder, "release", 10_000, ""), ("j2", holder, "release", 0, "")) == [True, True]
    assert index.state() == {
        "jobs": {"j1": about(10_000)},
        "ready": ["j2"],
        "payload": {"j1": "payload of j1", "j2": "payload of j2"},
    }
    assert [entry.lapsed for entry in index.claim(request=10**15).entries] == [False]


@pytest.mark.parametrize(("text", "counted"), [("lapsed", 2), ("begun", 1)])
def test_what_was_claimed_after_a_lapsed_lease_is_handed_back_as_such(shard, text, counted):
    holder = shard.held("j1")
    shard.client.hset(shard.names["reclaims"], "j1", 2)
    assert shard.settle(("j1", holder, "release", 0, text)) == [True]
    assert shard.renew(("j1", holder)) == {"j1"}, "its lease is over"
    (entry,) = shard.claim(request=10**15).entries
    assert (entry.lapsed, entry.reclaims, entry.former) == (True, counted, "")


def test_a_start_taken_back_is_never_less_than_none(index):
    holder = index.held("j1")
    index.settle(("j1", holder, "release", 0, "begun"))
    assert [entry.reclaims for entry in index.claim(request=10**15).entries] == [0]


@pytest.mark.parametrize("what", ["done", "dead", "retry", "release"])
def test_a_foreign_holder_changes_nothing(index, what):
    index.held("j1", unique="A")
    index.add(new("j2"))
    before = index.raw()
    items = [(name, holder, what, 60_000, "text") for name in ("j1", "j2", "j3") for holder in ("1.e1 test", "", "-")]
    assert index.settle(*items) == [False] * 9
    assert index.raw() == before
    assert [index.result(name) for name in ("j1", "j2", "j3")] == [None] * 3


@pytest.mark.parametrize("what", ["done", "dead"])
def test_what_follows_an_end_is_added_with_it_and_only_by_its_holder(index, what):
    holder = index.held("j1", "j2")
    items = [("j1", "other", what, 0, "", callback_text("j8", 0, "a b\nc")), ("j2", holder, what, 0, "", "j9 -7 text")]
    assert index.settle(*items) == [False, True]
    assert index.state()["ready"] == ["j9"]
    assert (index.hash("payload")["j9"], index.state()["priority"]) == ("text", {"j9": "-7"})
    assert index.settle(("j1", holder, what, 0, "", items[0][-1])) == [True]
    assert index.hash("payload")["j8"] == "a b\nc"
    assert sorted(names_of(index.claim(request=2**50))) == ["j8", "j9"]


def test_a_settlement_that_comes_twice_counts_once(index):
    holder = index.held("j1")
    item = ("j1", holder, "retry", 0, "text")
    assert index.settle(item) == [True]
    index.claim(request=10**15)
    before = index.raw()
    assert index.settle(item) == [False]
    assert index.raw() == before


def test_each_result_of_a_batch_stands_under_its_own_name(index):
    holder = index.held("j1", "j2", "j3")
    index.settle(
        ("j1", holder, "done", 60_000, "one"),
        ("j2", "other", "done", 60_000, "two"),
        ("j3", holder, "done", 60_000, "3"),
    )
    assert [index.result(name) for name in ("j1", "j2", "j3")] == [("one", True), None, ("3", True)]


def test_dead_jobs_that_are_too_old_are_forgotten(shard):
    holder = shard.held("j1", "j2", "j3")
    shard.settle(("j1", holder, "dead", 0, "one"), ("j2", holder, "dead", 0, "two"))
    shard.client.zadd(shard.names["dead"], {"j1": shard.now - DEAD_MS - 5, "j2": shard.now - DEAD_MS + 60_000})
    shard.settle(("j3", holder, "dead", 0, "three"))
    assert set(shard.state()["dead"]) == {"j2", "j3"}
    assert set(shard.hash("payload")) == {"j2", "j3"}


@pytest.mark.parametrize("size", [5, 300])
def test_of_too_many_dead_jobs_the_oldest_are_forgotten(index, size):
    names = [f"j{n:04}" for n in range(size)]
    index.add(*map(new, names))
    holder = index.claim(limit=size).holder
    index.settle(*((name, holder, "dead", 0, "") for name in names), dead_most=3)
    assert sorted(index.state()["dead"]) == names[-3:]
    assert sorted(index.hash("payload")) == names[-3:]


# -- what people do


def test_cancel_forgets_what_waits_and_leaves_the_text_as_its_result(index):
    index.add(new("j1", priority=4, unique="A"), new("j2", wake=index.now + 60_000))
    assert index.change("j1", "cancel", 60_000, "cancelled") == "OK"
    assert index.change("j2", "cancel") == "OK"
    assert index.state() == {}
    assert (index.result("j1"), index.result("j2")) == (("cancelled", True), None)


def test_move_puts_off_and_forward(index):
    index.add(new("j1", priority=4), new("j2", wake=index.now + 60_000))
    assert index.change("j1", "move", index.now + 90_000) == "OK"
    assert index.pointer() == index.now + 60_000
    assert index.change("j2", "move", index.now - 1) == "OK"
    assert index.state() == {
        "jobs": {"j1": 90_000},
        "ready": ["j2"],
        "payload": {"j1": "payload of j1", "j2": "payload of j2"},
        "priority": {"j1": "4"},
    }


@pytest.mark.parametrize("what", ["cancel", "move"])
def test_what_a_worker_has_is_neither_cancelled_nor_moved(index, what):
    index.held("j1")
    before = index.raw()
    assert index.change("j1", what, 60_000, "text") == "HELD"
    assert index.raw() == before


@pytest.mark.parametrize("text", ["lapsed", "begun"])
def test_what_was_handed_back_after_a_lapsed_lease_is_nobodys_and_can_be_changed(shard, text):
    holder = shard.held("j1")
    shard.settle(("j1", holder, "release", 60_000, text))
    assert shard.change("j1", "move", shard.now + 90_000) == "OK"
    assert shard.state()["jobs"] == {"j1": 90_000}
    assert shard.hash("held") == {"j1": "-"}, "its next claimer shall still know"
    assert shard.change("j1", "cancel", 60_000, "cancelled") == "OK"
    assert shard.state() == {}


@pytest.mark.parametrize(("what", "reply"), [("cancel", "DEAD"), ("move", "DEAD"), ("revive", "OK"), ("bury", "OK")])
def test_what_people_can_do_to_a_dead_job(index, what, reply):
    holder = index.held("j1")
    index.settle(("j1", holder, "dead", 0, "why"))
    before = index.raw()
    assert index.change("j1", what, 3, "anew") == reply
    if what == "revive":
        assert index.state() == {"ready": ["j1"], "payload": {"j1": "anew"}, "priority": {"j1": "3"}}
        (entry,) = index.claim(request=10**15).entries
        assert (entry.payload, entry.lapsed, entry.reclaims) == ("anew", False, 0)
    elif what == "bury":
        assert index.state() == {}
    else:
        assert index.raw() == before


@pytest.mark.parametrize(("what", "reply"), [("revive", "WAITING"), ("bury", "WAITING")])
def test_what_is_alive_is_neither_revived_nor_buried(index, what, reply):
    index.add(new("j1"))
    before = index.raw()
    assert index.change("j1", what, 0, "text") == reply
    assert index.raw() == before


def test_a_revived_job_takes_its_unique_key_again(index):
    holder = index.held("j1", unique="A")
    index.settle(("j1", holder, "dead", 0, "why"))
    assert index.change("j1", "revive", 0, "anew", unique="A") == "OK"
    assert index.hash("unique") == {"kA": "j1", "j1": "kA"}
    assert index.add(new("j2", unique="A")) == ["j1"]
    index.claim(request=10**15)
    assert index.hash("unique") == {"j1": "kA"}
    assert index.add(new("j2", unique="A")) == [""]


def test_a_dead_job_whose_key_another_one_has_is_not_revived(index):
    holder = index.held("j1", unique="A")
    index.settle(("j1", holder, "dead", 0, "why"))
    index.add(new("j2", unique="A"))
    before = index.raw()
    assert index.change("j1", "revive", 0, "anew", unique="A") == "TAKEN"
    assert index.raw() == before
    claim = index.claim(request=10**15)
    assert names_of(claim) == ["j2"]
    assert index.change("j1", "revive", 0, "anew", unique="A") == "OK", "the other one has begun"


def test_a_key_of_a_job_that_is_gone_keeps_no_dead_one_from_being_revived(shard):
    holder = shard.held("j1", unique="A")
    shard.settle(("j1", holder, "dead", 0, "why"))
    shard.client.hset(shard.names["unique"], mapping={"kA": "j9"})
    assert shard.change("j1", "revive", 0, "anew", unique="A") == "OK"
    assert shard.hash("unique") == {"kA": "j1", "j1": "kA"}


@pytest.mark.parametrize("what", ["cancel", "move", "revive", "bury"])
def test_what_is_not_there_cannot_be_changed(index, what):
    index.add(new("j1"))
    before = index.raw()
    assert index.change("j2", what, 60_000, "text") == "GONE"
    assert index.raw() == before
    assert index.result("j2") is None


def test_a_buried_job_takes_an_old_result_with_it(index):
    holder = index.held("j1")
    index.settle(("j1", holder, "dead", 0, "why"))
    index.put_result("j1")
    assert index.change("j1", "bury") == "OK"
    assert index.result("j1") is None


# -- counts and views


def test_counts(shard):
    holder = shard.held("j1", "j2", "j3")
    shard.add(new("j4"), new("j5", wake=shard.now + 60_000), new("j6", wake=shard.now + 60_000))
    shard.settle(("j1", holder, "dead", 0, ""))
    (counts,) = shard.jobs.counts([PLACE])
    assert counts == (2, 1, 2, 1)


def test_a_view_tells_what_stands_of_a_job(index):
    holder = index.held("j1", "j2")
    index.settle(("j2", holder, "dead", 0, "why"))
    index.add(new("j3", wake=index.now + 60_000))
    index.put_result("j4")
    one, two, three, four, five = index.jobs.views([(PLACE, f"j{n}") for n in range(1, 6)])
    assert (one.payload, one.holder, one.waits_until_ms - index.now) == ("payload of j1", holder, about(LEASE_MS))
    assert (two.payload, two.died_ms - index.now, two.holder) == ("why", about(0), "")
    assert (three.waits_until_ms, three.result) == (index.now + 60_000, "")
    assert (four.payload, four.result) == ("", "result")
    assert five == ("", "", None, None, "")


# -- many at once


@pytest.mark.parametrize("size", [100, 1000])
def test_every_script_takes_a_whole_batch(shard, size):
    names = [f"j{n:04}" for n in range(size)]
    assert shard.add(*(new(name, priority=n % 3, unique=name) for n, name in enumerate(names))) == [""] * size
    claim = shard.claim(limit=size)
    assert sorted(names_of(claim)) == names
    assert shard.claim(limit=size).entries == claim.entries
    leases = [(name, claim.holder) for name in names]
    assert shard.renew(*leases, start=True) == set()
    assert shard.settle(*((*lease, "retry", 0, "") for lease in leases)) == [True] * size
    second = shard.claim(request=2, limit=size).holder
    assert shard.settle(*((name, second, "release", 0, "begun") for name in names)) == [True] * size
    third = shard.claim(request=3, limit=size).holder
    assert shard.settle(*((name, third, "dead", 0, "") for name in names)) == [True] * size
    assert {shard.change(name, "revive", 1, "x") for name in names[:3]} == {"OK"}
    fourth = shard.claim(request=4, limit=size).holder
    assert shard.settle(*((name, fourth, "done", 1000, "x") for name in names)) == [True] * 3 + [False] * (size - 3)


def test_no_script_takes_the_lease_of_another_process(shard):
    """Two processes in turns, with leases that end at once: what one has settled, the other has not."""
    shard.add(*(new(f"j{n}") for n in range(20)))
    settled = []
    for request in range(1, 30):
        one = shard.claim(request=request, limit=3, lease_ms=0)
        time.sleep(0.002)  # the leases end by the server's clock
        other = shard.claim(request=request, limit=2, lease_ms=0, worker="other")
        for claim in (one, other):
            items = [(name, claim.holder, "done", 60_000, claim.holder) for name in names_of(claim)]
            replies = shard.settle(*items) if items else []
            settled += [name for (name, *_), applied in zip(items, replies, strict=True) if applied]
    assert sorted(settled) == sorted(f"j{n}" for n in range(20))


def test_where_many_are_too_old_and_too_many_each_death_takes_more_than_it_adds(shard):
    shard.sound = False  # the dead of this test have no payloads
    shard.client.zadd(shard.names["dead"], {f"d{n:04}": shard.now - DEAD_MS - 60_000 + n for n in range(1000)})
    shard.client.zadd(shard.names["dead"], {f"e{n:04}": shard.now + n for n in range(1000)})
    for left in (1900, 1800):
        holder = shard.held(f"j{left}")
        shard.settle((f"j{left}", holder, "dead", 0, ""), dead_most=1500)
        assert shard.client.zcard(shard.names["dead"]) == left


def test_jobs_of_one_call_may_differ_in_everything(index):
    far = 4 * 10**12
    jobs = (
        new("j1"), new("j2", wake=far), new("j3", priority=-3), new("j4", wake=-5, unique="A b"),
        new("j5", wake=far + 1, priority=7, unique="C"),
    )  # fmt: skip
    assert index.add(*jobs) == [""] * 5
    state = index.state()
    assert state["ready"] == ["j1", "j4", "j3"]
    assert state["jobs"] == {"j2": far - index.now, "j5": far + 1 - index.now}
    assert state["priority"] == {"j3": "-3", "j5": "7"}
    assert state["unique"] == {"kA b": "j4", "j4": "kA b", "kC": "j5", "j5": "kC"}
    assert state["payload"] == {job.member: job.payload for job in jobs}
