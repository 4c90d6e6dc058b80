"""The sweeps that make the mirror true whatever was missed: delta, full, and the rebuild of a flushed shard."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from .. import chain, ledger
from ..broker import Broker, EntryView, Place
from ..fields import utcnow
from ..models import Run, Schedule, Status
from .build import Build
from .fast import enqueue_runs
from .write import PAGE, Wanted, read_wanted, remove_tombstones, sync, write_wanted

logger = logging.getLogger("django_delayq.mirror")

#: Greater than any generation in ms: removes whatever stands there.
BEYOND = 10**15
DELTA_LIMIT = 1000
#: An order younger than this is still on the fast path; one older than the second value is left to the full sweep.
ORDER_YOUNG, ORDER_OLD = timedelta(seconds=2), timedelta(seconds=15)
#: Twice the longest backoff: no sound entry that is due waits longer for its score. See upsert.lua.
LONGEST_DELAY_MS = 2 * 3600 * 1000


@dataclass(slots=True)
class Report:
    """What a full sweep changed, or would change in a dry run: one line per change."""

    checked: int = 0
    lines: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lines)


def delta_sweep(broker: Broker) -> int:
    """Mirror what the fast path missed: edits, deletions, orders. Costs three indexed queries when there is nothing.

    Raises:
        BrokerError: Redis cannot be written; what was not reached comes with the next sweep.
    """
    using = ledger.database()
    remove_tombstones(broker, limit=DELTA_LIMIT)
    pks = list(Schedule.objects.using(using).unmirrored().order_by().values_list("pk", flat=True)[:DELTA_LIMIT])
    now = utcnow()
    orders = Run._base_manager.using(using).filter(
        status=Status.QUEUED, created_at__gt=now - ORDER_OLD, created_at__lt=now - ORDER_YOUNG
    )
    return sync(broker, pks) + enqueue_runs(broker, list(orders.order_by("pk")[:DELTA_LIMIT]))


def full_sweep(broker: Broker, *, dry_run: bool = False) -> Report:
    """Compare every definition, member and open run with Redis, and mend what differs.

    Redis is read before the database, page by page: so what is newer in Redis is a restored backup, not a late read.
    Shards that were flushed are built by it.

    Raises:
        BrokerError: Redis failed on the way; what was mended stays, the rest comes with the next sweep.
    """
    report = Report()
    build = None if dry_run else Build(broker, broker.places())
    for pks in _pages():
        _compare_page(broker, pks, report, dry_run=dry_run)
        if build is not None:
            build.go_on()
    for place in broker.places():
        _remove_ghosts(broker, place, report, dry_run=dry_run)
    _close_abandoned(broker, report, dry_run=dry_run)
    for runs in _open_runs():
        _put_back(broker, runs, report, dry_run=dry_run)
        if build is not None:
            build.go_on()
    if build is not None:
        build.finish()
        delta_sweep(broker)
    return report


def _pages(queues: Sequence[str] | None = None) -> Iterator[list[int]]:
    rows = Schedule._base_manager.using(ledger.database()).order_by("pk")
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    last = 0
    while page := list(rows.filter(pk__gt=last).values_list("pk", flat=True)[:PAGE]):
        yield page
        last = page[-1]


def _compare_page(broker: Broker, pks: list[int], report: Report, *, dry_run: bool) -> None:
    queues = dict(Schedule._base_manager.using(ledger.database()).filter(pk__in=pks).values_list("pk", "queue"))
    asked = [(chain.member_of(pk), queue) for pk, queue in queues.items()]
    now_ms = broker.now_ms()
    views = dict(zip((member for member, _ in asked), broker.views(asked), strict=True))
    todo: list[Wanted] = []
    expected: dict[str, str] = {}
    for item in read_wanted(pks, note=not dry_run):
        report.checked += 1
        view = views.get(item.member)
        if view is None or queues.get(item.schedule.pk) != item.schedule.queue:
            continue  # moved this very moment: the delta sweep has it
        difference = _difference(item, view, now_ms)
        if difference:
            report.lines.append(f"{item.schedule.name}: {difference}")
            todo.append(item)
            if view.generation is not None and view.generation > item.schedule.generation:
                expected[item.member] = str(view.generation)
    if todo and not dry_run:
        write_wanted(broker, todo, sweep=True, expected=expected)


def _difference(item: Wanted, view: EntryView, now_ms: int) -> str:
    there = view.point_ms is not None or view.score_ms is not None
    if item.point is None:
        return "removed, it has no due point to wait for" if there else ""
    if not there:
        return f"added, next due {item.point:%Y-%m-%d %H:%M:%S} UTC"
    if view.point_ms is None or view.score_ms is None or view.generation is None:
        return "repaired, a part of its entry was missing"
    if view.generation != item.schedule.generation:
        older = view.generation < item.schedule.generation
        return "updated, an edit was not mirrored" if older else "set back, Redis knew a newer edit than the database"
    if view.leased:
        return ""
    wanted = item.definition()
    if view.point_ms > wanted.point_ms:
        return f"rewound to {item.point:%Y-%m-%d %H:%M:%S} UTC, which has no outcome"
    if view.point_ms > now_ms and view.point_ms == wanted.point_ms and view.score_ms != wanted.wake_ms:
        return "reset, its wake-up was damaged"
    if view.point_ms <= now_ms and view.score_ms > max(now_ms, wanted.wake_ms) + LONGEST_DELAY_MS:
        return "reset, its wake-up was damaged"
    return ""


def _remove_ghosts(broker: Broker, place: Place, report: Report, *, dry_run: bool) -> None:
    using = ledger.database()
    seen: set[str] = set()
    for page in broker.scan(place):
        members = sorted(member for member in page - seen if not member.startswith("j"))
        seen |= page
        parsed = {member: chain.parse_member(member) for member in members}
        pks = [item[1] for item in parsed.values() if item and item[0] == "s"]
        homes = dict(Schedule._base_manager.using(using).filter(pk__in=pks).values_list("pk", "queue"))
        runs = [item[1] for item in parsed.values() if item and item[0] == "r"]
        live = set(Run.objects.using(using).filter(pk__in=runs).open().values_list("pk", flat=True))
        ghosts = []
        for member, item in parsed.items():
            if item and item[0] == "s" and item[1] in homes:
                if broker.place_of(member, homes[item[1]]) == place:
                    continue
            elif item and item[0] == "r" and item[1] in live:
                continue
            ghosts.append(member)
            report.lines.append(f"{member!r} in {place}: removed, nothing in the database stands behind it")
        if ghosts and not dry_run:
            broker.remove(place, [(member, BEYOND, "") for member in ghosts], gone=True)


def _close_abandoned(broker: Broker, report: Report, *, dry_run: bool) -> None:
    """Close open rows of schedules that are gone or switched off and that no member stands for any more."""
    runs = ledger.load_abandoned()
    views = broker.views([(chain.member_of(run.schedule_id), run.queue) for run in runs])
    lost = [run for run, view in zip(runs, views, strict=True) if view.score_ms is None]
    report.lines.extend(f"{run}: closed, its schedule is gone or switched off" for run in lost)
    if not dry_run:
        ledger.close_abandoned(lost)


def _open_runs(queues: Sequence[str] | None = None) -> Iterator[list[Run]]:
    """Yield pages of runs apart from their chains that have no outcome: waiting orders, retries, runs that died."""
    rows = Run.objects.using(ledger.database()).open().filter(apart=True).order_by("pk")
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    last = 0
    while page := list(rows.filter(pk__gt=last)[:PAGE]):
        yield page
        last = page[-1].pk


def _put_back(broker: Broker, runs: Sequence[Run], report: Report, *, dry_run: bool) -> None:
    views = broker.views([(chain.run_member_of(run.pk), run.queue) for run in runs])
    missing = [run for run, view in zip(runs, views, strict=True) if view.score_ms is None]
    report.lines.extend(f"{run}: put back" for run in missing)
    if not dry_run:
        enqueue_runs(broker, missing)


def rebuild(broker: Broker, places: Sequence[Place]) -> bool:
    """Fill flushed places from the database; True if done, False if another worker is at it or Redis was flushed again.

    Idempotent and safe beside claims: entries restart at their first missing point, see Note [First missing point].
    """
    build = Build(broker, places)
    if not build.places:
        return False
    queues = sorted({place.queue for place in build.places})
    count = 0
    for pks in _pages(queues):
        wanted = [item for item in read_wanted(pks) if item.point is not None and _home(broker, item) in build.places]
        write_wanted(broker, wanted, sweep=True)
        count += len(wanted)
        if not build.go_on():
            return False
    for runs in _open_runs(queues):
        _put_back(broker, runs, Report(), dry_run=False)
        if not build.go_on():
            return False
    done = build.finish()
    logger.info("Rebuilt %s from the database: %d schedules.", ", ".join(map(str, build.places)), count)
    return done


def _home(broker: Broker, item: Wanted) -> Place:
    return broker.place_of(item.member, item.schedule.queue)
