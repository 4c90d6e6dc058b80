"""The sweeps that make the mirror true whatever was missed: delta and full."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from .. import failpoints, ledger
from ..broker import Broker, JobBroker
from ..fields import utcnow
from ..models import Schedule, Status, Tombstone
from . import rows
from .build import Build
from .compare import compare
from .durable import load_unmirrored, prune_pages, put_back_jobs, put_unmirrored, waiting_pages
from .fast import enqueue_runs
from .ghosts import remove_ghosts
from .layout import check_layout
from .runs import close_abandoned, open_pages, pages_of, put_back
from .write import PAGE, remove_tombstones, sync

#: An order younger than this is still on the fast path; one older than the second value is left to the full sweep.
ORDER_YOUNG, ORDER_OLD = timedelta(seconds=2), timedelta(seconds=15)


@dataclass(slots=True)
class Report:
    """What a full sweep changed, or would change in a dry run: one line per change. `done` unless it was stopped."""

    checked: int = 0
    lines: list[str] = field(default_factory=list)
    done: bool = False

    def __bool__(self) -> bool:
        return bool(self.lines)


def delta_sweep(broker: Broker) -> int:
    """Mirror what the fast path missed: edits, deletions, orders, jobs. Costs four indexed queries where all is done.

    Return how many edits or jobs these were, whichever are more: as many as a page may hold (`PAGE`), and there may be
    others.

    Raises:
        ForeignLayout: Another database has taken the prefix over.
        BrokerError: Redis cannot be written; what was not reached comes with the next sweep.
    """
    using, now = ledger.database(), utcnow()
    stones = Tombstone._base_manager.using(using).exists()
    pks = list(Schedule.objects.using(using).unmirrored().order_by().values_list("pk", flat=True)[:PAGE])
    orders = ledger.open_apart().filter(
        status=Status.QUEUED, created_at__gt=now - ORDER_OLD, created_at__lt=now - ORDER_YOUNG
    )
    ordered = orders.exists()
    jobs = load_unmirrored()
    if not (stones or pks or ordered or jobs):
        return 0
    check_layout(broker)
    put_unmirrored(broker, jobs)
    remove_tombstones(broker)
    newer = sync(broker, pks)
    compare(broker, rows.load_homes_of(newer))
    for runs in pages_of(orders) if ordered else ():  # Redis has most of them, perhaps whole pages: look at all
        enqueue_runs(broker, runs)
    with ledger.writing(using):  # what others have locked stays marked: asking for more at once would not end
        left = ledger.leave_locked(Schedule, pks, using) if pks else ()
    return max(len(pks) - len(left), len(jobs))


def full_sweep(broker: Broker, *, dry_run: bool = False, go_on: Callable[[], bool] = lambda: True) -> Report:
    """Compare every definition, member and open run with Redis, and mend what differs. See `compare`.

    Shards that were flushed are built by it. `go_on` is asked after each page; where it says no, the sweep ends there.

    Raises:
        BrokerError: Redis failed on the way; what was mended stays, the rest comes with the next sweep.
    """
    report = Report()
    JobBroker(broker).counts(broker.shards())  # no page below comes across a damaged key of jobs
    build = Build(broker, [] if dry_run else broker.shards())
    for lines in _sweep_parts(broker, report, dry_run=dry_run):
        report.lines += lines
        build.go_on()
        if not go_on():
            return report
    build.finish()
    if not dry_run:
        delta_sweep(broker)
    report.done = True
    return report


def _sweep_parts(broker: Broker, report: Report, *, dry_run: bool) -> Iterator[list[str]]:
    """Do the full sweep part by part, yielding a line per change."""
    for homes in rows.pages(PAGE):
        report.checked += len(homes)
        yield [difference.words(item) for item, difference in compare(broker, homes, dry_run=dry_run)]
        failpoints.reach("during_rebuild")
    for shard in broker.shards():
        yield from remove_ghosts(broker, shard, dry_run=dry_run)
    yield close_abandoned(broker, dry_run=dry_run)
    for runs in open_pages():
        yield put_back(broker, runs, dry_run=dry_run)
    for jobs in waiting_pages(calls=False):
        yield put_back_jobs(broker, jobs, dry_run=dry_run)
    for _ in () if dry_run else prune_pages():
        yield []
