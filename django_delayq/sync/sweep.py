"""The sweeps that correct the mirror, whatever was missed: delta and full. Between them, differences are counted.

Note [Age or restart triggers sweeps]
The next sweep is due if the record of the last one is older than FULL_SECONDS or missing, or if the server's run id has
changed since that sweep began: the server was restarted or replaced, perhaps with older data. So it also finds what was
missed while no worker ran. The worker with the upkeep lease sweeps (`worker/upkeep.py`, Note [One upkeep worker]).
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple

from django.db.models import Q

from .. import ledger
from ..index import EXACT, Broker, Shard
from ..index.keys import is_built
from ..ledger import chain
from ..models import Condition, Run, Schedule, ScheduleState, Tombstone
from ..recurrence import from_ms
from ..recurrence.point import EPOCH, utcnow
from .compare import compare
from .layout import check_layout, read_fingerprint, store_layout
from .missing import put_missing
from .pages import PAGE, PAGES, query_queues, shuffle_pages, walk
from .rebuild import Build
from .runs import close_abandoned, put_back
from .write import remove_oldest, sync

#: Maximum delay until damage, or an edit by SQL, is found, in seconds.
FULL_SECONDS = 600.0
#: Maximum rows per count of differences, which takes about a second.
MOST_COMPARED = 2_000_000
GoOn = Callable[[int], bool]


@dataclass(slots=True)
class SweepReport:
    """The changes of a full sweep, or those a dry run would make, one line each. `done`: not interrupted."""

    checked: int = 0
    lines: list[str] = field(default_factory=list)
    done: bool = False


class LastSweep(NamedTuple):
    """A finished full sweep: its end by Redis' clock, the servers' run ids at its start, and whose it was."""

    at_ms: int
    run_ids: str
    database: str


def sweep_delta(broker: Broker, *, rows: bool = True) -> int:
    """Mirror edits, deletions and, with `rows`, rows outside chains that the fast path missed. Return the greater
    number of edits or deletions: from PAGE on, there may be more. Raises ForeignLayout if the prefix was taken over.
    """
    using = ledger.get_database()
    stones = Tombstone._base_manager.using(using).exists()
    edited = Schedule.objects.using(using).unmirrored().order_by("generation")  # a limit alone scans the table
    pks = list(edited.values_list("pk", flat=True)[: PAGES * PAGE])
    if stones or pks:
        check_layout(broker)
    if rows:
        put_missing(broker)
    gone = remove_oldest(broker) if stones else 0
    mirrored = sum(_mirror_edits(broker, page) for page in shuffle_pages(pks))
    return max(mirrored, gone)


def _mirror_edits(broker: Broker, pks: Sequence[int]) -> int:
    """Mirror the edits of a page that are left; return how many are mirrored now, by any worker."""
    rows = ledger.reader(Schedule, "id", ("pk",), ledger.get_database())
    unmirrored = " AND generation <> synced_generation"
    newer = sync(broker, [pk for (pk,) in rows.read(pks, unmirrored)])
    if newer:
        compare(broker, dict(query_queues(pk__in=newer)))
    return len(pks) - len(rows.read(pks, unmirrored))


def sweep_fully(broker: Broker, *, dry_run: bool = False, go_on: GoOn = lambda checked: True) -> SweepReport:
    """Compare everything with Redis, correct what differs, build flushed shards; end if `go_on(checked)` is False."""
    report = SweepReport()
    build = Build(broker, [] if dry_run else broker.list_shards())
    for checked, lines in sweep_pages(broker, dry_run=dry_run):
        report.checked += checked
        report.lines += lines
        build.go_on()
        if not go_on(report.checked):
            return report
    build.finish()
    if not dry_run:
        sweep_delta(broker)
    report.done = True
    return report


def sweep_pages(broker: Broker, *, dry_run: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Do a full sweep page by page; yield for each the number of schedules, and one line per change."""
    yield from walk(partial(compare, broker, dry_run=dry_run), partial(put_back, broker, dry_run=dry_run))
    for shard in broker.list_shards():
        check_layout(broker, claim=False)  # with another number of shards, valid members would look like ghosts
        for lines in remove_ghosts(broker, shard, dry_run=dry_run):
            yield 0, lines
    yield 0, close_abandoned(broker, dry_run=dry_run)
    while not dry_run and (ledger.prune_expired(PAGE) or ledger.prune_outputs(PAGE)):
        yield 0, []


def remove_ghosts(broker: Broker, shard: Shard, *, dry_run: bool = False) -> Iterator[list[str]]:
    """Remove members without a row, and the remains of lost members; keep incomplete entries. Yield lines by page."""
    for page in broker.scan(shard):
        ghosts = _find_ghosts(broker, shard, page)
        if ghosts and not dry_run:
            broker.remove(shard, [(member, EXACT, "") for member in ghosts], gone=True)  # live leases stay
        yield [f"{member!r} in {shard}: removed, the database has no row for it" for member in ghosts]


