"""The problems that are alerts: those of the snapshot, and those of single schedules.

Note [Kinds of alerts]
A schedule has failed FAILURES times in a row (`failing`), has not succeeded in time (`late`), names an unknown task
(`unknown_task`), or its next point cannot be computed (`parked`). A queue has failed jobs (`failed_jobs`). All other
kinds are codes of what is wrong by `problems.judge`, for a queue or for everything. Problems that sum up schedules,
`unknown_tasks` and `late`, are replaced by an alert for each schedule.

Note [At most MOST alerts of a kind]
If a database that tasks need is down, 100,000 schedules may fail. Each kind has alerts for at most MOST schedules at a
time; one more alert says that there are others. A schedule with an alert keeps it until it has recovered.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf, ledger
from ...models import Condition, Schedule, ScheduleState
from ..database_side import MOST_UNKNOWN, enabled_with, find_late, find_unknown_tasks
from ..problems import Problem
from ..snapshot import Snapshot

#: Maximum schedules with an alert of each kind.
MOST = 100
#: Problems of the snapshot that sum up schedules.
SUMS = frozenset(("unknown_tasks", "late"))


def find_conditions(snapshot: Snapshot, known: Mapping[str, list[int]]) -> Iterator[Problem]:
    """Yield what is to have an alert; `known` are the schedules with an open alert, by kind."""
    yield from (problem for problem in snapshot.problems if problem.is_wrong and problem.code not in SUMS)
    yield from _of_failed_jobs(snapshot.failed_jobs or {})
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
            yield Problem(kind, text % {"count": MOST, "kind": kind})


def _of_failed_jobs(failed: Mapping[str, int]) -> Iterator[Problem]:
    for queue, count in sorted(failed.items()):
        text = ngettext(
            "Queue %(queue)s has %(count)d failed job. Look at it in the admin, among the failures, and retry or "
            "delete it.",
            "Queue %(queue)s has %(count)d failed jobs. Look at them in the admin, among the failures, and retry or "
            "delete them.",
            count,
        )
        yield Problem("failed_jobs", text % {"queue": queue, "count": count}, queue=queue)


def _find_failing(most: int, among: Collection[int] | None) -> list[Problem]:
    alerts = conf.get_config().alerts
    rows = _find(most, among, failing_streak__gte=1 if alerts is None else alerts.failures)
    return [_problem("failing", row, _failed(row.state.failing_streak), count=row.state.failing_streak) for row in rows]


def _failed(count: int) -> str:
    return ngettext(
        "%(name)s (%(task)s) has failed.", "%(name)s (%(task)s) has failed %(count)d times in a row.", count
    )


def _find_parked(most: int, among: Collection[int] | None) -> list[Problem]:
    text = _("%(name)s is parked: its next due point cannot be computed. %(reason)s")
    rows = _find(most, among, condition=Condition.PARKED)
    return [_problem("parked", row, text, reason=row.state.condition_reason) for row in rows]


def _find_unknown(most: int, among: Collection[int] | None) -> list[Problem]:
    rows: QuerySet[Schedule] = Schedule.objects.using(ledger.database()).filter(task__in=find_unknown_tasks())
    rows = (rows if among is None else rows.filter(pk__in=among)).order_by("task")[:MOST_UNKNOWN]
    text = _("%(name)s names the task %(task)s, which no installed app has, and none of its points runs.")
    return [_problem("unknown_task", row, text) for row in rows if row.enabled][:most]


def _find_late(most: int, among: Collection[int] | None) -> list[Problem]:
    text = _("%(name)s was due %(due)s and has not succeeded within %(within)s, nor since.")
    return [
        _problem("late", row, text, due=f"{row.due_at:%Y-%m-%d %H:%M:%S} UTC", within=row.within)
        for row in find_late(most, among)
    ]


#: By kind: finds up to a number of schedules, all or those with these primary keys.
FINDERS: dict[str, Callable[[int, Collection[int] | None], list[Problem]]] = {
    "failing": _find_failing, "late": _find_late, "unknown_task": _find_unknown, "parked": _find_parked,
}  # fmt: skip


def _find(most: int, among: Collection[int] | None, **state: Any) -> list[Schedule]:
    states = ScheduleState.objects.using(ledger.database()).filter(**state)
    states = states if among is None else states.filter(pk__in=among)
    return list(enabled_with(states).select_related("state").order_by("pk")[:most])


def _problem(kind: str, row: Any, text: str, **more: Any) -> Problem:
    values = {"name": row.name, "task": row.task, **more}
    return Problem(kind, text % values, queue=row.queue, subject=str(row.pk), name=row.name)
