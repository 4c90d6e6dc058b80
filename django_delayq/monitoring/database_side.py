"""The database's side of a snapshot, and how Redis differs from it, in a few bounded queries.

Note [Late means no success]
A schedule is late if `expected_within` has passed since a due point of its current definition, and no run due at that
point or later has succeeded, including manual runs and backfills. Disabled and broken schedules are not late, nor are
those whose queue or task is paused.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When

from .. import conf, ledger, sync
from ..calls import handover, registry
from ..index import Broker
from ..index.keys import group_by
from ..ledger import chain
from ..models import Condition, Origin, Run, Schedule, ScheduleState, Status, Tombstone
from ..recurrence.point import utcnow
from ..sync import Differences
from ..sync.layout import ForeignLayout
from ..sync.sweep import MOST_COMPARED
from .redis_side import RedisView

#: Maximum of a count, because counting more takes longer. A result of one above it means "more than this".
MOST_COUNTED = 100_000
#: The same in web requests.
MOST_SHOWN = 1000
#: Maximum schedules with unknown tasks that are read: each page of the admin's list reads them.
MOST_UNKNOWN = 1000
#: Maximum open runs of each status that are searched for unknown names, and failures that are searched for jobs.
MOST_READ = 10_000
#: Minimum age of an unmirrored edit that is reported; workers mirror within about 2 s.
STALE = timedelta(seconds=30)
#: Maximum number of the oldest deletions and moves that are checked in Redis.
MOST_TOMBSTONES = 200
#: Maximum names of schedules that a problem shows.
NAMES_SHOWN = 5
#: Lost workers after which a run is suspected of killing workers, or of hanging.
OFTEN = 2
#: Schedules whose last runs are compared in one query.
PAGE = 500
_BAD = (Status.FAILED, Status.LOST, Status.SKIPPED)


@dataclass(frozen=True, slots=True)
class Named:
    """The number of schedules, and the names of the first few."""

    count: int
    names: tuple[str, ...]

    @property
    def listed(self) -> str:
        return ", ".join(self.names) + (", …" if self.count > len(self.names) else "")


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Enabled schedules that fail or are broken, paused schedules, and runs that keep losing their worker."""

    failing: Named
    broken: Named
    paused: int
    restarted: int


