"""What a worker asks of points: seed a shard, one call, compare the whole state."""

import pytest

from django_delayq.index import EntryDefinition, Settlement, Shard
from tests.integration.shard import LEASE_MS, PLACE, about, names_of

# -- claim


def test_claim_leases_the_oldest_due_members_up_to_the_limit_and_moves_their_scores(shard):
    for name, due in (("s1", -3000), ("s2", -1000), ("s3", -2000), ("s4", 60_000)):
        shard.member(name, due)
    shard.seed(attempts={"s3": 2})
    claim = shard.claim(limit=2)
    assert names_of(claim) == ["s1", "s3"]
    assert [(entry.point_ms - shard.now, entry.generation) for entry in claim.entries] == [(-3000, 7), (-2000, 7)]
    assert [(entry.attempts, entry.lapsed) for entry in claim.entries] == [(0, False), (2, False)]
    assert claim.epoch == shard.epoch
    assert claim.fence
    assert shard.state() == {
        "due": {"s1": about(LEASE_MS), "s2": -1000, "s3": about(LEASE_MS), "s4": 60_000},
        "point": {"s1": -3000, "s2": -1000, "s3": -2000, "s4": 60_000},
        "gen": dict.fromkeys(("s1", "s2", "s3", "s4"), "7"),
        "lease": {"s1": claim.holder, "s3": claim.holder},
        "attempts": {"s3": "2"},
    }


# -- lanes and turns: see Note [Two lanes per claim] in `lua/_prelude.lua`


def test_points_and_jobs_share_a_claim_by_halves(shard):
    for n in range(6):
        shard.member(f"j{n}", due=-9000 + n)
        shard.member(f"s{n}", due=-500 + n)
    assert names_of(shard.claim(request=2, limit=4)) == ["s0", "j0", "s1", "j1"]
    assert names_of(shard.claim(request=3, limit=3)) == ["s2", "j2", "s3"]
    assert names_of(shard.claim(request=4, limit=3)) == ["s4", "j3", "j4"]
    assert names_of(shard.claim(request=5, limit=3)) == ["s5", "j5"]


def seed_jobs(shard, count):
    due = {f"j{n}": -9000 for n in range(count)}
    shard.seed(due=due, point=due, gen=dict.fromkeys(due, 7))


@pytest.mark.parametrize("limit", [1, 100])
def test_a_point_that_is_due_does_not_wait_behind_a_thousand_due_jobs(shard, limit):
    seed_jobs(shard, 1000)
    shard.member("s1", due=-5)
    assert "s1" in names_of(shard.claim(request=1, limit=limit)) + names_of(shard.claim(request=2, limit=limit))


def test_a_step_of_priority_is_worth_a_minute_of_waiting(shard):
    shard.member("j1", due=-59_000)
    shard.member("j2", due=-1000, priority=1)
    shard.member("j3", due=-130_000, priority=-1)
    shard.member("j4", due=60_000, priority=100)  # nothing starts early
    assert [names_of(shard.claim(request=n, limit=1)) for n in (2, 3, 4, 5)] == [["j3"], ["j2"], ["j1"], []]


def test_within_one_claim_the_urgent_ones_come_first(shard):
    shard.member("s1", due=-9000)
    shard.member("s2", due=-1000, priority=1)
    assert names_of(shard.claim()) == ["s2", "s1"]


def test_what_is_handed_back_unbegun_keeps_its_place(shard):
    shard.member("s1", due=-9000)
    shard.member("s2", due=-5000)
    holder = shard.claim(limit=1).holder
    assert shard.broker.settle(PLACE, [Settlement("s1", holder, "release")]).replies == [1]
    assert names_of(shard.claim(request=2, limit=1)) == ["s1"]


def test_what_waits_for_its_turn_is_in_one_set_only_and_keeps_no_set_alive(shard):
    shard.member("j9", due=60_000, priority=1)  # else all are claimed by their scores
    for n in range(4):
        shard.member(f"j{n}", due=-9000 + n)
    claim = shard.claim(limit=1)
    assert shard.turns() == {"j1": -8999, "j2": -8998, "j3": -8997}
    assert claim.head_ms == claim.now_ms
    assert shard.broker.read_heads([PLACE]) == [0]
    assert [item.score_ms for item in shard.broker.read_views([("s9", "default"), ("j1", "default")])] == [None, 0]
    shard.broker.upsert(PLACE, [EntryDefinition("j2", 7, shard.now + 500, shard.now + 60_000)], mode="move")
    assert shard.turns() == {"j1": -8999, "j3": -8997}
    assert names_of(shard.claim(request=2)) == ["j1", "j3"]
    assert not shard.client.exists(shard.names["jobs-ready"])
    assert shard.broker.read_stats([PLACE])[0].members == 5


