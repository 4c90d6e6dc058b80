"""What the mirror asks of points, in parts where there is much to do; hints; the files themselves; and damage."""

import ast
import inspect
import re
from importlib.resources import files

import pytest
import redis
from redis.crc import key_slot

from django_delayq.embedded import EmbeddedServer
from django_delayq.index import Broker, EntryDefinition, Settlement, Shard, keys, scripts
from django_delayq.index import broker as broker_module
from django_delayq.index.connection import DamagedKeys
from tests.integration.shard import LEASE_MS, PLACE, SeededShard, about, listening, names_of
from tests.support import count_keys

HEADER = ("PURPOSE", "KEYS", "ARGV", "RETURNS", "COST", "ATOMIC BECAUSE")


def cases(rows):
    """Return the parameters of rows that begin with a name."""
    return [pytest.param(*row[1:], id=row[0]) for row in rows]


# -- upsert
#
# A seeded entry of generation 7; an upsert of `generation` with point 50,000 and wake 51,000; what becomes of it.

LATER = {"due": 60_000, "point": 60_000, "gen": "7"}
OVERDUE = {"due": -1000, "point": -1000, "gen": "7"}
LEASED = {"due": LEASE_MS, "point": -1000, "gen": "7", "lease": "f"}
FRESH = {"due": 51_000, "point": 50_000, "gen": "8"}
RETRYING = {"due": 9000, "point": 8000, "gen": "7", "attempts": "1"}

FAR = 3 * 3600 * 1000  # further than any lease or backoff
UNHELD = {**LATER, "due": FAR, "lease": "f"}

UPSERTED = [
    ("unknown", {}, 8, "", "", "NEW", FRESH),
    ("newer", LATER, 8, "", "", "MOVED", FRESH),
    ("equal", LATER, 7, "", "", "SAME", LATER),
    ("older", LATER, 6, "", "", "OLD", LATER),
    ("newer, already due", OVERDUE, 8, "", "", "DUE", {**OVERDUE, "gen": "8"}),
    ("equal, already due", OVERDUE, 7, "", "", "SAME", OVERDUE),
    ("newer, waits for a retry", RETRYING, 8, "", "", "DUE", {**RETRYING, "gen": "8"}),
    ("newer, leased", LEASED, 8, "", "", "LEASED", {**LEASED, "gen": "8"}),
    ("equal, leased", LEASED, 7, "", "", "SAME", LEASED),
]

#: Of an index that was damaged, or comes from before a restore; the mode `reset`.
UPSERTED_AMISS = [
    ("older, reset", LATER, 6, "reset", "", "OLD", LATER),
    ("older, forced down", LATER, 6, "", "7", "MOVED", {**FRESH, "gen": "6"}),
    ("older, forced down too late", LATER, 6, "", "5", "OLD", LATER),
    ("leased, forced down", LEASED, 6, "", "7", "LEASED", {**LEASED, "gen": "6"}),
    ("newer, a lease that no worker can hold", UNHELD, 8, "", "", "MOVED", FRESH),
    ("point lost under a lease", {**LEASED, "point": None}, 7, "", "", "FIXED", {**LEASED, "point": 50_000}),
    ("point lost", {**LATER, "point": None}, 7, "", "", "NEW", {**FRESH, "gen": "7"}),
    ("score lost", {**LATER, "due": None}, 7, "", "", "NEW", {**FRESH, "gen": "7"}),
    ("score lost under a lease", {**LEASED, "due": None}, 7, "", "", "SAME", {**LEASED, "due": 60_000}),
    ("generation lost", {**LATER, "gen": None}, 7, "", "", "MOVED", {**FRESH, "gen": "7"}),
    ("leavings of a lost entry", {"lease": "f", "attempts": "2"}, 7, "", "", "NEW", {**FRESH, "gen": "7"}),
    ("ahead of the ledger, reset", LATER, 7, "reset", "", "REWOUND", {**FRESH, "gen": "7"}),
    ("behind, reset", {**LATER, "point": 40_000}, 7, "reset", "", "RESET", {**FRESH, "gen": "7"}),
    ("score damaged, reset", {**LATER, "point": 50_000}, 7, "reset", "", "RESET", {**FRESH, "gen": "7"}),
    ("attempts left over, reset", RETRYING, 7, "reset", "", "RESET", {**FRESH, "gen": "7"}),
    ("due with a damaged score, reset", {**OVERDUE, "due": FAR}, 7, "reset", "", "RESET", {**OVERDUE, "due": 0}),
    ("newer and leased, reset", LEASED, 8, "reset", "", "LEASED", {**LEASED, "gen": "8"}),
    ("a lease that no worker can hold, reset", UNHELD, 7, "reset", "", "REWOUND", {**FRESH, "gen": "7"}),
]


