"""The scripts that the mirror uses, hints, the files themselves, and damage: what garbage under our keys may not do."""

import ast
import inspect
import os
import re
from importlib.resources import files

import pytest
import redis
from redis.crc import key_slot

from django_delayq.broker import Broker, Definition, Lease, Place, Settlement, keys, scripts
from django_delayq.exceptions import DamagedKeys
from tests.integration.shard import LEASE_MS, PLACE, Shard, about, names_of

HEADER = ("PURPOSE", "KEYS", "ARGV", "RETURNS", "COST", "ATOMIC BECAUSE")


@pytest.fixture
def shard(broker):
    return Shard(broker)


# -- upsert
#
# A seeded entry of generation 7; an upsert of `generation` with point 50,000 and wake 51,000; what becomes of it.

LATER = {"due": 60_000, "point": 60_000, "gen": "7"}
OVERDUE = {"due": -1000, "point": -1000, "gen": "7"}
LEASED = {"due": LEASE_MS, "point": -1000, "gen": "7", "lease": "f"}
FRESH = {"due": 51_000, "point": 50_000, "gen": "8"}
RETRYING = {"due": 9000, "point": 8000, "gen": "7", "attempts": "1"}

UPSERTED = [
    ("unknown", {}, 8, "", "", "NEW", FRESH),
    ("newer", LATER, 8, "", "", "MOVED", FRESH),
    ("equal", LATER, 7, "", "", "SAME", LATER),
    ("older", LATER, 6, "", "", "OLD", LATER),
    ("older in a sweep", LATER, 6, "sweep", "", "OLD", LATER),
    ("older, forced down", LATER, 6, "", "7", "MOVED", {**FRESH, "gen": "6"}),
    ("older, forced down too late", LATER, 6, "", "5", "OLD", LATER),
    ("newer, already due", OVERDUE, 8, "", "", "DUE", {**OVERDUE, "gen": "8"}),
    ("equal, already due", OVERDUE, 7, "", "", "SAME", OVERDUE),
    ("newer, waits for a retry", RETRYING, 8, "", "", "DUE", {**RETRYING, "gen": "8"}),
    ("newer, leased", LEASED, 8, "", "", "LEASED", {**LEASED, "gen": "8"}),
    ("equal, leased", LEASED, 7, "", "", "SAME", LEASED),
    ("leased, forced down", LEASED, 6, "", "7", "LEASED", {**LEASED, "gen": "6"}),
    ("ahead of the ledger, no sweep", LATER, 7, "", "", "SAME", LATER),
    ("ahead of the ledger, sweep", LATER, 7, "sweep", "", "REWOUND", {**FRESH, "gen": "7"}),
    ("behind, sweep", {**LATER, "point": 40_000}, 7, "sweep", "", "SAME", {**LATER, "point": 40_000}),
    ("leased in a sweep", LEASED, 7, "sweep", "", "SAME", LEASED),
    ("point lost under a lease", {**LEASED, "point": None}, 7, "", "", "FIXED", {**LEASED, "point": 50_000}),
    ("point lost", {**LATER, "point": None}, 7, "", "", "NEW", {**FRESH, "gen": "7"}),
    ("score lost", {**LATER, "due": None}, 7, "", "", "NEW", {**FRESH, "gen": "7"}),
    ("score lost under a lease", {**LEASED, "due": None}, 7, "", "", "SAME", {**LEASED, "due": 0}),
    ("generation lost", {**LATER, "gen": None}, 7, "", "", "MOVED", {**FRESH, "gen": "7"}),
    ("leavings of a lost entry", {"lease": "f", "attempts": "2"}, 7, "", "", "NEW", {**FRESH, "gen": "7"}),
]


def seed_entry(shard, parts):
    shard.seed(**{part: {"s1": value} for part, value in parts.items() if value is not None})


def entry(parts):
    return {part: {"s1": about(value) if part == "due" else value} for part, value in parts.items()}


@pytest.mark.parametrize(("seed", "generation", "mode", "expected", "result", "after"),
                         [row[1:] for row in UPSERTED], ids=[row[0] for row in UPSERTED])  # fmt: skip
def test_upsert(shard, seed, generation, mode, expected, result, after):
    seed_entry(shard, seed)
    item = Definition("s1", generation, shard.now + 50_000, shard.now + 51_000, expected)
    assert shard.broker.upsert(PLACE, [item], sweep=bool(mode)) == [result]
    assert shard.state() == entry(after)