def test_what_comes_while_others_wait_for_their_turn_gets_its_own(shard):
    for n in range(3):
        shard.member(f"j{n}", due=-9000 + n)
    held = shard.claim(limit=1)
    shard.broker.upsert(PLACE, [EntryDefinition("j8", 7, shard.now, 0, priority=9)], mode="new")
    shard.broker.upsert(PLACE, [EntryDefinition("j9", 7, shard.now + 5000, shard.now + 5000, priority=9)], mode="new")
    shard.broker.settle(PLACE, [Settlement("j0", held.holder, "release", 0)])
    assert names_of(shard.claim(request=2)) == ["j8", "j0", "j1", "j2"]


def test_an_urgent_job_does_not_wait_behind_what_was_never_claimed(shard):
    seed_jobs(shard, 2000)
    shard.broker.upsert(PLACE, [EntryDefinition("j5000", 7, shard.now, 0, priority=9)], mode="new")
    assert names_of(shard.claim(limit=1)) == ["j5000"]


def test_a_claim_tells_the_next_head(shard):
    shard.member("s1", -3000)
    shard.member("s2", -1000)
    assert shard.claim(limit=1).head_ms == shard.now - 1000


def test_claim_of_nothing_tells_the_head_and_writes_nothing(shard):
    shard.member("s1", due=60_000)
    before = shard.state()
    claim = shard.claim()
    assert (claim.entries, claim.fence, claim.head_ms) == ((), "", shard.now + 60_000)
    assert claim.now_ms - shard.now == about(0)
    assert shard.state() == before
    assert not shard.client.exists(shard.names["journal"])


def test_a_repeated_request_gets_the_same_members_and_renews_them(shard):
    shard.member("s1")
    shard.member("s2", lease="somebody before")
    first = shard.claim()
    shard.seed(due={"s1": 5, "s2": 5})
    shard.member("s3")
    again = shard.claim()
    assert (again.entries, again.fence) == (first.entries, first.fence)
    assert [entry.lapsed for entry in again.entries] == [False, True]
    assert shard.state()["due"] == {"s1": about(LEASE_MS), "s2": about(LEASE_MS), "s3": -1000}


def test_a_repeated_request_gets_nothing_that_somebody_took_over(shard):
    shard.member("s1")
    shard.member("s2")
    shard.claim(lease_ms=0)
    taken = shard.claim(worker="other", limit=1)
    before = shard.state()
    again = shard.claim()
    assert len(taken.entries) == 1
    assert names_of(again) == [name for name in ("s1", "s2") if name not in names_of(taken)]
    after = shard.state()
    assert after["lease"] == before["lease"]
    name = names_of(taken)[0]
    assert after["due"][name] == before["due"][name]


def test_a_repeated_request_gets_nothing_that_was_settled(shard):
    shard.member("s1")
    first = shard.claim()
    shard.broker.settle(PLACE, [Settlement("s1", first.holder, "drop", 0, 7)])
    assert shard.claim().entries == ()
    assert shard.state() == {}


def test_an_older_request_gets_nothing(shard):
    shard.member("s1")
    shard.claim(request=5)
    shard.member("s2")
    before = shard.state()
    late = shard.claim(request=4)
    assert (late.entries, late.head_ms) == ((), None)
    assert shard.state() == before


def test_the_journal_belongs_to_one_process_and_expires(shard):
    shard.member("s1")
    shard.claim(request=9)
    shard.member("s2")
    assert names_of(shard.claim(request=1, worker="other")) == ["s2"]
    assert 0 < shard.client.pttl(shard.names["journal"]) <= 10 * LEASE_MS


def test_a_lapsed_lease_is_told_and_gets_another_fence(shard):
    shard.member("s1")
    first = shard.claim(lease_ms=0)
    second = shard.claim(request=2)
    assert [entry.lapsed for entry in second.entries] == [True]
    assert second.fence != first.fence
    assert shard.state()["lease"] == {"s1": second.holder}