def seed_entry(shard, parts):
    shard.seed(**{part: {"s1": value} for part, value in parts.items() if value is not None})


def entry(parts):
    return {part: {"s1": about(value) if part == "due" else value} for part, value in parts.items()}


@pytest.mark.parametrize(("seed", "generation", "mode", "expected", "result", "after"),
                         cases([*UPSERTED, *UPSERTED_AMISS]))  # fmt: skip
def test_upsert(shard, seed, generation, mode, expected, result, after):
    seed_entry(shard, seed)
    item = EntryDefinition("s1", generation, shard.now + 50_000, shard.now + 51_000, expected)
    assert shard.broker.upsert(PLACE, [item], mode=mode) == [result]
    assert shard.state() == entry(after)


# -- rows: the modes `new` and `move`

ROWS = [
    ("unknown", {}, "new", "NEW", {"due": 51_000, "point": 50_000, "gen": "7"}),
    ("there", LATER, "new", "SAME", LATER),
    ("due", OVERDUE, "new", "SAME", OVERDUE),
    ("waits for a retry", RETRYING, "new", "SAME", RETRYING),
    ("leased", LEASED, "new", "LEASED", LEASED),
    ("another row", {**LATER, "gen": "5"}, "new", "NEW", {"due": 51_000, "point": 50_000, "gen": "7"}),
    ("another row, leased", {**LEASED, "gen": "9"}, "new", "LEASED", {**LEASED, "gen": "9"}),
    ("retried under a lease", {**LEASED, "gen": "6"}, "new", "LEASED", LEASED),
    ("unknown", {}, "move", "GONE", {}),
    ("there", LATER, "move", "MOVED", {"due": 51_000, "point": 50_000, "gen": "7"}),
    ("due", OVERDUE, "move", "MOVED", {"due": 51_000, "point": 50_000, "gen": "7"}),
    ("leased", LEASED, "move", "LEASED", LEASED),
]


@pytest.mark.parametrize(("seed", "mode", "result", "after"), [row[1:] for row in ROWS],
                         ids=[f"{row[2]}, {row[0]}" for row in ROWS])  # fmt: skip
@pytest.mark.parametrize("member", ["r1", "j1"])
def test_a_row(shard, member, seed, mode, result, after):
    shard.seed(**{part: {member: value} for part, value in seed.items()})
    item = EntryDefinition(member, 7, shard.now + 50_000, shard.now + 51_000)
    assert shard.broker.upsert(PLACE, [item], mode=mode) == [result]
    assert shard.state() == {part: {member: about(v) if part == "due" else v} for part, v in after.items()}


def test_a_row_that_was_handed_back_after_a_lapsed_lease_is_moved_and_keeps_the_mark(shard):
    shard.seed(due={"j1": 5000}, point={"j1": -9000}, gen={"j1": 7}, lease={"j1": "-"})
    item = EntryDefinition("j1", 7, shard.now + 50_000, shard.now + 51_000)
    assert shard.broker.upsert(PLACE, [item], mode="move") == ["MOVED"]
    assert shard.state()["lease"] == {"j1": "-"}
    assert shard.broker.remove(PLACE, [("j1", 7, "")], gone=True) == ["REMOVED"]


