"""Reads the database's side of a snapshot and compares it with Redis, by a few bounded counts."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import connections
from django.db.models import Case, Count, QuerySet, Value, When

from ... import conf, ledger, sync
from ...calls import handover, registry
from ...index import Broker
from ...ledger import chain
from ...models import Condition, Origin, Schedule, ScheduleState, Tombstone
from ...recurrence.point import utcnow
from ...sync import pruning
from ...sync.layout import ForeignLayout
from ...sync.sweep import MOST_COMPARED
from .snapshot import MOST_COUNTED, MOST_READ, MOST_UNKNOWN, Comparison, DatabaseView, Named, Unnamed

#: Minimum age of an unmirrored edit that is reported; workers mirror within about 2 s.
STALE = timedelta(seconds=30)
#: Maximum number of the oldest deletions and moves that are checked in Redis.
MOST_TOMBSTONES = 200
NAMES_SHOWN = 5


def reach_database() -> DatabaseView:
    """Return a view without counts, once the database answers.

    Raises:
        MissingTables: Migrations have not been run.
    """
    ledger.check_tables()
    using = ledger.database()
    return DatabaseView(alias=using, vendor=connections[using].vendor)


def count_all(view: DatabaseView) -> None:
    """Fill in the counts one by one; a count that is not reached in time stays None."""
    states = ScheduleState._base_manager.using(ledger.database())
    view.failing = _enabled(states.filter(failing_streak__gt=0))
    view.open_runs = _open_runs()
    view.parked = _enabled(states.filter(condition=Condition.PARKED))
    view.refused = _refused()
    view.failed_jobs = ledger.count_failed_jobs(MOST_READ).total()


def _enabled(states: QuerySet[Any]) -> Named:
    """Count the enabled schedules of these states. No join: it would start from all enabled schedules."""
    found = states.values("pk")[: MOST_COUNTED + 1]
    rows = Schedule._base_manager.using(ledger.database()).filter(pk__in=found, enabled=True)
    names = list(rows.values_list("name", flat=True)[: NAMES_SHOWN + 1])
    count = ledger.count_up_to(MOST_COUNTED, rows)[0] if len(names) > NAMES_SHOWN else len(names)
    return Named(count, tuple(names[:NAMES_SHOWN]))


def _open_runs() -> dict[str, int]:
    rows = [ledger.with_status(status).order_by("pk") for status in ledger.OPEN_STATUSES]
    return dict(zip(ledger.OPEN_STATUSES, ledger.count_up_to(MOST_COUNTED, *rows), strict=True))


def _refused() -> Named:
    """Count the enabled schedules whose TASKS backend rejects their task: one check for each combination."""
    rows = Schedule._base_manager.using(ledger.database()).filter(enabled=True).exclude(backend="")
    count, names = 0, list[str]()
    combinations = rows.order_by().values_list("task", "backend", "priority").annotate(count=Count("pk"))
    for path, backend, priority, number in combinations:
        task = registry.find_task(path)
        if task is None or handover.find_refusal(task, backend, priority) is None:
            continue
        count += number
        if len(names) < NAMES_SHOWN:
            some = rows.filter(task=path, backend=backend, priority=priority).order_by("name")
            names += some.values_list("name", flat=True)[: NAMES_SHOWN - len(names)]
    return Named(count, tuple(names))


def find_unknown_tasks(used: Sequence[str] | None = None) -> list[str]:
    """Return the tasks of schedules that no installed app has, of at most MOST_UNKNOWN.

    `used` are the tasks of schedules, if known; without it they are read by steps through their index.
    """
    if used is None:
        used = Schedule.objects.using(ledger.database()).used(MOST_UNKNOWN, "task")["task"]
    return [path for path in used if registry.find_task(path) is None]


def find_unknown(used: Sequence[str] | None = None) -> Named:
    """Return the enabled schedules whose task no installed app has; `used` as in `find_unknown_tasks`."""
    unknown = find_unknown_tasks(used)
    if not unknown:
        return Named(0, ())
    schedules = Schedule.objects.using(ledger.database())
    # As an expression, `enabled` cannot use its index, so the database uses that of the task.
    on = Case(When(enabled=True, then=Value(1)), default=Value(0))
    rows = schedules.filter(task__in=unknown).alias(on=on).filter(on=1).order_by("task")
    found = list(rows.values_list("task", "name")[: MOST_UNKNOWN + 1])
    names = [f"{name} ({path})" for path, name in dict(reversed(found)).items()]
    return Named(len(found), tuple(sorted(names)[:NAMES_SHOWN]))


def compare(broker: Broker, *, most: int = MOST_COMPARED, queues: Sequence[str] | None = None) -> Comparison:
    """Compare Redis with the database by counts of at most `most`; only moved and deleted entries are read one by one.

    `queues` are the queues of schedules, if known.

    Raises:
        BrokerError: Redis does not answer, or answers with an error.
    """
    layout = broker.layout()
    try:
        sync.check_layout(broker, claim=False)
    except ForeignLayout as error:
        return Comparison("foreign", str(error))
    unnamed = find_unnamed(queues)
    drift = sync.count_differences(broker, most=most, unnamed=[each.name for each in unnamed if each.kind == "queue"])
    return Comparison(
        "none" if layout is None else "ours",
        drift=drift,
        stale_edits=_stale_edits(broker, drift),
        pruned=pruning.read_last(broker),
        unnamed=tuple(unnamed),
    )


def find_unnamed(used: Sequence[str] | None = None) -> list[Unnamed]:
    """Return what schedules, runs and jobs name and the settings of this process do not.

    `used` are the queues of schedules, if known. Only the oldest open jobs and ordered runs are read, because rows that
    no worker runs are among them. Rows younger than STALE may come from newer code or settings, and are left out.
    """
    schedules = Schedule.objects.using(ledger.database())
    if used is None:
        used = schedules.used(MOST_UNKNOWN, "queue")["queue"]
    names = ("origin", "queue", "task", "backend")
    rows = [ledger.with_status(status).order_by("pk") for status in ledger.OPEN_STATUSES]
    ordered, jobs = Counter[str](), {kind: Counter[str]() for kind in names[1:]}
    for (origin, *found), count in ledger.count_values(MOST_READ, names, *rows, before=utcnow() - STALE).items():
        if origin in (Origin.MANUAL, Origin.BACKFILL):
            ordered[found[0]] += count
        elif origin == Origin.JOB:
            for kind, value in zip(jobs, found, strict=True):
                jobs[kind][value] += count
    queues = {*used, *ordered, *jobs["queue"]} - set(conf.get_config().queues)
    unnamed = []
    for queue in sorted(queues):
        enabled = ledger.count_up_to(MOST_COUNTED, schedules.filter(queue=queue, enabled=True))[0]
        unnamed.append(Unnamed("queue", queue, jobs["queue"][queue], enabled, ordered[queue]))
    unknown = {task for task in jobs["task"] if registry.find_task(task) is None}
    unnamed += [Unnamed("task", task, jobs["task"][task]) for task in sorted(unknown)]
    aliases = jobs["backend"].keys() - handover.backends().keys()
    return unnamed + [Unnamed("backend", alias, jobs["backend"][alias]) for alias in sorted(aliases)]


def _stale_edits(broker: Broker, drift: sync.Differences) -> int:
    """Count old edits that Redis does not have. A leased member leaves its old shard only when its lease ends."""
    using, before = ledger.database(), utcnow() - STALE
    old = Tombstone._base_manager.using(using).filter(created_at__lt=before).order_by("pk")
    tombstones = list(old[:MOST_TOMBSTONES]) if drift.tombstones else []
    if not drift.unmirrored and not tombstones:
        return 0
    views = broker.views([(each.member, each.queue) for each in tombstones])
    leaving = [item[1] for each in tombstones if (item := chain.parse_member(each.member)) is not None]
    edits = (
        Schedule.objects.using(using)
        .unmirrored()
        .filter(updated_at__lt=before)
        .exclude(pk__in=leaving)
        .order_by("generation")
    )
    return ledger.count_up_to(MOST_COUNTED, edits)[0] + sum(not view.leased for view in views)