def test_a_fence_says_when_it_was_given_and_comes_once(shard):
    claims = []
    for request in range(1, 30):
        shard.member("s1")
        claims.append(shard.claim(request=request))
    assert [int(claim.fence.partition(".")[0]) for claim in claims] == [claim.now_ms for claim in claims]
    assert len({claim.fence.partition(".")[2] for claim in claims}) == 29  # also in one ms, or after a clock's step


@pytest.mark.parametrize("empty", [False, True])
def test_without_an_epoch_nothing_is_claimed(shard, empty):
    """What claims nothing must also be what is rebuilt, or the shard stands still."""
    shard.client.delete(shard.names["epoch"])
    if empty:
        shard.seed(epoch="")
    shard.member("s1")
    before = shard.state()
    claim = shard.claim()
    assert (claim.epoch, claim.entries) == (None, ())
    assert shard.state() == before
    assert shard.broker.read_epochs([PLACE]) == [None]


def test_claims_go_on_during_a_rebuild(shard):
    shard.seed(epoch="building:b7")
    shard.member("s1")
    claim = shard.claim()
    assert (claim.epoch, names_of(claim)) == ("building:b7", ["s1"])


# -- renew, hand back


def test_renew_extends_own_leases_and_creates_nothing(shard):
    shard.held("s1", "s2")
    shard.seed(due={"s1": 5, "s2": 6})
    shard.seed(lease={"s2": "other"})
    lost = shard.broker.renew(PLACE, [("s1", "f"), ("s2", "f"), ("s3", "f")], lease_ms=LEASE_MS)
    assert lost == {"s2", "s3"}
    assert shard.state() == {
        "due": {"s1": about(LEASE_MS), "s2": 6},
        "point": {"s1": LEASE_MS, "s2": LEASE_MS},
        "gen": {"s1": "7", "s2": "7"},
        "lease": {"s1": "f", "s2": "other"},
    }


def test_what_was_claimed_after_a_lapsed_lease_is_handed_back_as_such(shard):
    """Rule R6: who was perhaps executed before is a suspect for its next claimer too."""
    shard.held("s1", "s2")
    settled = shard.broker.settle(PLACE, [Settlement("s1", "f", "lapsed"), Settlement("s2", "f", "release")])
    assert settled.replies == [1, 1]
    assert shard.broker.renew(PLACE, [("s1", "f")], lease_ms=LEASE_MS) == {"s1"}, "its lease is over"
    assert {entry.member: entry.lapsed for entry in shard.claim().entries} == {"s1": True, "s2": False}


@pytest.mark.parametrize(("what", "attempts"), [("release", {"s1": "1"}), ("retry", {"s1": "2", "s2": "1"})])
def test_handing_back_ends_the_lease_keeps_the_point_and_only_a_retry_counts(shard, what, attempts):
    shard.held("s1", "s2", "s3")
    shard.seed(attempts={"s1": 1})
    waits = [("s1", "f", 0), ("s2", "f", 10_000), ("s3", "foreign", 0), ("s4", "f", 0)]
    items = [Settlement(member, fence, what, ms) for member, fence, ms in waits]
    settled = shard.broker.settle(PLACE, items)
    assert settled.replies == [1, 1, 0, 0]
    after = {
        "due": {"s1": about(0), "s2": about(10_000), "s3": LEASE_MS},
        "point": dict.fromkeys(("s1", "s2", "s3"), LEASE_MS),
        "gen": dict.fromkeys(("s1", "s2", "s3"), "7"),
        "lease": {"s3": "f"},
        "attempts": attempts,
    }
    assert shard.state() == after
    assert shard.broker.settle(PLACE, items).replies == [0, 0, 0, 0]
    assert shard.state() == after


def test_a_settlement_tells_the_head(shard):
    shard.held("s1", "s2")
    settled = shard.broker.settle(PLACE, [Settlement("s1", "f", "release"), Settlement("s2", "f", "release", 10_000)])
    assert settled.head_ms == settled.now_ms, "what was handed back first"


# -- settle

SETTLED = [
    ("moves on", 7, 7, 90_000, 1, {"due": 95_000, "point": 90_000, "gen": "7"}),
    ("moves on with a newer definition", 7, 9, 90_000, 1, {"due": 95_000, "point": 90_000, "gen": "9"}),
    ("moves to a point that has passed", 7, 7, -9000, 1, {"due": -4000, "point": -9000, "gen": "7"}),
    ("drops every trace", 7, 7, None, 1, {}),
    ("edited meanwhile: due at once", 8, 7, 90_000, 2, {"due": about(0), "point": LEASE_MS, "gen": "8"}),
    ("edited meanwhile: not dropped", 8, 7, None, 2, {"due": about(0), "point": LEASE_MS, "gen": "8"}),
]


