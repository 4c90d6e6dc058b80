"""Current conditions for alerts, each with a stable key.

Note [Kinds of alerts]
A schedule has failed FAILURES times in a row (`failing`), has not succeeded in time (`late`), names an unknown task
(`unknown_task`), or its next point cannot be computed (`parked`). A queue has failed jobs (`failed_jobs`). All other
kinds are codes of problems of `status.judge`, for a queue or for everything. Problems that sum up schedules,
`unknown_tasks` and `late`, are replaced by an alert for each schedule.

Note [At most MOST alerts of a kind]
If a database that tasks need is down, 100,000 schedules may fail. Each kind has alerts for at most MOST schedules at a
time; one more alert says that there are others. A schedule with an alert keeps it until it has recovered.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf, ledger
from ...models import Condition, Schedule, ScheduleState
from ..status import Problem
from ..status.database_side import find_unknown_tasks
from ..status.late import find_late
from ..status.snapshot import MOST_READ, MOST_UNKNOWN

#: Maximum schedules with an alert of each kind.
MOST = 100
#: Number of states in one query.
PAGE = 500


class Matter(NamedTuple):
    """A condition: `kind` and `subject` are its key, `title` is the name of its subject for users."""

    kind: str
    subject: str
    title: str
    queue: str
    text: str


#: Finds up to a number of schedules, all or those with these primary keys.
Find = Callable[[int, Collection[int] | None], list[Matter]]


def of_problems(problems: Collection[Problem]) -> Iterator[Matter]:
    """Yield problems other than sums of schedules, by code and queue."""
    for problem in problems:
        if problem.code not in SUMS:
            yield Matter(problem.code, problem.queue, problem.queue, problem.queue, problem.message)


def of_failed_jobs() -> Iterator[Matter]:
    """Yield the queues that have failed jobs."""
    for queue, count in sorted(ledger.count_failed_jobs(MOST_READ).items()):
        text = ngettext(
            "Queue %(queue)s has %(count)d failed job. Look at it in the admin, among the failures, and retry or "
            "delete it.",
            "Queue %(queue)s has %(count)d failed jobs. Look at them in the admin, among the failures, and retry or "
            "delete them.",
            count,
        )
        yield Matter("failed_jobs", queue, queue, queue, text % {"queue": queue, "count": count})


def of_schedules(known: dict[str, list[int]]) -> Iterator[Matter]:
    """Yield conditions of schedules; `known` are those with an open alert. See Note [At most MOST alerts of a kind]."""
    for kind, find in FINDERS.items():
        told = known.get(kind, [])
        yield from find(len(told), told) if told else ()
        fresh = [each for each in find(MOST + 1, None) if int(each.subject) not in told]
        room = max(0, MOST - len(told))
        yield from fresh[:room]
        if len(fresh) > room:
            text = _(
                "More than %(count)d schedules have this problem (%(kind)s); the others are not told of one by one."
            )
            yield Matter(kind, "", "", "", text % {"count": MOST, "kind": kind})


def _failing(most: int, among: Collection[int] | None) -> list[Matter]:
    alerts = conf.get_config().alerts
    least = 1 if alerts is None else alerts.failures
    rows = _states(ScheduleState.objects.filter(failing_streak__gte=least), most, among)
    return [_matter("failing", row, _failed(row.state.failing_streak), count=row.state.failing_streak) for row in rows]


def _failed(count: int) -> str:
    return ngettext(
        "%(name)s (%(task)s) has failed.", "%(name)s (%(task)s) has failed %(count)d times in a row.", count
    )


def _parked(most: int, among: Collection[int] | None) -> list[Matter]:
    text = _("%(name)s is parked: its next due point cannot be computed. %(reason)s")
    rows = _states(ScheduleState.objects.filter(condition=Condition.PARKED), most, among)
    return [_matter("parked", row, text, reason=row.state.condition_reason) for row in rows]


def _unknown(most: int, among: Collection[int] | None) -> list[Matter]:
    schedules = Schedule.objects.using(ledger.database())
    rows = schedules.filter(task__in=find_unknown_tasks())
    rows = (rows if among is None else rows.filter(pk__in=among)).order_by("task")[:MOST_UNKNOWN]
    text = _("%(name)s names the task %(task)s, which no installed app has, and none of its points runs.")
    return [_matter("unknown_task", row, text) for row in rows if row.enabled][:most]


def _late(most: int, among: Collection[int] | None) -> list[Matter]:
    text = _("%(name)s was due %(due)s and has not succeeded within %(within)s, nor since.")
    return [
        Matter(
            "late", str(late.pk), late.name, late.queue,
            text % {"name": late.name, "due": f"{late.due_at:%Y-%m-%d %H:%M:%S} UTC", "within": late.within},
        )
        for late in find_late(most, among)
    ]  # fmt: skip


FINDERS: dict[str, Find] = {"failing": _failing, "late": _late, "unknown_task": _unknown, "parked": _parked}
#: Problems of `delayq_status` that sum up schedules.
SUMS = frozenset(("unknown_tasks", "late"))


def _states(states: QuerySet[Any], most: int, among: Collection[int] | None) -> list[Schedule]:
    """Return the first enabled schedules with these states. A join would start from all enabled schedules."""
    using, found, after = ledger.database(), list[Schedule](), 0
    states = states.using(using) if among is None else states.using(using).filter(pk__in=among)
    while len(found) < most:
        page = list(states.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:PAGE])
        rows = Schedule.objects.using(using).filter(pk__in=page, enabled=True).select_related("state")
        found += sorted(rows, key=lambda row: row.pk)
        if len(page) < PAGE:
            break
        after = page[-1]
    return found[:most]


def _matter(kind: str, row: Schedule, text: str, **more: Any) -> Matter:
    values = {"name": row.name, "task": row.task, **more}
    return Matter(kind, str(row.pk), row.name, row.queue, text % values)