def test_upserts_in_any_order_end_at_the_newest(shard):
    old, new = (Definition("s1", g, shard.now + 1000 * g, shard.now + 1000 * g) for g in (7, 8))
    assert shard.broker.upsert(PLACE, [new, old, new]) == ["NEW", "OLD", "SAME"]
    assert shard.state() == {"due": {"s1": 8000}, "point": {"s1": 8000}, "gen": {"s1": "8"}}


# -- remove

REMOVED = [
    ("waiting", LATER, 8, "", "REMOVED", {}),
    ("waiting, equal", LATER, 7, "", "REMOVED", {}),
    ("waiting, older", LATER, 6, "", "OLD", LATER),
    ("waiting, older, forced down", LATER, 6, "7", "REMOVED", {}),
    ("waiting, forced down too late", LATER, 6, "5", "OLD", LATER),
    ("already due", OVERDUE, 8, "", "DUE", {**OVERDUE, "gen": "8"}),
    ("leased", LEASED, 8, "", "LEASED", {**LEASED, "gen": "8"}),
    ("leased, older", LEASED, 6, "", "OLD", LEASED),
    ("not there", {}, 8, "", "GONE", {}),
    ("score lost", {**LATER, "due": None}, 8, "", "REMOVED", {}),
    ("point lost", {**LATER, "point": None}, 8, "", "REMOVED", {}),
    ("leavings", {"lease": "f", "attempts": "2", "payload": "x"}, 8, "", "GONE", {}),
]


@pytest.mark.parametrize(("seed", "generation", "expected", "result", "after"),
                         [row[1:] for row in REMOVED], ids=[row[0] for row in REMOVED])  # fmt: skip
def test_remove(shard, seed, generation, expected, result, after):
    seed_entry(shard, seed)
    assert shard.broker.remove(PLACE, [("s1", generation, expected)]) == [result]
    assert shard.state() == entry(after)


def test_a_late_removal_does_not_touch_a_schedule_made_anew(shard):
    """Model history: delete at generation 4, re-create, then the tombstone comes."""
    shard.member("s1", due=60_000, gen=shard.now)
    before = shard.state()
    assert shard.broker.remove(PLACE, [("s1", shard.now - 5, "")]) == ["OLD"]
    assert shard.state() == before


# -- hints

HINTS = [
    ("enqueue", lambda b, now: b.enqueue(PLACE, [("r1", now + 5, now + 5, "")])),
    ("upsert", lambda b, now: b.upsert(PLACE, [Definition("r1", 1, now + 5, now + 5)])),
    ("settle", lambda b, now: b.settle(PLACE, [Settlement("s1", "f", 7, now + 5, now + 5)])),
    ("release", lambda b, now: b.release(PLACE, [Lease("s1", "f", 5)])),
    ("retry", lambda b, now: b.retry(PLACE, [Lease("s1", "f", 5)])),
]


@pytest.mark.parametrize("call", [row[1] for row in HINTS], ids=[row[0] for row in HINTS])
@pytest.mark.parametrize("head", [LEASE_MS, -60_000], ids=["earlier", "not earlier"])
def test_a_hint_is_published_only_for_an_earlier_head(shard, call, head):
    shard.held("s1")
    shard.member("s2", due=head)
    hints = shard.broker.hints(timeout_seconds=0.3)
    assert next(hints) is None
    call(shard.broker, shard.now)
    hint = next(hints)
    if head < 0:
        assert hint is None
    else:
        place, when = hint
        assert (place, when - shard.now) == (PLACE, about(5))
        assert next(hints) is None
    hints.close()


# -- the files


@pytest.mark.parametrize("name", scripts.NAMES)
def test_each_script_tells_purpose_keys_arguments_replies_cost_and_why_it_is_one(name):
    lines = files("django_delayq.broker").joinpath("lua", f"{name}.lua").read_text("utf-8").splitlines()
    comment = list(lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))])
    titles = [match[1] for line in comment if (match := re.match(r"-- ([A-Z][A-Z ]+[A-Z])\s", line))]
    assert tuple(titles) == HEADER


