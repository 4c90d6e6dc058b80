"""Writes definitions to Redis: re-read from the primary database, then upserted or removed under their generation."""

from collections.abc import Iterable, Sequence

from django.db.models import F

from .. import ledger
from ..broker import Broker, Definition, Shard
from ..chain import member_of
from ..models import Schedule, Tombstone
from ..rows import ScheduleRow
from ..timing import to_ms, wake_at
from .read import Wanted, read_wanted
from .rows import Settled

#: Schedules that are read and written at a time. Scripts take smaller parts: `broker.SCRIPT_PART`.
PAGE = 1000


def sync(broker: Broker, pks: Iterable[int]) -> list[int]:
    """Mirror these schedules as the database has them now. Deleted ones are left to their tombstones.

    Return those of which Redis knows a newer edit: they stay as they are and are not marked as mirrored. Either the
    newer edit was mirrored meanwhile, or the database is a restored backup; the sweeps find out.

    Raises:
        BrokerError: Redis cannot be written; what was not reached stays marked as not mirrored.
    """
    todo, newer = sorted(set(pks)), []
    for at in range(0, len(todo), PAGE):
        newer += write_wanted(broker, read_wanted(todo[at : at + PAGE]))
    return newer


def write_wanted(
    broker: Broker, wanted: Sequence[Wanted], *, reset: bool = False, expected: dict[str, str] | None = None
) -> list[int]:
    """Upsert or remove, each in one round trip per shard; `reset` and `expected` as in upsert.lua.

    Return the schedules of which Redis knows a newer edit.

    A schedule that was moved enters its new place only after it has left the old one: while it is leased there, it is
    left out here and stays marked as not mirrored, and the next sweep tries again. Otherwise its point would be run in
    both shards.
    """
    held = remove_tombstones(broker, {item.member for item in wanted}) if wanted else set()
    wanted = [item for item in wanted if item.member not in held]
    expected = expected or {}
    upserts: dict[Shard, list[Wanted]] = {}
    removals: dict[Shard, list[Wanted]] = {}
    for item in wanted:
        shard = broker.shard_of(item.member, item.schedule.queue)
        (removals if item.point is None else upserts).setdefault(shard, []).append(item)
    newer: list[int] = []
    for shard, items in upserts.items():
        definitions = [item.definition(expected.get(item.member, "")) for item in items]
        newer += _answered_old(items, broker.upsert(shard, definitions, reset=reset))
    for shard, items in removals.items():
        members = [(item.member, item.schedule.generation, expected.get(item.member, "")) for item in items]
        newer += _answered_old(items, broker.remove(shard, members))
    _note_synced(item.schedule for item in wanted if item.noted and (not newer or item.schedule.pk not in newer))
    return newer


def write_settled(broker: Broker, settled: Iterable[Settled]) -> None:
    """Upsert what needs no working out; as in `write_wanted` without what is still leased where it was before.

    Raises:
        BrokerError: Redis cannot be written; some may have been written.
    """
    upserts: dict[Shard, list[Definition]] = {}
    for row in settled:
        member, point_ms = member_of(row.pk), to_ms(row.point)
        wake_ms = to_ms(wake_at(row.point, row.jitter, row.name)) if row.jitter else point_ms
        definition = Definition(member, row.generation, point_ms, wake_ms)
        upserts.setdefault(broker.shard_of(member, row.queue), []).append(definition)
    held = remove_tombstones(broker, {item.member for items in upserts.values() for item in items}) if upserts else ()
    for shard, items in upserts.items():
        broker.upsert(shard, [item for item in items if item.member not in held] if held else items)


def _answered_old(items: Sequence[Wanted], replies: Sequence[str]) -> list[int]:
    return [item.schedule.pk for item, reply in zip(items, replies, strict=True) if reply == "OLD"]


def remove_tombstones(broker: Broker, members: set[str] | None = None, *, limit: int = PAGE) -> set[str]:
    """Let Redis follow deletions and moves, of these members or the oldest; return those that are still leased."""
    rows = Tombstone._base_manager.using(ledger.database()).order_by("pk")
    stones = list(rows[:limit])
    if members is not None:
        # There are few as a rule: asking for these members by name costs more than looking at all.
        if len(stones) == limit:
            stones = list(rows.filter(member__in=members))
        stones = [stone for stone in stones if stone.member in members]
    shards: dict[Shard, list[Tombstone]] = {}
    for stone in stones:
        shards.setdefault(broker.shard_of(stone.member, stone.queue), []).append(stone)
    held: set[str] = set()
    done: list[int] = []
    for shard, group in shards.items():
        replies = broker.remove(shard, [(stone.member, stone.generation, "") for stone in group], gone=True)
        for stone, reply in zip(group, replies, strict=True):
            if reply == "LEASED":
                held.add(stone.member)
            else:
                done.append(stone.pk)
    if done:
        with ledger.writing(rows.db):
            rows.filter(pk__in=done).delete()
    return held


def _note_synced(schedules: Iterable[ScheduleRow]) -> None:
    """Note which generation Redis has seen. A row that moved on meanwhile, or is locked, stays marked."""
    seen = {row.pk: row.generation for row in schedules if row.synced_generation != row.generation}
    if not seen:
        return
    using = ledger.database()
    with ledger.writing(using):
        free, _ = ledger.lock_free(Schedule, list(seen), using, "generation")
        same = [pk for pk, (generation,) in free.items() if generation == seen[pk]]
        Schedule._base_manager.using(using).filter(pk__in=same).update(synced_generation=F("generation"))
