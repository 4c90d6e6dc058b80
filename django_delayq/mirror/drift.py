"""Drift as a number: how far Redis is from the database, by counting. Compares no schedule's entry, changes nothing."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import sub

from django.db.models import Q, QuerySet

from .. import ledger
from ..broker import Broker
from ..fields import utcnow
from ..models import Condition, Job, Schedule, ScheduleState, Tombstone
from ..timing.point import EPOCH
from .durable import find_missing, load_waiting
from .swept import read_last

#: A job that no sweep has seen to for so long counts: the sweeps come every 2 s.
STALE = timedelta(seconds=30)
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
    #: Durable jobs older than 30 s that no sweep has put into Redis.
    jobs: int = 0
    #: Durable jobs that Redis had and has no more; of the oldest 1,000 without an outcome.
    missing_jobs: int = 0
    #: There was more than is counted: `missing` and `ghosts` are not known and 0, the other numbers are the least.
    capped: bool = False

    @property
    def total(self) -> int:
        """One number for a probe: 0 where nothing is known to differ. Each differing entry counts once."""
        entries = self.unmirrored + self.tombstones + self.missing + self.ghosts + self.torn + self.unbuilt
        return entries + self.jobs + self.missing_jobs


def drift(broker: Broker, *, most: int = MOST_COMPARED, without: Collection[str] = ()) -> Drift:
    """Count what differs, by a query that counts on indexes up to `most` each, and two round trips to Redis.

    The queues `without` are those of schedules that the settings do not name: their shards are not looked at, so that
    their schedules and runs do not count either.

    A page of durable jobs is looked at one by one, in a query and a round trip a shard.

    Raises:
        BrokerError: Redis does not answer.
    """
    using = ledger.database()
    states = ScheduleState._base_manager.using(using)
    due = Q(next_due_at__gte=EPOCH)  # a bound, not `is not null`: SQLite then counts on the index
    # A parked schedule with an undecided point has its entry until a worker claims it, and none afterwards.
    undecided = Q(next_due_at__range=(EPOCH, utcnow()), condition=Condition.PARKED)
    rows = [states.filter(due), states.filter(undecided), ledger.open_apart()]
    if without:
        rows += [states.filter(each, schedule__queue__in=without) for each in (due, undecided)]
        rows.append(ledger.open_apart().filter(queue__in=without))
    counts = ledger.count_up_to(
        most,
        Schedule.objects.using(using).unmirrored().order_by("generation"),
        Tombstone._base_manager.using(using).all(),
        _stale_jobs(),
        *rows,
    )
    capped = max(counts) > most
    unmirrored, tombstones, jobs, *numbers = (min(count, most) for count in counts)
    waiting, parked, apart = map(sub, numbers[:3], numbers[3:] or (0, 0, 0))
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
        jobs=jobs,
        missing_jobs=_count_missing_jobs(broker),
        capped=capped,
    )


def _stale_jobs() -> QuerySet[Job]:
    """Return jobs that no sweep has seen to; one that was revived is as old as its revival.

    Only one that was revived has a fence before its first attempt.
    """
    now = utcnow()
    rows = ledger.unmirrored_jobs().filter(enqueued_at__lt=now - STALE)
    return rows.exclude(attempt=0, fence__gt="", wakes_at__range=(now - STALE, now))


def _count_missing_jobs(broker: Broker) -> int:
    """Count jobs that a sweep has seen to and that Redis has no more, among the oldest that are open.

    The oldest are those that a restored database has open again, because they have ended since.
    """
    rows = ledger.open_jobs().filter(mirrored=True, queue__in=broker.config.queues)
    missing = find_missing(broker, load_waiting(rows, calls=False))
    return rows.filter(pk__in=[job.pk for job in missing]).count() if missing else 0  # without what has just ended