def test_a_row_that_wakes_at_once_is_due_by_the_servers_clock(shard):
    assert shard.broker.upsert(PLACE, [EntryDefinition("j1", 7, shard.now + 90_000, 0, priority=5)], mode="new") == [
        "NEW"
    ]
    assert names_of(shard.claim()) == ["j1"]
    assert shard.state()["priority"] == {"j1": "5"}


def test_a_priority_that_is_none_any_more_is_forgotten(shard):
    for generation, priority in ((7, 5), (8, -5), (9, 0)):
        shard.broker.upsert(PLACE, [EntryDefinition("s1", generation, shard.now + 9, shard.now + 9, priority=priority)])
        assert shard.state().get("priority", {}).get("s1", "0") == str(priority)


# -- remove

REMOVED = [
    ("waiting", LATER, 8, "", "REMOVED", {}),
    ("waiting, equal", LATER, 7, "", "REMOVED", {}),
    ("waiting, older", LATER, 6, "", "OLD", LATER),
    ("already due", OVERDUE, 8, "", "DUE", {**OVERDUE, "gen": "8"}),
    ("leased", LEASED, 8, "", "LEASED", {**LEASED, "gen": "8"}),
    ("leased, older", LEASED, 6, "", "OLD", LEASED),
    ("not there", {}, 8, "", "GONE", {}),
]

REMOVED_AMISS = [
    ("waiting, older, forced down", LATER, 6, "7", "REMOVED", {}),
    ("waiting, forced down too late", LATER, 6, "5", "OLD", LATER),
    ("a lease that no worker can hold", UNHELD, 8, "", "REMOVED", {}),
    ("score lost", {**LATER, "due": None}, 8, "", "REMOVED", {}),
    ("point lost", {**LATER, "point": None}, 8, "", "REMOVED", {}),
    ("leavings", {"gen": "x", "lease": "f", "attempts": "2"}, 8, "", "GONE", {}),
]


@pytest.mark.parametrize(("seed", "generation", "expected", "result", "after"),
                         cases([*REMOVED, *REMOVED_AMISS]))  # fmt: skip
def test_remove(shard, seed, generation, expected, result, after):
    seed_entry(shard, seed)
    assert shard.broker.remove(PLACE, [("s1", generation, expected)]) == [result]
    assert shard.state() == entry(after)


GONE = [
    ("waiting", LATER, 8, "REMOVED", {}),
    ("already due", OVERDUE, 8, "REMOVED", {}),
    ("leased", LEASED, 8, "LEASED", LEASED),
    ("older", LATER, 6, "OLD", LATER),
]

ENDED = ("its lease has ended", {**LEASED, "due": -5}, 8, "REMOVED", {})


@pytest.mark.parametrize(("seed", "generation", "result", "after"), cases([*GONE, ENDED]))
def test_remove_of_what_is_gone(shard, seed, generation, result, after):
    seed_entry(shard, seed)
    assert shard.broker.remove(PLACE, [("s1", generation, "")], gone=True) == [result]
    assert shard.state() == entry(after)


def test_a_scan_tells_the_members_and_what_lost_members_left(shard):
    shard.held("s1")
    shard.seed(due={"s2": 5}, point={"s3": 5}, gen={"s4": "7"}, lease={"s5": "f"}, attempts={"s6": "1", "s1": "1"})
    assert list(shard.broker.scan(PLACE)) == [{"s1", "s2"}, {"s3"}, {"s4"}, {"s5"}, {"s6"}]


def test_any_number_of_items_goes_in_parts_and_the_replies_come_in_their_order(shard, monkeypatch):
    monkeypatch.setattr(broker_module, "SCRIPT_PART", 2)
    items = [EntryDefinition(f"s{n}", 7, shard.now + n, shard.now + n) for n in range(5)]
    assert shard.broker.upsert(PLACE, items[3:]) == ["NEW", "NEW"]
    assert shard.broker.upsert(PLACE, items) == ["NEW", "NEW", "NEW", "SAME", "SAME"]
    gone = [(item.member, 8, "") for item in items[1:]]
    assert shard.broker.remove(PLACE, [*gone, ("s9", 8, "")], gone=True) == ["REMOVED"] * 4 + ["GONE"]
    rows = [EntryDefinition(name, 7, 1, 1) for name in ("s0", "r1", "r2")]
    assert shard.broker.upsert(PLACE, rows, mode="new") == ["SAME", "NEW", "NEW"]
    assert shard.broker.upsert(PLACE, []) == shard.broker.remove(PLACE, []) == []


