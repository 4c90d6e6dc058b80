"""The sweeps that correct the mirror, whatever was missed: delta and full."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .. import ledger
from ..index import Broker, Shard
from ..ledger import chain
from ..models import Run, Schedule, Tombstone
from .compare import compare
from .layout import check_layout
from .missed import put_missed
from .pages import PAGE, PAGES, shuffled
from .read import queues_of
from .rebuild import Build, walk
from .runs import close_abandoned
from .write import remove_oldest, remove_whole, sync

logger = logging.getLogger("django_delayq.sync")


@dataclass(slots=True)
class Report:
    """The changes of a full sweep, or those a dry run would make, one line each. `done`: not interrupted."""

    checked: int = 0
    lines: list[str] = field(default_factory=list)
    done: bool = False

    def __bool__(self) -> bool:
        return bool(self.lines)


def delta_sweep(broker: Broker, *, rows: bool = True) -> int:
    """Mirror what the fast path missed: edits, deletions and, with `rows`, rows outside chains.

    Return the greater of the numbers of mirrored edits and deletions; if it reaches PAGE, there may be more. See
    `pages.py`, Note [Pages are swept in random order]. If nothing is missing, it costs a few short queries, and does
    not query Redis.

    Raises:
        ForeignLayout: Another database has taken the prefix over.
        BrokerError: Redis cannot be written; the next sweep does the rest.
    """
    using = ledger.database()
    stones = Tombstone._base_manager.using(using).exists()
    edited = Schedule.objects.using(using).unmirrored().order_by("generation")  # a limit alone scans the table
    pks = list(edited.values_list("pk", flat=True)[: PAGES * PAGE])
    if stones or pks:
        check_layout(broker)
    if rows:
        put_missed(broker)
    gone = remove_oldest(broker) if stones else 0
    mirrored = sum(_mirror_edits(broker, page) for page in shuffled(pks))
    return max(mirrored, gone)


def _mirror_edits(broker: Broker, pks: Sequence[int]) -> int:
    """Mirror the edits of a page that are left; return how many are mirrored now, by any worker.

    Locked rows, and rows that must not leave their shard yet, do not count: otherwise the caller would repeat
    endlessly.
    """
    rows = ledger.reader(Schedule, "id", ("pk",), ledger.database())
    unmirrored = " AND generation <> synced_generation"
    newer = sync(broker, [pk for (pk,) in rows.read(pks, unmirrored)])
    if newer:
        compare(broker, dict(queues_of(pk__in=newer)))
    return len(pks) - len(rows.read(pks, unmirrored))


def full_sweep(broker: Broker, *, dry_run: bool = False, go_on: Callable[[int], bool] = lambda checked: True) -> Report:
    """Compare every definition, member and open run with Redis, and correct what differs. Builds flushed shards.

    `go_on` is called after each page with the number of schedules checked so far; the sweep ends if it returns False.

    Raises:
        BrokerError: Redis failed; corrections stay, the next sweep does the rest.
    """
    report = Report()
    build = Build(broker, [] if dry_run else broker.shards())
    for checked, lines in _parts(broker, dry_run=dry_run):
        report.checked += checked
        report.lines += lines
        build.go_on()
        if not go_on(report.checked):
            return report
    build.finish()
    if not dry_run:
        delta_sweep(broker)
    report.done = True
    return report


def _parts(broker: Broker, *, dry_run: bool) -> Iterator[tuple[int, list[str]]]:
    yield from walk(broker, dry_run=dry_run)
    for shard in broker.shards():
        check_layout(broker, claim=False)  # with another number of shards, valid members would look like ghosts
        for lines in remove_ghosts(broker, shard, dry_run=dry_run):
            yield 0, lines
    yield 0, close_abandoned(broker, dry_run=dry_run)
    while not dry_run and (ledger.prune_expired(PAGE) or ledger.prune_outputs(PAGE)):
        yield 0, []


def remove_ghosts(broker: Broker, shard: Shard, *, dry_run: bool = False) -> Iterator[list[str]]:
    """Remove members without a row, and remains of lost ones, not incomplete entries; yield lines page by page."""
    for page in broker.scan(shard):
        ghosts = _find_ghosts(broker, shard, page)
        if ghosts and not dry_run:
            remove_whole(broker, shard, ghosts)
        yield [f"{member!r} in {shard}: removed, nothing in the database stands behind it" for member in ghosts]


def _find_ghosts(broker: Broker, shard: Shard, page: set[str]) -> list[str]:
    parsed = {member: chain.parse_member(member) for member in sorted(page)}
    pks = {kind: [item[1] for item in parsed.values() if item and item[0] == kind] for kind in "sr"}
    queues = {"s": dict(queues_of(pk__in=pks["s"])), "r": {}}
    if pks["r"]:
        runs = Run.objects.using(ledger.database()).filter(pk__in=pks["r"], apart=True).open()
        queues["r"] = dict(runs.values_list("pk", "queue"))
    ghosts = []
    for member, item in parsed.items():
        queue = queues[item[0]].get(item[1]) if item else None
        if queue is None or broker.shard_of(member, queue) != shard:
            ghosts.append(member)
    return ghosts
