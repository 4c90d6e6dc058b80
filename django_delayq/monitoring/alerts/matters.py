"""What stands wrong now, each under a name by which it is known again.

Note [Kinds of alerts]
Of a schedule: it has failed FAILURES times in a row (`failing`), has not succeeded in time (`late`), names an unknown
task (`unknown_task`), or its next point cannot be computed (`parked`). Of a queue: it has failed jobs (`failed_jobs`).
All else are the problems of `status.judge`, by their words, of a queue or of everything. What `delayq_status` sums up
of schedules, `unknown_tasks` and `late`, is told of each schedule instead.

Note [Not many at once]
When a database that tasks need goes away, 100,000 schedules fail. Of each kind MOST schedules are told of at a time; of
the others one alert says that there are more. A schedule that was told of keeps its place until it has recovered.
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

#: So many schedules of each kind.
MOST = 100
#: So many states are looked at once.
PAGE = 500


class Matter(NamedTuple):
    """Something that stands: `kind` and `subject` are its name; `title` is what people call its subject."""

    kind: str
    subject: str
    title: str
    queue: str
    text: str


#: Of up to so many schedules, or of these only.
Find = Callable[[int, Collection[int] | None], list[Matter]]


def of_problems(problems: Collection[Problem]) -> Iterator[Matter]:
    """Return the problems that are no sums of schedules; one of each word and queue."""
    for problem in problems:
        if problem.code not in SUMS:
            yield Matter(problem.code, problem.queue, problem.queue, problem.queue, problem.message)


def of_failed_jobs() -> Iterator[Matter]:
    """Return the queues that have failed jobs."""
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
    """Return what is wrong with schedules; `known` are those that rows stand for, by kind. See Note [Not many at once].

    Raises:
        DatabaseError: The database does not answer.
    """
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
#: What `delayq_status` sums up of them.
SUMS = frozenset(("unknown_tasks", "late"))


def _states(states: QuerySet[Any], most: int, among: Collection[int] | None) -> list[Schedule]:
    """Return the first enabled schedules of these states, by pages of an index of theirs.

    A join would begin at the many that are enabled, and so would an order of them.
    """
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
