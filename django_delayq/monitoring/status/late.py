"""Finds schedules that have not succeeded by the time they are expected to.

Note [Expected within]
`Schedule.expected_within` is the maximum time between a due point and a success. A schedule is late if that time has
passed since a due point of its current definition, and no run due at that point or later has succeeded, including
manual runs and backfills. Disabled and parked schedules, and those whose queue or task is paused, are not late. An edit
of the recurrence starts anew, because points of the former definition are not run any more. A run that was handed over
has succeeded once the other backend accepted it.

Candidates come from the states: the next undecided point has passed, or the last decided point did not succeed. Only
their runs are read. Up to FEW schedules with an expectation are found by its index; above that, states are read by
theirs, MOST_LOOKED_AT of each kind. In normal operation these are few, regardless of the number of schedules.
"""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery

from ... import ledger
from ...index.keys import grouped
from ...models import Condition, Control, Origin, Run, Schedule, ScheduleState, Status
from ...recurrence.point import utcnow
from .snapshot import Named

FEW, MOST_LOOKED_AT = 10_000, 2_000
#: Number of candidates in one query.
PAGE = 500
NAMES_SHOWN = 5
BAD = (Status.FAILED, Status.LOST, Status.SKIPPED)


class Candidate(NamedTuple):
    """A schedule that may be late; a point due up to `until` should have succeeded by now."""

    pk: int
    within: timedelta
    until: datetime
    is_undecided: bool


class Late(NamedTuple):
    """A schedule that has not succeeded in time, and the due point that should have."""

    pk: int
    name: str
    queue: str
    task: str
    due_at: datetime
    within: timedelta


def find_late(most: int, among: Collection[int] | None = None) -> list[Late]:
    """Return up to `most` late schedules by primary key, all or those `among`. See Note [Expected within]."""
    now, found = utcnow(), list[Late]()
    kinds = grouped(_candidates(now, among), lambda each: (each.until, each.is_undecided))
    for (until, is_undecided), candidates in kinds.items():
        for first in range(0, len(candidates), PAGE):
            if len(found) >= most:
                break
            rows = _rows([each.pk for each in candidates[first : first + PAGE]])
            late_rows = _without_success(_undecided(rows) if is_undecided else _decided(rows, until))
            for pk, name, queue, task, due_at in late_rows.values_list("pk", "name", "queue", "task", "point"):
                found.append(Late(pk, name, queue, task, due_at, now - until))
    held = [row for row in ledger.held_back() if row.is_paused(now)] if found else []
    return sorted(late for late in found if not _is_held(late, held))[:most]


def name_late(most: int) -> Named:
    """Return the number of late schedules, counted up to `most` + 1, and the first names."""
    found = find_late(most + 1)
    return Named(len(found), tuple(late.name for late in found[:NAMES_SHOWN]))


def _candidates(now: datetime, among: Collection[int] | None) -> Iterator[Candidate]:
    """Yield each candidate once. Instants are computed here, not by the database."""
    names = ("pk", "expected_within", "enabled", "effective_from", "state__next_due_at", "state__condition")
    seen = set[int]()
    for chosen in _chosen(now, among):
        for pk, within, enabled, since, next_due, condition in chosen.values_list(*names):
            if pk in seen or not enabled or condition == Condition.PARKED:
                continue
            seen.add(pk)
            until = now - within
            yield Candidate(pk, within, until, next_due is not None and since < next_due <= until)


def _chosen(now: datetime, among: Collection[int] | None) -> list[QuerySet[Any]]:
    using = ledger.database()
    rows = Schedule.objects.using(using).filter(expected_within__isnull=False).order_by("pk")
    if among is not None:
        return [rows.filter(pk__in=among)]
    number = ledger.count_up_to(FEW, rows)[0]
    if number <= FEW:
        return [] if not number else [rows.filter(Q(state__next_due_at__lt=now) | Q(state__last_status__in=BAD))]
    states = ScheduleState.objects.using(using)
    asked = [
        states.filter(next_due_at__lt=now).order_by("next_due_at"),
        states.exclude(last_status=Status.SUCCEEDED).filter(last_status__in=BAD).order_by("last_status", "pk"),
    ]
    keys = [list(few.values_list("pk", flat=True)[:MOST_LOOKED_AT]) for few in asked]
    return [rows.filter(pk__in=some[at : at + PAGE]) for some in keys for at in range(0, len(some), PAGE)]


def _rows(pks: Collection[int]) -> QuerySet[Any]:
    return Schedule.objects.using(ledger.database()).filter(pk__in=pks)


def _undecided(rows: QuerySet[Any]) -> QuerySet[Any]:
    found: QuerySet[Any] = rows.annotate(point=F("state__next_due_at"))
    return found


def _decided(rows: QuerySet[Any], until: datetime) -> QuerySet[Any]:
    """Annotate each schedule with its newest point in the ledger due by `until`; leave out those without."""
    own = Run._base_manager.filter(schedule=OuterRef("pk"), origin=Origin.DUE, due_at__lte=until)
    newest = own.filter(due_at__gt=OuterRef("effective_from")).order_by("-due_at")
    found: QuerySet[Any] = rows.annotate(point=Subquery(newest.values("due_at")[:1])).filter(point__isnull=False)
    return found


def _without_success(rows: QuerySet[Any]) -> QuerySet[Any]:
    good = Run._base_manager.filter(schedule=OuterRef("pk"), status=Status.SUCCEEDED, due_at__gte=OuterRef("point"))
    return rows.filter(~Exists(good))


def _is_held(late: Late, held: Collection[Control]) -> bool:
    return any(row.concerns(late.queue, late.task) for row in held)
