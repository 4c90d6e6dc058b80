"""Counts how far Redis differs from the database. Compares no single entry, and changes nothing."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from .. import ledger
from ..index import Broker
from ..index.keys import is_built
from ..models import Condition, Schedule, ScheduleState, Tombstone
from ..recurrence import from_ms
from ..recurrence.point import EPOCH, utcnow
from .sweep import read_last

#: Maximum rows per count, which takes about a second.
MOST_COMPARED = 2_000_000


@dataclass(frozen=True, slots=True)
class Differences:
    """The minimum number of entries that differ.

    Counts show neither wrong values nor a missing entry that a superfluous one offsets: the full sweep compares
    those. An entry may count between its commit and its write to Redis: only a number that stays for some seconds is
    a problem.
    """

    #: Edits, and deletions and moves, that are not mirrored yet.
    unmirrored: int
    tombstones: int
    #: Entries missing in Redis, and members in Redis without a row, beyond those that are not mirrored yet.
    missing: int
    ghosts: int
    #: Entries with a missing or superfluous part: score, point or generation.
    torn: int
    #: Flushed shards that are not rebuilt yet.
    unbuilt: int
    #: When the last full sweep ended, by Redis' clock; None if unknown.
    swept_at: datetime | None = None
    #: True if a count reached its limit: `missing` and `ghosts` are then 0, the others are minimums.
    capped: bool = False

    @property
    def total(self) -> int:
        """The sum, in which each differing entry counts once."""
        return self.unmirrored + self.tombstones + self.missing + self.ghosts + self.torn + self.unbuilt


def count_differences(broker: Broker, *, most: int = MOST_COMPARED, unnamed: Collection[str] = ()) -> Differences:
    """Count the differences, with two queries of up to `most` index entries per count, and two round trips to Redis.

    `unnamed`: queues of schedules that the settings do not name. With any, `missing` and `ghosts` are not counted.
    """
    using = ledger.database()
    states = ScheduleState._base_manager.using(using)
    counts = ledger.count_up_to(
        most,
        Schedule.objects.using(using).unmirrored().order_by("generation"),
        Tombstone._base_manager.using(using).all(),
        states.filter(next_due_at__gte=EPOCH),  # a bound, not `is not null`: SQLite then counts on the index
        # A schedule with an invalid recurrence and an undecided point keeps its entry until a worker claims it.
        states.filter(Q(next_due_at__range=(EPOCH, utcnow()), condition=Condition.PARKED)),
    )
    rows, more = ledger.count_open_apart(most)
    capped = more or max(counts) > most
    unmirrored, tombstones, waiting, parked = (min(count, most) for count in counts)
    stats = broker.stats(broker.shards())
    parts = [(item.members, item.points, item.generations) for item in stats]
    surplus = sum(item.members for item in stats) - waiting - rows
    comparable = not capped and not unnamed
    last = read_last(broker)
    return Differences(
        unmirrored=unmirrored,
        tombstones=tombstones,
        missing=max(0, -surplus - parked - unmirrored) if comparable else 0,
        ghosts=max(0, surplus - unmirrored - tombstones) if comparable else 0,
        torn=sum(max(counts) - min(counts) for counts in parts),
        unbuilt=sum(not is_built(item.epoch) for item in stats),
        swept_at=None if last is None else from_ms(last.at_ms),
        capped=capped,
    )
