"""Which schedules have not succeeded by the time that they are expected to.

Note [Expected within]
`Schedule.expected_within` says how long after a due point a success is expected. A schedule is late where so long has
passed since a due point of its present definition, and neither that point has succeeded nor anything of the schedule
that was due since: a later point, a run now, a backfill. So one success ends it, also that of a point that came late.
What is switched off, parked, or paused by its queue or task is not late; an edit of when it runs begins anew, since
what the former definition left is not run any more. What was handed over has succeeded when it was accepted.

Asked are the states: of those whose next undecided point has passed, and whose last decided point did not succeed.
Where all is well these are few, however many schedules there are. Only for them the ledger is asked, by its index.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery

from .. import ledger
from ..fields import utcnow
from ..models import Condition, Control, Origin, Run, Schedule, ScheduleState, Status
from .snapshot import Named

#: So many states of either kind are looked at, those that have waited longest first.
MOST_LOOKED_AT = 10_000
NAMES_SHOWN = 5


class Late(NamedTuple):
    """A schedule that has not succeeded in time, and the due point that was to."""

    pk: int
    name: str
    queue: str
    task: str
    due_at: datetime
    within: timedelta


def find_late(most: int, among: Collection[int] | None = None) -> list[Late]:
    """Return up to so many late schedules, by key; `among`: only of these. See Note [Expected within].

    Raises:
        DatabaseError: The database does not answer.
    """
    now, found = utcnow(), list[Late]()
    held = [row for row in ledger.held_back() if row.is_paused(now)]
    for within, pks in sorted(_candidates(now, among).items()):
        rows = _rows(pks)
        for late in (_undecided(rows, now - within), _decided(rows, now - within)):
            names = ("pk", "name", "queue", "task", "point")
            chosen = late.order_by("pk").values_list(*names)[:most]
            found += [Late(pk, name, queue, task, due_at, within) for pk, name, queue, task, due_at in chosen]
    by_key = {late.pk: late for late in reversed(found) if not _is_held(late, held)}
    return sorted(by_key.values())[:most]


def name_late(most: int) -> Named:
    """Return how many schedules are late, counted so far, and the names of the first."""
    found = find_late(most + 1)
    return Named(len(found), tuple(late.name for late in found[:NAMES_SHOWN]))


def _candidates(now: datetime, among: Collection[int] | None) -> dict[timedelta, list[int]]:
    """Return what may be late, by how long it has: no query for each, and no arithmetic of the database's."""
    using = ledger.database()
    states: QuerySet[Any] = ScheduleState.objects.using(using)
    bad = [Status.FAILED, Status.LOST, Status.SKIPPED]
    asked = [
        states.filter(next_due_at__lt=now).order_by("next_due_at"),
        states.exclude(last_status=Status.SUCCEEDED).filter(last_status__in=bad).order_by("last_status", "pk"),
    ]
    found: dict[timedelta, list[int]] = {}
    rows = Schedule.objects.using(using).filter(enabled=True, expected_within__isnull=False)
    for few in asked:
        few = few if among is None else few.filter(pk__in=among)
        # No join: it would begin at the many that are enabled.
        chosen = rows.filter(pk__in=few.values("pk")[:MOST_LOOKED_AT])
        for pk, within in chosen.values_list("pk", "expected_within"):
            found.setdefault(within or timedelta(0), []).append(pk)
    return found


def _rows(pks: Collection[int]) -> QuerySet[Any]:
    rows = Schedule.objects.using(ledger.database()).filter(pk__in=pks, enabled=True)
    return rows.exclude(state__condition=Condition.PARKED)


def _undecided(rows: QuerySet[Any], until: datetime) -> QuerySet[Any]:
    """Return those whose next undecided point was due so long ago."""
    late = rows.filter(Q(state__next_due_at__lte=until) & Q(state__next_due_at__gt=F("effective_from")))
    return _without_success(late.annotate(point=F("state__next_due_at")))


def _decided(rows: QuerySet[Any], until: datetime) -> QuerySet[Any]:
    """Return those whose newest point up to then is in the ledger, and did not succeed."""
    own = Run._base_manager.filter(schedule=OuterRef("pk"), origin=Origin.DUE, due_at__lte=until)
    newest = own.filter(due_at__gt=OuterRef("effective_from")).order_by("-due_at")
    late = rows.annotate(point=Subquery(newest.values("due_at")[:1])).filter(point__isnull=False)
    return _without_success(late)


def _without_success(rows: QuerySet[Any]) -> QuerySet[Any]:
    good = Run._base_manager.filter(schedule=OuterRef("pk"), status=Status.SUCCEEDED, due_at__gte=OuterRef("point"))
    return rows.filter(~Exists(good))


def _is_held(late: Late, held: Collection[Control]) -> bool:
    return any(row.concerns(late.queue, late.task) for row in held)
