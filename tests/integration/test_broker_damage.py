"""Damage: what garbage and foreign types under our keys may not do to scripts and reads."""

import pytest

from django_delayq.broker import Definition, Settlement, keys
from django_delayq.exceptions import DamagedKeys
from tests.integration.shard import LEASE_MS, PLACE, SeededShard, names_of
from tests.support import count_keys


@pytest.fixture
def shard(broker):
    return SeededShard(broker)


def spoil(shard, part):
    """Put another type under a key."""
    shard.client.delete(shard.names[part])
    if keys.TYPES[part] == "string":
        shard.client.rpush(shard.names[part], "foreign")
    else:
        shard.client.set(shard.names[part], "foreign")


@pytest.mark.parametrize("part", keys.PARTS)
def test_a_key_of_a_foreign_type_is_named_deleted_and_rebuilt(shard, part):
    shard.member("s1", attempts="2")
    spoil(shard, part)
    with pytest.raises(DamagedKeys, match="foreign type"):
        shard.claim()
        shard.broker.stats([PLACE])
        shard.broker.remove(PLACE, [("s1", 9, "")])
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
    for part in ("point", "gen", "attempts"):
        shard.seed(**{part: dict.fromkeys(("s1", "s2", "s3"), value)})
    shard.seed(lease={"s2": value}, fence=value, journal=value)
    broker, point = shard.broker, shard.now + 50_000
    claim = shard.claim(request=10**12)
    assert sorted(names_of(claim)) == ["s1", "s2"]
    assert [item.lapsed for item in sorted(claim.entries, key=lambda item: item.member)] == [False, True]
    assert broker.renew(PLACE, [("s1", claim.holder)], lease_ms=LEASE_MS) == set()
    assert broker.settle(PLACE, [Settlement("s1", claim.holder, "retry")]).replies == [1]
    again = shard.claim(request=10**12 + 1)
    assert names_of(again) == ["s1"]
    broker.upsert(PLACE, [Definition(name, shard.now, point, point) for name in ("s1", "s2", "s3")], mode="reset")
    broker.views([("s1", "default")])
    broker.stats([PLACE])
    items = [
        Settlement("s1", again.holder, "drop", 0, 10**41),
        Settlement("s2", claim.holder, "drop", 0, 10**41),
    ]
    assert broker.settle(PLACE, items).replies == [1, 1]
    assert broker.upsert(PLACE, [Definition("s3", shard.now, 1, 1)], mode="new") == ["SAME"]
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


def test_an_empty_epoch_is_rebuilt_like_an_absent_one(shard):
    """What claims nothing must also be what is rebuilt, or the shard stands still."""
    shard.seed(epoch="")
    shard.member("s1")
    assert shard.claim().epoch is None
    assert shard.broker.epochs([PLACE]) == [None]


@pytest.mark.parametrize("name", ["layout", "workers", "worker-details"])
def test_keys_of_the_whole_prefix_are_repaired_too(broker, name):
    key = f"{broker.config.prefix}:{name}"
    broker.client.rpush(key, "foreign")
    for place in broker.shards():
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
    for name in others:
        broker.client.set(name, "theirs")
    SeededShard(broker).member("s1")
    broker.claim_layout("{}")
    broker.heartbeat(1, "{}")
    try:
        assert count_keys(broker) == 7
        assert broker.purge() == 7
        assert [name for name in others if not broker.client.exists(name)] == []
        assert count_keys(broker) == 0
    finally:
        broker.client.delete(*others)