def _find_ghosts(broker: Broker, shard: Shard, page: set[str]) -> list[str]:
    parsed = {member: chain.parse_member(member) for member in sorted(page)}
    pks = {kind: [item[1] for item in parsed.values() if item and item[0] == kind] for kind in "sr"}
    queues = {"s": dict(query_queues(pk__in=pks["s"])), "r": {}}
    if pks["r"]:
        runs = Run.objects.using(ledger.get_database()).filter(pk__in=pks["r"], separate=True).open()
        queues["r"] = dict(runs.values_list("pk", "queue"))
    ghosts = []
    for member, item in parsed.items():
        queue = queues[item[0]].get(item[1]) if item else None
        if queue is None or broker.get_shard(member, queue) != shard:
            ghosts.append(member)
    return ghosts


def read_last(broker: Broker) -> LastSweep | None:
    try:
        at_ms, run_ids, database = json.loads(broker.read_note("swept") or "")
        from_ms(at_ms)  # raises if it is invalid
        return LastSweep(at_ms, run_ids, database)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def sweep_if_due(broker: Broker, *, go_on: GoOn = lambda checked: True) -> SweepReport | None:
    """Make a full sweep if one is due; otherwise return None. See Note [Age or restart triggers sweeps]."""
    last = read_last(broker)
    known = last is not None and (last.database, last.run_ids) == (read_fingerprint(), broker.read_run_ids())
    if last is not None and known and 0 <= broker.read_now_ms() - last.at_ms < FULL_SECONDS * 1000:
        return None
    check_layout(broker)
    return sweep_now(broker, go_on=go_on)


def sweep_now(broker: Broker, *, go_on: GoOn = lambda checked: True) -> SweepReport:
    """Make a full sweep, even if a worker is making one, and record it if it completes."""
    run_ids = broker.read_run_ids()
    report = sweep_fully(broker, go_on=go_on)
    if report.done:
        broker.write_note("swept", json.dumps(LastSweep(broker.read_now_ms(), run_ids, read_fingerprint())))
    return report


def adopt(broker: Broker) -> SweepReport:
    """Take the prefix over for this database, whatever its former owner. Workers of the other database end within 30 s,
    and cannot settle what they still execute; what workers of this one execute may be executed again.
    """
    store_layout(broker)
    broker.forget_sweep()
    broker.take_over(broker.list_shards())
    return sweep_now(broker)


@dataclass(frozen=True, slots=True)
class Differences:
    """Minimum numbers of differing entries. Wrong values do not show; an entry may count before its write to Redis."""

    unmirrored: int  # edits that are not mirrored yet
    tombstones: int  # deletions and moves that are not mirrored yet
    missing: int  # entries missing in Redis, except unmirrored ones
    ghosts: int  # members in Redis without a row, except unmirrored deletions and moves
    torn: int  # entries with a missing or superfluous part: score, point or generation
    unbuilt: int  # shards
    swept_at: datetime | None = None  # the end of the last full sweep, by Redis' clock
    capped: bool = False  # a count reached its limit: `missing` and `ghosts` are 0, the others minimums

    @property
    def total(self) -> int:
        return self.unmirrored + self.tombstones + self.missing + self.ghosts + self.torn + self.unbuilt


def count_differences(broker: Broker, *, most: int = MOST_COMPARED, unnamed: Collection[str] = ()) -> Differences:
    """Count up to `most` rows per count. With `unnamed` queues, `missing` and `ghosts` are not counted."""
    using = ledger.get_database()
    states = ScheduleState._base_manager.using(using)
    counts = ledger.count_up_to(
        most,
        Schedule.objects.using(using).unmirrored().order_by("generation"),
        Tombstone._base_manager.using(using).all(),
        states.filter(next_due_at__gte=EPOCH),  # a bound, not `is not null`: SQLite then counts on the index
        # A schedule with an invalid recurrence and an undecided point keeps its entry until a worker claims it.
        states.filter(Q(next_due_at__range=(EPOCH, utcnow()), condition=Condition.BROKEN)),
    )
    rows, more = ledger.count_open_separate(most)
    capped = more or max(counts) > most
    unmirrored, tombstones, waiting, broken = (min(count, most) for count in counts)
    stats = broker.read_stats(broker.list_shards())
    parts = [(item.members, item.points, item.generations) for item in stats]
    surplus = sum(item.members for item in stats) - waiting - rows
    comparable = not capped and not unnamed
    last = read_last(broker)
    return Differences(
        unmirrored=unmirrored,
        tombstones=tombstones,
        missing=max(0, -surplus - broken - unmirrored) if comparable else 0,
        ghosts=max(0, surplus - unmirrored - tombstones) if comparable else 0,
        torn=sum(max(counts) - min(counts) for counts in parts),
        unbuilt=sum(not is_built(item.epoch) for item in stats),
        swept_at=None if last is None else from_ms(last.at_ms),
        capped=capped,
    )