def test_parts_run_once_each_on_a_server_that_has_forgotten_the_script(shard, monkeypatch):
    monkeypatch.setattr(broker_module, "SCRIPT_PART", 1)
    shard.client.script_flush()
    assert shard.broker.upsert(PLACE, [EntryDefinition(f"r{n}", 1, 1, 1) for n in range(3)]) == ["NEW"] * 3
    shard.client.script_flush()
    assert [stats.members for stats in shard.broker.read_stats([PLACE, Shard("default", 1)])] == [3, 0]


def test_an_error_in_one_part_is_raised(shard, monkeypatch):
    monkeypatch.setattr(broker_module, "SCRIPT_PART", 1)
    shard.client.set(shard.names["attempts"], "foreign")
    with pytest.raises(DamagedKeys):
        shard.broker.upsert(PLACE, [EntryDefinition(f"s{n}", 7, 5, 5) for n in range(3)])


# -- the epoch


def test_a_building_mark_that_never_ends_counts_as_absent(shard):
    """A mark always expires, so that a rebuild whose worker died is begun anew."""
    shard.seed(epoch="building:abc")
    assert shard.broker.swap_epochs([PLACE], None, "e2") == [True]
    assert shard.broker.swap_epochs([PLACE], None, "e3") == [False]
    shard.client.set(shard.names["epoch"], "building:abc", px=60_000)
    assert shard.broker.swap_epochs([PLACE], None, "e3") == [False]
    assert shard.broker.read_epochs([PLACE]) == ["building:abc"]


# -- hints

HINTS = [
    ("job", lambda b, now: b.upsert(PLACE, [EntryDefinition("j1", 1, now + 5, now + 5)], mode="new")),
    ("upsert", lambda b, now: b.upsert(PLACE, [EntryDefinition("r1", 1, now + 5, now + 5)])),
    ("settle", lambda b, now: b.settle(PLACE, [Settlement("s1", "f", "next", now + 5, 7, now + 5)])),
    ("release", lambda b, now: b.settle(PLACE, [Settlement("s1", "f", "release", 5)])),
    ("retry", lambda b, now: b.settle(PLACE, [Settlement("s1", "f", "retry", 5)])),
]


@pytest.mark.parametrize("call", [row[1] for row in HINTS], ids=[row[0] for row in HINTS])
@pytest.mark.parametrize("head", [LEASE_MS, -60_000], ids=["earlier", "not earlier"])
def test_a_hint_is_published_only_for_an_earlier_head(shard, call, head):
    shard.held("s1")
    shard.member("s2", due=head)
    come = listening(shard.broker, shard.names)
    call(shard.broker, shard.now)
    hints = [(place, when - shard.now) for place, when in come()]
    come.close()
    assert hints == ([] if head < 0 else [(PLACE, about(5))])


# -- the files


@pytest.mark.parametrize("name", scripts.NAMES)
def test_each_script_tells_purpose_keys_arguments_replies_cost_and_why_it_is_one(name):
    lines = files("django_delayq.index").joinpath("lua", f"{name}.lua").read_text("utf-8").splitlines()
    comment = list(lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))])
    titles = [match[1] for line in comment if (match := re.match(r"-- ([A-Z][A-Z ]+[A-Z])\s", line))]
    assert tuple(titles) == HEADER