@pytest.mark.parametrize(("stored", "used", "point", "reply", "after"), [row[1:] for row in SETTLED],
                         ids=[row[0] for row in SETTLED])  # fmt: skip
def test_settle(shard, stored, used, point, reply, after):
    shard.held("s1")
    shard.seed(attempts={"s1": 3}, gen={"s1": stored})
    target = None if point is None else shard.now + point
    what = ("drop", 0, used) if target is None else ("next", target + 5000, used, target)
    item, foreign = Settlement("s1", "f", *what), Settlement("s1", "other", *what)
    assert shard.broker.settle(PLACE, [foreign]).replies == [0]
    assert shard.state()["lease"] == {"s1": "f"}
    assert shard.broker.settle(PLACE, [item]).replies == [reply]
    wanted = {part: {"s1": value} for part, value in after.items()}
    assert shard.state() == wanted
    assert shard.broker.settle(PLACE, [item]).replies == [0]
    assert shard.state() == wanted


def test_settle_where_no_generation_is_known(shard):
    shard.held("s1")
    shard.client.hdel(shard.names["gen"], "s1")
    item = Settlement("s1", "f", "next", shard.now + 95_000, 7, shard.now + 90_000)
    assert shard.broker.settle(PLACE, [item]).replies == [1]
    assert shard.state() == {"due": {"s1": 95_000}, "point": {"s1": 90_000}, "gen": {"s1": "7"}}


# -- enqueue, stats, epoch


def test_stats_count_without_changing(shard):
    shard.held("s1")
    shard.member("s2", due=-1000)
    shard.member("s3", due=5_000)
    before, stats = shard.state(), shard.broker.read_stats([PLACE])[0]
    assert (stats.members, stats.due, stats.leased, stats.head_ms, stats.epoch) == (3, 1, 1, shard.now - 1000, "e1")
    assert stats.now_ms - shard.now == about(0)
    assert shard.state() == before


def test_the_epoch_is_compared_and_set(shard):
    broker = shard.broker
    assert broker.swap_epochs([PLACE], None, "x") == [False]
    assert broker.swap_epochs([PLACE], "e0", "x") == [False]
    assert broker.read_epochs([PLACE]) == ["e1"]
    assert broker.swap_epochs([PLACE], "e1", "building:b", ttl_ms=60_000) == [True]
    assert 0 < shard.client.pttl(shard.names["epoch"]) <= 60_000
    assert broker.swap_epochs([PLACE], "building:b", "b") == [True]
    assert shard.client.pttl(shard.names["epoch"]) == -1
    shard.client.delete(shard.names["epoch"])
    assert broker.swap_epochs([PLACE], None, "new") == [True]
    assert broker.read_epochs([PLACE, Shard("mail", 0)]) == ["new", None]


# -- many at once


def test_every_script_takes_a_whole_batch(shard):
    size, broker, past = 1000, shard.broker, shard.now - 1000
    members = [f"s{n}" for n in range(size)]

    def settled(claim, *what):
        return broker.settle(PLACE, [Settlement(name, claim.holder, *what) for name in members]).replies == [1] * size

    assert broker.upsert(PLACE, [EntryDefinition(name, 1, past, past) for name in members]) == ["NEW"] * size
    claim = shard.claim(limit=size)
    assert sorted(names_of(claim)) == sorted(members)
    assert shard.claim(limit=size).entries == claim.entries
    assert broker.renew(PLACE, [(name, claim.holder) for name in members], lease_ms=LEASE_MS) == set()
    assert settled(claim, "retry")
    second = shard.claim(request=2, limit=size)
    assert {entry.attempts for entry in second.entries} == {1}
    assert settled(second, "release")
    assert settled(shard.claim(request=3, limit=size), "next", past, 1, past)
    assert settled(shard.claim(request=4, limit=size), "drop", 0, 1)
    assert shard.state() == {}
    ahead = shard.now + 60_000
    rows = [EntryDefinition(f"j{n}", 1, ahead, ahead) for n in range(size)]
    assert broker.upsert(PLACE, rows, mode="new") == ["NEW"] * size
    assert broker.remove(PLACE, [(f"j{n}", 1, "") for n in range(size)]) == ["REMOVED"] * size
    assert shard.state() == {}
