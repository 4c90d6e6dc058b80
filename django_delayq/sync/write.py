"""Writes definitions to Redis: re-read from the primary database, then upserted or removed under their generation."""

from collections.abc import Iterable, Sequence

from .. import ledger
from ..index import EXACT, Index, Shard
from ..index.keys import grouped
from ..models import Schedule, Tombstone
from .pages import PAGE, PAGES, parts, shuffled
from .read import Wanted, read_wanted


def sync(broker: Index, pks: Iterable[int]) -> list[int]:
    """Mirror these schedules as the database has them now. Deleted ones are left to their tombstones.

    Return those of which Redis knows a newer edit: they stay as they are and are not marked as mirrored. Either the
    newer edit was mirrored meanwhile, or the database is a restored backup; the sweeps find out.

    Raises:
        BrokerError: Redis cannot be written; what was not reached stays marked as not mirrored.
    """
    newer = []
    for page in parts(sorted(set(pks))):
        whole = page[-1] - page[0] < len(page)
        newer += write_wanted(broker, read_wanted(range(page[0], page[-1] + 1) if whole else page))
    return newer


def write_wanted(broker: Index, wanted: Sequence[Wanted], *, reset: bool = False) -> list[int]:
    """Upsert or remove, each in one round trip per shard; `reset` as in upsert.lua.

    Return the schedules of which Redis knows a newer edit.

    A schedule that was moved enters its new shard only after it has left the old one: while it is leased there, it is
    left out here and stays marked as not mirrored, and the next sweep tries again. Otherwise its point would be run in
    both shards.

    Raises:
        BrokerError: Redis cannot be written; some may have been written.
    """
    held = remove_tombstones(broker, {item.member for item in wanted}) if wanted else set()
    if held:
        wanted = [item for item in wanted if item.member not in held]
    newer: set[int] = set()
    places = grouped(wanted, lambda item: (broker.shard_of(item.member, item.queue), item.point is None))
    for (shard, ends), items in places.items():
        if ends:
            generations = [(item.member, item.definition.generation, item.definition.expected) for item in items]
            replies = broker.remove(shard, generations)
        else:
            replies = broker.upsert(shard, [item.definition for item in items], mode="reset" if reset else "")
        newer |= {item.pk for item, reply in zip(items, replies, strict=True) if reply == "OLD"}
    _note_mirrored({item.pk: item.definition.generation for item in wanted if item.unnoted and item.pk not in newer})
    return sorted(newer)


def remove_whole(broker: Index, shard: Shard, members: Sequence[str]) -> list[str]:
    """Take members out of a shard, whatever is known there of them; return those that have left it.

    What is under a live lease stays.
    """
    replies = broker.remove(shard, [(member, EXACT, "") for member in members], gone=True)
    return [member for member, reply in zip(members, replies, strict=True) if reply != "LEASED"]


def remove_tombstones(broker: Index, members: set[str] | None = None) -> set[str]:
    """Let Redis follow deletions and moves, of these members or the oldest; return those that are still leased."""
    rows = Tombstone._base_manager.using(ledger.database()).order_by("pk")
    stones = list(rows[:PAGE])
    if members is not None:
        # There are few as a rule: asking for these members by name costs more than looking at all.
        if len(stones) == PAGE:
            stones = list(rows.filter(member__in=members))
        stones = [stone for stone in stones if stone.member in members]
    return _remove(broker, stones)


def remove_oldest(broker: Index) -> int:
    """Let Redis follow the oldest deletions and moves; return how many are done, by whomever.

    See `pages.py`, Note [In any order].
    """
    rows = Tombstone._base_manager.using(ledger.database()).order_by("pk")
    pages = shuffled(rows.values_list("pk", flat=True)[: PAGES * PAGE])
    return sum(len(page) - len(_remove(broker, list(rows.filter(pk__in=page)))) for page in pages)


def _remove(broker: Index, stones: Sequence[Tombstone]) -> set[str]:
    """Follow these; return the members that are still leased."""
    held: set[str] = set()
    done: list[int] = []
    for shard, group in grouped(stones, lambda stone: broker.shard_of(stone.member, stone.queue)).items():
        replies = broker.remove(shard, [(stone.member, stone.generation, "") for stone in group], gone=True)
        for stone, reply in zip(group, replies, strict=True):
            if reply == "LEASED":
                held.add(stone.member)
            else:
                done.append(stone.pk)
    if done:
        using = ledger.database()
        with ledger.writing(using):
            Tombstone._base_manager.using(using).filter(pk__in=done).delete()
    return held


def _note_mirrored(seen: dict[int, int]) -> None:
    """Note that Redis has these generations of schedules. A row that moved on meanwhile, or is locked, stays marked."""
    if not seen:
        return
    using = ledger.database()
    with ledger.writing(using):
        free, _ = ledger.lock_free(Schedule, list(seen), using, "generation")
        same = [(pk, generation) for pk, (generation,) in free.items() if generation == seen[pk]]
        ledger.writer(Schedule, ("id", "synced_generation"), using).update(same)