def test_each_script_belongs_to_exactly_one_method():
    called: list[str] = []
    methods = ("_run", "_run_each", "_run_in_parts")
    for node in ast.walk(ast.parse(inspect.getsource(Broker).lstrip())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in methods:
            called += [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
    folder = files("django_delayq.index").joinpath("lua")
    there = {path.name.removesuffix(".lua") for path in folder.iterdir() if not path.name.startswith("_")}
    assert sorted(called) == sorted(there) == sorted(scripts.NAMES)


def test_all_keys_of_a_place_share_one_hash_tag_and_no_place_shares_it_with_another(broker):
    places = [Shard("default", 0), Shard("default", 1), Shard("mail", 0)]
    more = [(keys.build_counts_key, 7), (keys.build_counts_key, "minutes")]
    names = [
        {*keys.build_keys("p:q", place, "host:1").values(), *(make("p:q", place, name) for make, name in more)}
        for place in places
    ]
    assert [len({key_slot(name.encode()) for name in group}) for group in names] == [1, 1, 1]
    tags = [{name.partition("}")[0] for name in group} for group in names]
    assert tags == [{"{p:q:default:0"}, {"{p:q:default:1"}, {"{p:q:mail:0"}]
    assert set(keys.TYPES) == set(keys.PARTS)
    assert all(keys.is_own("p:q", name) for group in names for name in group)


def test_replies_that_are_str_mean_the_same_as_bytes(prefix):
    with EmbeddedServer() as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        shard = SeededShard(Broker(timeout_seconds=5, worker="test", client=client))
        assert shard.broker.upsert(PLACE, [EntryDefinition("s1", 7, shard.now - 5, shard.now - 5)]) == ["NEW"]
        assert shard.broker.read_epochs([PLACE]) == ["e1"]
        assert shard.broker.read_heads([PLACE]) == [shard.now - 5]
        claim = shard.claim()
        (item,) = claim.entries
        assert (item.member, item.point_ms, item.generation, item.lapsed) == ("s1", shard.now - 5, 7, False)
        view = shard.broker.read_views([("s1", "default")])[0]
        assert (view.point_ms, view.generation, view.leased) == (shard.now - 5, 7, True)
        assert shard.broker.renew(PLACE, [("s1", "other")], lease_ms=1) == {"s1"}
        assert set().union(*shard.broker.scan(PLACE)) == {"s1"}
        assert shard.broker.settle(PLACE, [Settlement("s1", claim.holder, "drop", 0, 7)]).replies == [1]
        assert shard.broker.remove(PLACE, [("s1", 8, "")]) == ["GONE"]
        shard.broker.claim_layout("{}")
        assert shard.broker.read_layout() == "{}"
        shard.broker.write_heartbeat(5, "{}")
        assert shard.broker.read_workers() == {"test": (5, "{}")}


# -- damage: what garbage and foreign types under our keys may not do to scripts and reads


@pytest.mark.parametrize("part", keys.PARTS)
def test_a_key_of_a_foreign_type_is_named_deleted_and_rebuilt(shard, part):
    shard.member("s1", attempts="2")
    shard.client.delete(shard.names[part])
    if keys.TYPES[part] == "string":
        shard.client.rpush(shard.names[part], "foreign")
    else:
        shard.client.set(shard.names[part], "foreign")
    with pytest.raises(DamagedKeys, match="foreign type"):
        shard.claim()
        shard.broker.read_stats([PLACE])
        shard.broker.remove(PLACE, [("s1", 9, "")])
    assert shard.broker.repair(PLACE) == [shard.names[part]]
    assert shard.claim().epoch is None
    assert shard.broker.repair(PLACE) == []


GARBAGE = ["", "garbage", "-1", "1.5", "nan", "-inf", "1e400", "0x10", "9" * 40, "\u00e9 \u2028", b"\xff\x00"]


@pytest.mark.parametrize("value", GARBAGE, ids=ascii)
def test_garbage_values_stop_no_script(shard, value):
    shard.seed(due={"s1": -1000, "s2": -1000, "s3": 60_000})
    for part in ("point", "gen", "attempts"):
        shard.seed(**{part: dict.fromkeys(("s1", "s2", "s3"), value)})
    shard.seed(lease={"s2": value}, journal=value)
    broker, point = shard.broker, shard.now + 50_000
    claim = shard.claim(request=10**12)
    assert sorted(names_of(claim)) == ["s1", "s2"]
    assert [item.lapsed for item in sorted(claim.entries, key=lambda item: item.member)] == [False, True]
    assert broker.renew(PLACE, [("s1", claim.holder)], lease_ms=LEASE_MS) == set()
    assert broker.settle(PLACE, [Settlement("s1", claim.holder, "retry")]).replies == [1]
    again = shard.claim(request=10**12 + 1)
    assert names_of(again) == ["s1"]
    broker.upsert(PLACE, [EntryDefinition(name, shard.now, point, point) for name in ("s1", "s2", "s3")], mode="reset")
    broker.read_views([("s1", "default")])
    broker.read_stats([PLACE])
    items = [
        Settlement(name, holder, "drop", 0, 10**41) for name, holder in (("s1", again.holder), ("s2", claim.holder))
    ]
    assert broker.settle(PLACE, items).replies == [1, 1]
    assert broker.upsert(PLACE, [EntryDefinition("s3", shard.now, 1, 1)], mode="new") == ["SAME"]
    assert broker.remove(PLACE, [("s3", 10**41, str(value))]) != ["OLD"]


@pytest.mark.parametrize("value", ["garbage", "", "1.5", "nan", "inf", "1e400", b"\xff"], ids=ascii)
def test_garbage_numbers_are_told_as_unknown(shard, value):
    shard.seed(due={"s1": -1000}, point={"s1": value}, gen={"s1": value}, attempts={"s1": value})
    (item,) = shard.claim().entries
    assert (item.point_ms, item.generation, item.attempts) == (None, None, 0)


@pytest.mark.parametrize("value", ["nan", "inf", "1e15", "7.0", "0x7fffffff", "9" * 30])
def test_a_garbage_generation_is_replaced_by_the_next_sweep(shard, value):
    """What a sweep sees must be what it can name to have it forced down."""
    shard.member("s1", due=60_000, gen=value)
    seen = shard.broker.read_views([("s1", "default")])[0].generation
    expected = str(seen) if seen is not None and seen > shard.now else ""
    item = EntryDefinition("s1", shard.now, shard.now + 50_000, shard.now + 50_000, expected)
    shard.broker.upsert(PLACE, [item], mode="reset")
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
    assert shard.broker.settle(PLACE, [Settlement(claim.entries[0].member, claim.holder, "drop", 0, 7)]).replies == [1]
    assert shard.state() == {}


def test_a_garbage_member_cannot_bring_another_twice(shard):
    shard.member("s1", due=-2000)
    shard.client.zadd(shard.names["due"], {"x 0s1": shard.now - 1000})
    shard.claim()
    assert names_of(shard.claim()).count("s1") == 1


@pytest.mark.parametrize("name", ["layout", "workers", "worker-details"])
def test_keys_of_the_whole_prefix_are_repaired_too(broker, name):
    key = f"{broker.config.prefix}:{name}"
    broker.client.rpush(key, "foreign")
    for place in broker.list_shards():
        broker.repair(place)
    broker.claim_layout("{}")
    broker.write_heartbeat(1, "{}")
    assert broker.read_workers() == {"test": (1, "{}")}


def test_purge_deletes_this_prefix_and_no_other(broker):
    prefix = broker.config.prefix
    beside = f"{{{prefix}:stage:default:0}}:due", f"{{{prefix}0:default:0}}:due"
    others = [*beside, f"{prefix}:stage:layout", f"{prefix}x"]
    for name in others:
        broker.client.set(name, "theirs")
    SeededShard(broker).member("s1")
    broker.claim_layout("{}")
    broker.write_heartbeat(1, "{}")
    try:
        assert count_keys(broker) == 7
        assert broker.purge() == 7
        assert [name for name in others if not broker.client.exists(name)] == []
        assert count_keys(broker) == 0
    finally:
        broker.client.delete(*others)