class Unnamed(NamedTuple):
    """A queue, task or TASKS alias that rows name and no setting does; `kind` is `queue`, `task` or `backend`.

    Open `jobs` and requested `runs` are counted among the MOST_READ oldest of each status. `schedules`: enabled ones.
    """

    kind: str
    name: str
    jobs: int
    schedules: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Redis compared with the database; the counts are None if `foreign` has the text of a problem.

    `layout` is `ours`, `foreign` or `none` (the prefix is not in use yet). `stale_edits` should be in Redis by now.
    """

    layout: str
    foreign: str = ""
    differences: Differences | None = None
    stale_edits: int | None = None
    unnamed: tuple[Unnamed, ...] = ()

    def count_excess(self, redis: RedisView) -> int:
        """Return the differing entries less the leased ones, each of which may be between ledger and Redis."""
        differences = self.differences
        if differences is None or differences.unbuilt:
            return 0
        return max(0, differences.missing + differences.ghosts + differences.torn - redis.sums["leased"])


def _query_schedules() -> Any:
    return Schedule.objects.using(ledger.get_database())


def query_enabled(states: QuerySet[Any]) -> QuerySet[Any]:
    """Return the enabled schedules of these states. No join: it would start from all enabled schedules."""
    found: QuerySet[Any] = _query_schedules().filter(pk__in=states.values("pk")[: MOST_COUNTED + 1], enabled=True)
    return found


def count_states(most: int, names: int) -> StateCounts:
    """Count up to `most` of each kind, in one query, and read the first names of those that there are."""
    states = ScheduleState._base_manager.using(ledger.get_database())
    kinds = [
        query_enabled(states.filter(failing_streak__gt=0)),
        query_enabled(states.filter(condition=Condition.BROKEN)),
    ]
    others = _query_schedules().paused(), ledger.query_status(Status.RUNNING).filter(reclaims__gte=OFTEN)
    *counts, paused, restarted = ledger.count_up_to(most, *kinds, *others)
    failing, broken = (
        Named(count, tuple(rows.values_list("name", flat=True)[:names]) if count and names else ())
        for count, rows in zip(counts, kinds, strict=True)
    )
    return StateCounts(failing, broken, paused, restarted)


def count_open_runs() -> dict[str, int]:
    rows = [ledger.query_status(status).order_by("pk") for status in ledger.OPEN_STATUSES]
    return dict(zip(ledger.OPEN_STATUSES, ledger.count_up_to(MOST_COUNTED, *rows), strict=True))


def count_failed_jobs() -> Counter[str]:
    """Count failed, not cancelled jobs by queue, among the MOST_READ newest failures of each status."""
    rows = [ledger.query_status(status).order_by("-pk") for status in (Status.FAILED, Status.LOST)]
    failed = Counter[str]()
    names = ("queue", "origin", "reason")
    for (queue, origin, reason), count in ledger.count_values(MOST_READ, names, *rows).items():
        if origin == Origin.JOB and reason != "cancelled":
            failed[queue] += count
    return failed


def count_refused() -> Named:
    """Count the enabled schedules whose TASKS backend rejects their task: one check for each combination."""
    rows = _query_schedules().filter(enabled=True).exclude(backend="")
    count, refused = 0, Q()
    combinations = rows.order_by().values_list("task", "backend", "priority").annotate(count=Count("pk"))
    for path, backend, priority, number in combinations:
        task = registry.find_task(path)
        if task is not None and handover.find_refusal(task, backend, priority) is not None:
            count += number
            refused |= Q(task=path, backend=backend, priority=priority)
    found = rows.filter(refused).order_by("name").values_list("name", flat=True)[:NAMES_SHOWN] if count else ()
    return Named(count, tuple(found))


def read_used() -> dict[str, list[str]]:
    """Return the queues and tasks of schedules ("queue" and "task"), at most MOST_UNKNOWN of each."""
    used: dict[str, list[str]] = _query_schedules().read_used_names(MOST_UNKNOWN, "queue", "task")
    return used


def find_unknown_tasks(tasks: Iterable[str]) -> list[str]:
    return [path for path in tasks if registry.find_task(path) is None]


def count_unknown(tasks: Iterable[str]) -> Named:
    unknown = find_unknown_tasks(tasks)
    if not unknown:
        return Named(0, ())
    # As an expression, `enabled` cannot use its index, so the database uses that of the task.
    on = Case(When(enabled=True, then=Value(1)), default=Value(0))
    rows = _query_schedules().filter(task__in=unknown).alias(on=on).filter(on=1).order_by("task")
    found = list(rows.values_list("task", "name")[: MOST_UNKNOWN + 1])
    names = [f"{name} ({path})" for path, name in dict(reversed(found)).items()]
    return Named(len(found), tuple(sorted(names)[:NAMES_SHOWN]))


class Late(NamedTuple):
    """A schedule that has not succeeded in time, and the due point that should have."""

    pk: int
    name: str
    queue: str
    task: str
    due_at: datetime
    within: timedelta


def count_late() -> Named:
    found = find_late(MOST_UNKNOWN + 1)
    return Named(len(found), tuple(late.name for late in found[:NAMES_SHOWN]))


def find_late(most: int, among: Collection[int] | None = None) -> list[Late]:
    """Return up to `most` late schedules by primary key, all or those `among`. See Note [Late means no success]."""
    now, found = utcnow(), list[Late]()
    rows = _query_schedules().filter(expected_within__isnull=False).order_by("pk")
    rows = rows.filter(Q(state__next_due_at__lt=now) | Q(state__last_status__in=_BAD))
    rows = rows if among is None else rows.filter(pk__in=among)
    names = ("pk", "expected_within", "effective_from", "state__next_due_at", "enabled", "state__condition")
    # Instants are computed here, not by the database.
    candidates = [
        (pk, within, next_due is not None and since < next_due <= now - within)
        for pk, within, since, next_due, enabled, condition in rows.values_list(*names)
        if enabled and condition != Condition.BROKEN
    ]
    own = Run._base_manager.filter(schedule=OuterRef("pk"))
    successes = own.filter(status=Status.SUCCEEDED, due_at__gte=OuterRef("point"))
    points = own.filter(origin=Origin.DUE, due_at__gt=OuterRef("effective_from")).order_by("-due_at").values("due_at")
    for (within, is_undecided), each in group_by(candidates, lambda candidate: candidate[1:]).items():
        for first in range(0, len(each), PAGE):
            if len(found) >= most:
                break
            page = _query_schedules().filter(pk__in=[pk for pk, *_ in each[first : first + PAGE]])
            point = F("state__next_due_at") if is_undecided else Subquery(points.filter(due_at__lte=now - within)[:1])
            late = page.annotate(point=point).filter(point__isnull=False).exclude(Exists(successes))
            for pk, name, queue, task, due_at in late.values_list("pk", "name", "queue", "task", "point"):
                found.append(Late(pk, name, queue, task, due_at, within))
    paused = [row for row in ledger.load_controls() if row.is_paused(now)] if found else []
    return sorted(late for late in found if not any(row.is_about(late.queue, late.task) for row in paused))[:most]


def compare(broker: Broker, queues: Iterable[str], *, most: int = MOST_COMPARED) -> Comparison:
    """Compare by counts of at most `most`; `queues` are those of schedules. Raises BrokerError if Redis fails."""
    layout = broker.read_layout()
    try:
        sync.check_layout(broker, claim=False)
    except ForeignLayout as error:
        return Comparison("foreign", str(error))
    unnamed = find_unnamed(queues)
    differences = sync.count_differences(
        broker, most=most, unnamed=[each.name for each in unnamed if each.kind == "queue"]
    )
    return Comparison(
        "none" if layout is None else "ours",
        differences=differences,
        stale_edits=_count_stale_edits(broker, differences),
        unnamed=tuple(unnamed),
    )


def find_unnamed(used: Iterable[str]) -> list[Unnamed]:
    """Return what schedules (of these queues), runs and jobs name and the settings of this process do not.

    Only the oldest open rows are read. Rows younger than STALE may come from newer code or settings, and are left out.
    """
    rows = [ledger.query_status(status).order_by("pk") for status in ledger.OPEN_STATUSES]
    ordered, jobs = Counter[str](), {kind: Counter[str]() for kind in ("queue", "task", "backend")}
    names = ("origin", *jobs)
    for (origin, *found), count in ledger.count_values(MOST_READ, names, *rows, before=utcnow() - STALE).items():
        if origin in (Origin.MANUAL, Origin.BACKFILL):
            ordered[found[0]] += count
        elif origin == Origin.JOB:
            for kind, value in zip(jobs, found, strict=True):
                jobs[kind][value] += count
    unnamed = []
    for queue in sorted({*used, *ordered, *jobs["queue"]} - set(conf.get_config().queues)):
        enabled = ledger.count_up_to(MOST_COUNTED, _query_schedules().filter(queue=queue, enabled=True))[0]
        unnamed.append(Unnamed("queue", queue, jobs["queue"][queue], enabled, ordered[queue]))
    unknown = {
        "task": [task for task in jobs["task"] if registry.find_task(task) is None],
        "backend": jobs["backend"].keys() - handover.list_backends().keys() if jobs["backend"] else (),
    }
    return unnamed + [Unnamed(kind, name, jobs[kind][name]) for kind in unknown for name in sorted(unknown[kind])]


def _count_stale_edits(broker: Broker, differences: Differences) -> int:
    """Count old edits that Redis does not have. A leased member leaves its old shard only when its lease ends."""
    before = utcnow() - STALE
    old = Tombstone._base_manager.using(ledger.get_database()).filter(created_at__lt=before).order_by("pk")
    tombstones = list(old[:MOST_TOMBSTONES]) if differences.tombstones else []
    if not differences.unmirrored and not tombstones:
        return 0
    views = broker.read_views([(each.member, each.queue) for each in tombstones])
    leaving = [item[1] for each in tombstones if (item := chain.parse_member(each.member)) is not None]
    edits = _query_schedules().unmirrored().filter(updated_at__lt=before).exclude(pk__in=leaving).order_by("generation")
    return ledger.count_up_to(MOST_COUNTED, edits)[0] + sum(not view.leased for view in views)
