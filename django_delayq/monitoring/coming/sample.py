"""The schedules that are looked at: all that are enabled and active, or a sample of them where they are many.

Note [Sample]
Primary keys are drawn evenly between the lowest and the highest one, and looked up; those that nobody has, and those
of schedules that are not enabled, are left out. So each enabled schedule is as likely as any other to be found,
whatever gaps there are, no table is read through, and the share of keys that hit says how many schedules there are.
The lot is the same within an hour, so that two looks at a page show the same numbers.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import NamedTuple

from django.db.models import Max, Min

from ... import ledger
from ...exceptions import InvalidRecurrence
from ...ledger.chain import state_of
from ...ledger.rows import AnySchedule, ScheduleRow
from ...models import Condition, Schedule, ScheduleState
from ...recurrence.preview import preview

#: So many enabled schedules are looked at, all of them; of more, about so many are drawn.
MOST_READ = 2_000
#: So many keys are drawn at first, and at most where few of them hit.
DRAWN_FIRST, DRAWN_AT_MOST = 2_500, 20_000


def left(schedule: AnySchedule) -> int | None:
    """Return how many due points a schedule may still execute; None for any number."""
    return None if schedule.max_runs is None else max(0, schedule.max_runs - state_of(schedule).run_count)


def goes_on(schedule: AnySchedule) -> bool:
    """Say whether a schedule may run: enabled, and neither exhausted nor parked."""
    ended = state_of(schedule).condition in (Condition.EXHAUSTED, Condition.PARKED)
    return schedule.enabled and not ended and left(schedule) != 0


class Sample(NamedTuple):
    """Schedules that go on, each standing for `weight` of them; `total` is how many there are, if need be about."""

    rows: Sequence[AnySchedule]
    weight: float
    total: int

    @property
    def is_estimate(self) -> bool:
        """Say whether others were left out."""
        return self.weight != 1


def read(now: datetime) -> Sample:
    """Return all schedules that go on, or some of them. See Note [Sample]. Asks the database four times at most."""
    found = Schedule.objects.using(ledger.database()).filter(enabled=True).order_by("name")
    pks = list(found.values_list("pk", flat=True)[: MOST_READ + 1])
    if len(pks) > MOST_READ:
        return _draw(now)
    rows = _load(pks)
    return Sample(rows, 1, len(rows))


def next_runs(now: datetime, most: int) -> list[tuple[datetime, ScheduleRow]]:
    """Return the next due points, the earliest first, each with its schedule."""
    states = ScheduleState.objects.using(ledger.database()).filter(next_due_at__gte=now, schedule__enabled=True)
    found = []
    for row in _load(states.order_by("next_due_at").values_list("pk", flat=True)[:most]):
        with suppress(InvalidRecurrence, ValueError):  # it will be parked
            found += [(point.due_at, row) for point in preview(row, most, now) if point.runs]
    return sorted(found, key=lambda each: (each[0], each[1].name))[:most]


def _draw(now: datetime) -> Sample:
    found = Schedule.objects.using(ledger.database()).order_by().aggregate(low=Min("pk"), high=Max("pk"))
    every, lot = range(found["low"], found["high"] + 1), Random(f"{now:%Y-%m-%d %H}")  # noqa: S311 - no secret
    drawn = set(lot.sample(every, min(DRAWN_FIRST, len(every))))
    rows = _load(drawn)
    if len(rows) < MOST_READ // 2:
        wanted = min(DRAWN_AT_MOST, len(every), len(drawn) * MOST_READ // max(1, len(rows)))
        further = set(lot.sample(every, wanted)) - drawn
        rows += _load(further)
        drawn |= further
    weight = len(every) / len(drawn)
    return Sample(rows, weight, round(len(rows) * weight))


def _load(pks: Iterable[int]) -> list[ScheduleRow]:
    """Return those of these schedules that go on."""
    return [row for row in ledger.load_schedules(pks).values() if goes_on(row)]
