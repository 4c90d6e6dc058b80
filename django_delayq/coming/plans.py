"""The schedules that are looked at: all that are enabled and active, or a sample of them where they are many.

Note [Sample]
Primary keys are drawn evenly between the lowest and the highest one, and looked up; those that nobody has, and those
of schedules that are not enabled, are left out. So each enabled schedule is as likely as any other to be found,
whatever gaps there are, no table is read through, and the share of keys that hit says how many schedules there are.
The lot is the same within an hour, so that two looks at a page show the same numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple, Self

from django.db.models import Max, Min

from ..ledger.bulk import database, reader
from ..models import Condition, Schedule, ScheduleState
from ..recurring import Recurring

#: So many enabled schedules are looked at, all of them; of more, about so many are drawn.
MOST_READ = 2_000
#: So many keys are drawn at first, and at most where few of them hit.
DRAWN_FIRST, DRAWN_AT_MOST = 2_500, 20_000
#: The columns of a plan that are those of the state.
_OF_STATE = ("last_due_at", "last_finished_at", "run_count", "condition")


@dataclass(slots=True, eq=False)
class Plan(Recurring):
    """What of a schedule, and of its state, says when it falls due and when its runs start."""

    pk: int
    name: str
    queue: str
    kind: str
    cron: str
    every: timedelta | None
    every_from: str
    at: datetime | None
    timezone: str
    dst_gap: str
    dst_overlap: str
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    jitter: timedelta
    enabled: bool
    created_at: datetime
    effective_from: datetime
    last_due_at: datetime | None = None
    last_finished_at: datetime | None = None
    run_count: int | None = 0
    condition: str | None = Condition.ACTIVE.value

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """Return the plan of an instance as its attributes say, saved or not."""
        state = getattr(schedule, "state", None)
        values = {name: getattr(schedule, name) for name in _NAMES if name not in _OF_STATE}
        return cls(**values, **({} if state is None else {name: getattr(state, name) for name in _OF_STATE}))

    @property
    def goes_on(self) -> bool:
        """Say whether it may run: enabled, and neither exhausted nor parked."""
        return self.enabled and self.condition not in (Condition.EXHAUSTED, Condition.PARKED) and self.left != 0

    @property
    def left(self) -> int | None:
        """How many due points it may still execute; None for any number."""
        return None if self.max_runs is None else max(0, self.max_runs - (self.run_count or 0))


_NAMES = tuple(field.name for field in fields(Plan))
_COLUMNS = tuple(f"state__{name}" if name in _OF_STATE else name for name in _NAMES)


class Sample(NamedTuple):
    """Schedules that go on, each standing for `weight` of them; `total` is how many there are, if need be about."""

    plans: list[Plan]
    weight: float
    total: int

    @property
    def is_estimate(self) -> bool:
        """Say whether others were left out."""
        return self.weight != 1


def read(now: datetime) -> Sample:
    """Return all schedules that go on, or some of them. See Note [Sample]. Asks the database three times at most."""
    rows = Schedule.objects.using(database()).filter(enabled=True).order_by("name")
    pks = list(rows.values_list("pk", flat=True)[: MOST_READ + 1])
    if len(pks) > MOST_READ:
        return _draw(now)
    plans = _plans(pks)
    return Sample(plans, 1, len(plans))


def read_due(first: datetime, end: datetime, most: int) -> list[Plan]:
    """Return up to so many schedules that go on whose next due point is in `first <= point < end`, by an index."""
    states = ScheduleState.objects.using(database()).filter(next_due_at__gte=first, next_due_at__lt=end)
    return _plans(states.order_by("next_due_at").values_list("pk", flat=True)[:most])


def _draw(now: datetime) -> Sample:
    found = Schedule.objects.using(database()).order_by().aggregate(low=Min("pk"), high=Max("pk"))
    every, lot = range(found["low"], found["high"] + 1), Random(f"{now:%Y-%m-%d %H}")  # noqa: S311 - no secret
    drawn = set(lot.sample(every, min(DRAWN_FIRST, len(every))))
    plans = _plans(drawn)
    if len(plans) < MOST_READ // 2:
        wanted = min(DRAWN_AT_MOST, len(every), len(drawn) * MOST_READ // max(1, len(plans)))
        further = set(lot.sample(every, wanted)) - drawn
        plans += _plans(further)
        drawn |= further
    weight = len(every) / len(drawn)
    return Sample(plans, weight, round(len(plans) * weight))


def _plans(pks: Iterable[int]) -> list[Plan]:
    """Return the plans of those of these schedules that go on."""
    rows = reader(Schedule, "id", _COLUMNS, database()).read(list(pks))
    return [plan for plan in (Plan(*row) for row in rows) if plan.goes_on]