def test_each_script_belongs_to_exactly_one_method():
    called: list[str] = []
    for node in ast.walk(ast.parse(inspect.getsource(Broker).lstrip())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("_run", "_hand_back"):
            called += [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    folder = files("django_delayq.broker").joinpath("lua")
    there = {path.name.removesuffix(".lua") for path in folder.iterdir()} - {"_prelude"}
    assert sorted(called) == sorted(there) == sorted(scripts.NAMES)


def test_all_keys_of_a_place_share_one_hash_tag_and_no_place_shares_it_with_another(broker):
    places = [Place("default", 0), Place("default", 1), Place("mail", 0)]
    slots = [{key_slot(name.encode()) for name in keys.shard_keys("p:q", place, "host:1")} for place in places]
    assert [len(slot) for slot in slots] == [1, 1, 1]
    tags = [{name.partition("}")[0] for name in keys.shard_keys("p:q", place, "w")} for place in places]
    assert tags == [{"{p:q:default:0"}, {"{p:q:default:1"}, {"{p:q:mail:0"}]
    assert tuple(keys.TYPES) == keys.PARTS


@pytest.mark.parametrize("decode", [False, True])
def test_bytes_and_str_replies_mean_the_same(prefix, decode):
    client = redis.Redis.from_url(os.environ["DELAYQ_REDIS_URL"], decode_responses=decode)
    shard = Shard(Broker(timeout_seconds=5, worker="test", client=client))
    assert shard.broker.upsert(PLACE, [Definition("s1", 7, shard.now - 5, shard.now - 5)]) == ["NEW"]
    assert shard.broker.epochs([PLACE]) == ["e1"]
    assert shard.broker.peek([PLACE]) == [(shard.now - 5, "e1")]
    claim = shard.claim()
    assert [(e.member, e.point_ms, e.generation, e.lapsed) for e in claim.entries] == [("s1", shard.now - 5, 7, False)]
    view = shard.broker.views([("s1", "default")])[0]
    assert (view.point_ms, view.generation, view.leased) == (shard.now - 5, 7, True)
    assert shard.broker.renew(PLACE, [Lease("s1", "other")], lease_ms=1) == {"s1"}
    assert set().union(*shard.broker.scan(PLACE)) == {"s1"}
    assert shard.broker.settle(PLACE, [Settlement("s1", claim.fence, 7, None)]) == [1]
    assert shard.broker.remove(PLACE, [("s1", 8, "")]) == ["GONE"]
    shard.broker.claim_layout("{}")
    assert shard.broker.layout() == "{}"
    shard.broker.heartbeat(5, "{}")
    assert shard.broker.workers() == {"test": (5, "{}")}
    client.close()


# -- damage


@pytest.mark.parametrize("part", keys.PARTS)
def test_a_key_of_a_foreign_type_is_named_deleted_and_rebuilt(shard, part):
    shard.member("j1", payload="x")
    shard.client.delete(shard.names[part])
    if keys.TYPES[part] == "string":
        shard.client.rpush(shard.names[part], "foreign")
    else:
        shard.client.set(shard.names[part], "foreign")
    with pytest.raises(DamagedKeys, match="foreign type"):
        shard.claim()
        shard.broker.stats(PLACE)
        shard.broker.remove(PLACE, [("j1", 9, "")])
    assert shard.broker.repair(PLACE) == [shard.names[part]]
    assert shard.claim().epoch is None
    assert shard.broker.repair(PLACE) == []


GARBAGE = [
    "",
    "garbage",
    "-1",
    "1.5",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "1e400",
    "0x10",
    "9" * 40,
    "\u00e9 \u2028",
    b"\xff\x00",
]


@pytest.mark.parametrize("value", GARBAGE, ids=ascii)
def test_garbage_values_stop_no_script(shard, value):
    shard.seed(due={"s1": -1000, "s2": -1000, "s3": 60_000})
    for part in ("point", "gen", "attempts", "payload"):
        shard.seed(**{part: dict.fromkeys(("s1", "s2", "s3"), value)})
    shard.seed(lease={"s2": value}, fence=value, journal=value)
    broker, point = shard.broker, shard.now + 50_000
    claim = shard.claim(request=10**12)
    assert sorted(names_of(claim)) == ["s1", "s2"]
    assert [item.lapsed for item in sorted(claim.entries, key=lambda item: item.member)] == [False, True]
    assert broker.renew(PLACE, [Lease("s1", claim.fence)], lease_ms=LEASE_MS) == set()
    assert broker.retry(PLACE, [Lease("s1", claim.fence)]) == [1]
    again = shard.claim(request=10**12 + 1)
    assert names_of(again) == ["s1"]
    broker.upsert(PLACE, [Definition(name, shard.now, point, point) for name in ("s1", "s2", "s3")], sweep=True)
    broker.views([("s1", "default")])
    broker.stats(PLACE)
    items = [Settlement("s1", again.fence, 10**41, None), Settlement("s2", claim.fence, 10**41, None)]
    assert broker.settle(PLACE, items) == [1, 1]
    assert broker.enqueue(PLACE, [("s3", 1, 1, "")]) == [False]
    assert broker.remove(PLACE, [("s3", 10**41, str(value))]) != ["OLD"]


@pytest.mark.parametrize("value", ["garbage", "", "1.5", "nan", "inf", "1e400", b"\xff"], ids=ascii)
def test_garbage_numbers_are_told_as_unknown_or_as_whole_numbers(shard, value):
    shard.seed(due={"s1": -1000}, point={"s1": value}, gen={"s1": value}, attempts={"s1": value})
    (item,) = shard.claim().entries
    known = 1 if value == "1.5" else None
    assert (item.point_ms, item.generation, item.attempts) == (known, known, known or 0)


@pytest.mark.parametrize("value", ["nan", "inf", "1e15", "7.0", "0x7fffffff", "9" * 30])
def test_a_garbage_generation_is_replaced_by_the_next_sweep(shard, value):
    """What a sweep sees must be what it can name to have it forced down."""
    shard.member("s1", due=60_000, gen=value)
    seen = shard.broker.views([("s1", "default")])[0].generation
    expected = str(seen) if seen is not None and seen > shard.now else ""
    item = Definition("s1", shard.now, shard.now + 50_000, shard.now + 50_000, expected)
    shard.broker.upsert(PLACE, [item], sweep=True)
    assert shard.state()["gen"] == {"s1": str(shard.now)}


def test_a_garbage_journal_does_not_stop_this_process_for_ever(shard):
    shard.member("s1")
    shard.seed(journal="99999999999999999999 f 0s1")
    assert names_of(shard.claim(request=1)) == ["s1"]


@pytest.mark.parametrize("member", [b"\xff\xfe", "a b", "", "s" * 5000], ids=["bytes", "space", "empty", "long"])
def test_a_garbage_member_can_be_dropped_by_its_claimer(shard, member):
    shard.client.zadd(shard.names["due"], {member: shard.now - 1000})
    claim = shard.claim()
    assert len(claim.entries) == 1
    assert shard.broker.settle(PLACE, [Settlement(claim.entries[0].member, claim.fence, 7, None)]) == [1]
    assert shard.state() == {}


def test_a_garbage_member_cannot_bring_another_twice(shard):
    shard.member("s1", due=-2000)
    shard.client.zadd(shard.names["due"], {"x 0s1": shard.now - 1000})
    shard.claim()
    assert names_of(shard.claim()).count("s1") == 1


def test_an_empty_epoch_is_rebuilt_like_an_absent_one(shard):
    """What claims nothing must also be what is rebuilt, or the shard stands still."""
    shard.seed(epoch="")
    shard.member("s1")
    assert shard.claim().epoch is None
    assert shard.broker.epochs([PLACE]) == [None]
    assert shard.broker.peek([PLACE])[0][1] is None


@pytest.mark.parametrize("name", ["layout", "workers", "worker-details"])
def test_keys_of_the_whole_prefix_are_repaired_too(broker, name):
    key = f"{broker.config.prefix}:{name}"
    broker.client.rpush(key, "foreign")
    for place in broker.places():
        broker.repair(place)
    broker.claim_layout("{}")
    broker.heartbeat(1, "{}")
    assert broker.workers() == {"test": (1, "{}")}


def test_purge_deletes_this_prefix_and_no_other(broker):
    prefix = broker.config.prefix
    others = [
        f"{{{prefix}:stage:default:0}}:due",
        f"{prefix}:stage:layout",
        f"{{{prefix}0:default:0}}:due",
        f"{prefix}x",
    ]
    broker.client.mset(dict.fromkeys(others, "theirs"))
    Shard(broker).member("s1")
    broker.claim_layout("{}")
    broker.heartbeat(1, "{}")
    try:
        assert broker.count_keys() == 7
        assert broker.purge() == 7
        assert [name for name in others if not broker.client.exists(name)] == []
        assert broker.count_keys() == 0
    finally:
        broker.client.delete(*others)
