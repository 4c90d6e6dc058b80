"""Writes definitions to Redis: upserts or removes their entries."""

from collections.abc import Iterable, Sequence

from .. import ledger
from ..index import Broker
from ..index.keys import group_by
from ..models import Schedule, Tombstone
from .pages import PAGE, PAGES, shuffle_pages, split_pages
from .read import Wanted, read_wanted


def sync(broker: Broker, pks: Iterable[int]) -> list[int]:
    """Mirror these schedules, except deleted ones. Return those that stay unchanged: Redis knows a newer edit."""
    newer = []
    for page in split_pages(sorted(set(pks))):
        whole = page[-1] - page[0] < len(page)
        newer += write_wanted(broker, read_wanted(range(page[0], page[-1] + 1) if whole else page))
    return newer


def write_wanted(broker: Broker, wanted: Sequence[Wanted], *, reset: bool = False) -> list[int]:
    """Upsert or remove entries; return the schedules of which Redis knows a newer edit. A schedule that moves to
    another shard while it is leased stays unmirrored until a later sweep: otherwise its point would run in both shards.
    """
    held = remove_tombstones(broker, {item.definition.member for item in wanted}) if wanted else set()
    if held:
        wanted = [item for item in wanted if item.definition.member not in held]
    newer: set[int] = set()
    places = group_by(wanted, lambda item: (broker.get_shard(item.definition.member, item.queue), item.point is None))
    for (shard, ends), items in places.items():
        if ends:
            ended = [item.definition for item in items]
            replies = broker.remove(shard, [(each.member, each.generation, each.expected) for each in ended])
        else:
            replies = broker.upsert(shard, [item.definition for item in items], mode="reset" if reset else "")
        newer |= {item.pk for item, reply in zip(items, replies, strict=True) if reply == "OLD"}
    _note_mirrored({item.pk: item.definition.generation for item in wanted if item.unnoted and item.pk not in newer})
    return sorted(newer)


def remove_tombstones(broker: Broker, members: set[str] | None = None) -> set[str]:
    """Mirror deletions and moves, of these members or the oldest; return members that are still leased."""
    rows = Tombstone._base_manager.using(ledger.get_database()).order_by("pk")
    stones = list(rows[:PAGE])
    if members is not None:
        # Usually there are few: filtering by member in the query costs more than reading all.
        if len(stones) == PAGE:
            stones = list(rows.filter(member__in=members))
        stones = [stone for stone in stones if stone.member in members]
    return _remove(broker, stones)


def remove_oldest(broker: Broker) -> int:
    """Mirror the oldest deletions and moves; return how many are done, by any worker."""
    rows = Tombstone._base_manager.using(ledger.get_database()).order_by("pk")
    pages = shuffle_pages(rows.values_list("pk", flat=True)[: PAGES * PAGE])
    return sum(len(page) - len(_remove(broker, list(rows.filter(pk__in=page)))) for page in pages)


def _remove(broker: Broker, stones: Sequence[Tombstone]) -> set[str]:
    held: set[str] = set()
    done: list[int] = []
    for shard, group in group_by(stones, lambda stone: broker.get_shard(stone.member, stone.queue)).items():
        replies = broker.remove(shard, [(stone.member, stone.generation, "") for stone in group], gone=True)
        for stone, reply in zip(group, replies, strict=True):
            if reply == "LEASED":
                held.add(stone.member)
            else:
                done.append(stone.pk)
    if done:
        using = ledger.get_database()
        with ledger.writing(using):
            Tombstone._base_manager.using(using).filter(pk__in=done).delete()
    return held


def _note_mirrored(seen: dict[int, int]) -> None:
    """Record that Redis has these generations. Rows that are locked or were edited since stay marked."""
    if not seen:
        return
    using = ledger.get_database()
    with ledger.writing(using):
        free, _ = ledger.lock_free(Schedule, list(seen), using, "generation")
        same = [(pk, generation) for pk, (generation,) in free.items() if generation == seen[pk]]
        ledger.writer(Schedule, ("id", "synced_generation"), using).update(same)
