"""Drift as a number: how far Redis is from the database, by counting. Compares no schedule's entry, changes nothing."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from operator import sub

from django.db.models import Q

from .. import ledger
from ..index import Broker
from ..models import Condition, Schedule, ScheduleState, Tombstone
from ..recurrence.point import EPOCH, utcnow
from .swept import read_last

#: Counting that much takes a second or so.
MOST_COMPARED = 2_000_000


@dataclass(frozen=True, slots=True)
class Drift:
    """How many entries differ at least; all zero where nothing is known to differ.

    Counts cannot see one entry that is missing while another is too many, nor a wrong value in an entry: the full sweep
    and `delayq_sync --dry-run` compare. While workers run, an entry may count for the moment between its commit and
    Redis, so one look that is not zero means little, and the same number twice in some seconds means much.
    """

    #: Edits that Redis has not seen.
    unmirrored: int
    #: Deletions and moves that Redis has not followed.
    tombstones: int
    #: Entries that the database wants and Redis has not, beyond those of unmirrored edits.
    missing: int
    #: Members in Redis that nothing stands behind, beyond those of tombstones and unmirrored edits.
    ghosts: int
    #: Entries of which a part is missing or left over: score, point or generation.
    torn: int
    #: Shards that were flushed and are not rebuilt yet.
    unbuilt: int
    #: When the last full sweep ended, by Redis' clock; None where none is known.
    swept_at: datetime | None = None
    #: How many entries that sweep mended, how many seconds it took, and for how many the next one has been due.
    mended: int = 0
    swept_seconds: float | None = None
    sweep_overdue_seconds: float | None = None
    #: There was more than is counted: `missing` and `ghosts` are not known and 0, the other numbers are the least.
    capped: bool = False

    @property
    def total(self) -> int:
        """One number for a probe: 0 where nothing is known to differ. Each differing entry counts once."""
        return self.unmirrored + self.tombstones + self.missing + self.ghosts + self.torn + self.unbuilt


def drift(broker: Broker, *, most: int = MOST_COMPARED, without: Collection[str] = ()) -> Drift:
    """Count what differs, by two queries that count on indexes up to `most` each, and two round trips to Redis.

    The queues `without` are those of schedules that the settings do not name: their shards are not looked at, so that
    their schedules and runs do not count either.

    Raises:
        BrokerError: Redis does not answer.
    """
    using = ledger.database()
    states = ScheduleState._base_manager.using(using)
    due = Q(next_due_at__gte=EPOCH)  # a bound, not `is not null`: SQLite then counts on the index
    # A parked schedule with an undecided point has its entry until a worker claims it, and none afterwards.
    undecided = Q(next_due_at__range=(EPOCH, utcnow()), condition=Condition.PARKED)
    rows = [states.filter(due), states.filter(undecided)]
    if without:
        rows += [states.filter(each, schedule__queue__in=without) for each in (due, undecided)]
    counts = ledger.count_up_to(
        most,
        Schedule.objects.using(using).unmirrored().order_by("generation"),
        Tombstone._base_manager.using(using).all(),
        *rows,
    )
    apart, more = ledger.count_open_apart(most, without)
    capped = more or max(counts) > most
    unmirrored, tombstones, *numbers = (min(count, most) for count in counts)
    waiting, parked = map(sub, numbers[:2], numbers[2:] or (0, 0))
    expected = waiting + apart
    stats = broker.stats(broker.shards())
    members = sum(item.members for item in stats)
    parts = [(item.members, item.points, item.generations) for item in stats]
    last = read_last(broker)
    return Drift(
        unmirrored=unmirrored,
        tombstones=tombstones,
        missing=0 if capped else max(0, expected - parked - members - unmirrored),
        ghosts=0 if capped else max(0, members - expected - unmirrored - tombstones),
        torn=sum(max(counts) - min(counts) for counts in parts),
        unbuilt=sum(item.epoch is None or item.epoch.startswith("building:") for item in stats),
        swept_at=None if last is None else last.at,
        mended=0 if last is None else last.mended,
        swept_seconds=None if last is None else last.seconds,
        sweep_overdue_seconds=None if last is None else last.overdue_seconds(stats[0].now_ms),
        capped=capped,
    )
