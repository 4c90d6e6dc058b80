"""Compares what Redis holds of schedules with what it should hold, and corrects what differs. Redis is read before the
database, so a newer generation in Redis means a restored backup, not a late read.
"""

from collections.abc import Mapping
from enum import Enum

from ..index import Broker, EntryView
from ..index.keys import LONGEST_WAIT_MS
from ..ledger import chain
from .pages import compress_keys
from .read import Wanted, read_wanted
from .write import write_wanted


class Difference(Enum):
    """What is wrong with an entry, in words. `{point}` is the point that the entry should have."""

    NEEDLESS = "removed, it has no due point to wait for"
    ABSENT = "added, next due {point:%Y-%m-%d %H:%M:%S} UTC"
    TORN = "repaired, a part of its entry was missing"
    PAST_DJANGO = "updated, SQL had edited it"
    BEHIND = "updated, an edit was not mirrored"
    NEWER = "set back, Redis knew a newer edit than the database"
    AHEAD = "rewound to {point:%Y-%m-%d %H:%M:%S} UTC, which has no outcome"
    EARLIER = "reset, its point in Redis was earlier than its next due point"
    WAKE = "reset, its wake-up was damaged"
    LEASE = "reset, its lease had no holder"
    ATTEMPTS = "reset, attempts were left over"


#: After these the entry must be replaced instead of updated.
DAMAGES = (
    Difference.TORN, Difference.AHEAD, Difference.EARLIER, Difference.WAKE, Difference.LEASE, Difference.ATTEMPTS,
)  # fmt: skip
NOTHING = EntryView(None, None, None, leased=False)


def compare(broker: Broker, queues: Mapping[int, str], *, dry_run: bool = False) -> list[str]:
    """Compare schedules, {primary key: queue}; correct what differs, unless in a `dry_run`; return a line for each."""
    now_ms = broker.read_now_ms()
    views = broker.read_views([(chain.format_member(pk), queue) for pk, queue in queues.items()])
    held = dict(zip(queues, views, strict=True))
    lines: list[str] = []
    outdated: list[Wanted] = []
    damaged: list[Wanted] = []
    for item in read_wanted(compress_keys(queues), note=not dry_run):
        if queues.get(item.pk) != item.queue:  # has just moved: left to the delta sweep
            continue
        view = held[item.pk]
        difference = find_difference(item, view, now_ms)
        if difference is not None:
            lines.append(f"{item.name}: {difference.value.format(point=item.point)}")
            (damaged if difference in DAMAGES else outdated).append(item)
            if view.generation is not None and view.generation > item.definition.generation:
                item.definition = item.definition._replace(expected=str(view.generation))
    for items, reset in ((outdated, False), (damaged, True)):
        if items and not dry_run:
            write_wanted(broker, items, reset=reset)
    return lines


def find_difference(item: Wanted, view: EntryView, now_ms: int) -> Difference | None:
    wanted, score_ms = item.definition, view.score_ms
    if item.past_django:
        return Difference.PAST_DJANGO
    if item.point is None:
        return _find_needless(view, wanted.generation, now_ms)
    if view.point_ms is None or score_ms is None or view.generation is None:
        return Difference.ABSENT if view.point_ms is None and score_ms is None else Difference.TORN
    if view.generation != wanted.generation:
        return Difference.BEHIND if view.generation < wanted.generation else Difference.NEWER
    if view.leased:
        return Difference.LEASE if score_ms > now_ms + LONGEST_WAIT_MS else None
    if view.point_ms > wanted.point_ms:
        return Difference.AHEAD
    if score_ms > max(now_ms, wanted.wake_ms) + LONGEST_WAIT_MS:
        return Difference.WAKE
    if item.awaited:  # waits for a retry
        return None
    if view.point_ms < wanted.point_ms:
        return Difference.EARLIER if score_ms > now_ms else None  # otherwise its next claimer finds it
    if view.point_ms <= now_ms:
        return None
    if view.retrying:
        return Difference.ATTEMPTS
    return Difference.WAKE if score_ms != wanted.wake_ms else None


def _find_needless(view: EntryView, generation: int, now_ms: int) -> Difference | None:
    if view == NOTHING:
        return None
    pending = view.score_ms is not None and (view.leased or (view.point_ms is not None and view.point_ms <= now_ms))
    if pending and view.generation == generation and (view.score_ms or 0) <= now_ms + LONGEST_WAIT_MS:
        return None  # its holder or next claimer records the point and drops the entry
    return Difference.NEEDLESS
