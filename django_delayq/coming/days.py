"""One schedule's days: what became of its past points, and how many are planned. Days are those of its own zone."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from ..chain import state_of
from ..rows import AnySchedule
from ..timing.point import MICROSECOND
from .groups import Steps, per_step
from .sample import goes_on, left

#: So many days before today are shown, and so many after it.
DAYS = 15
#: A row of the ledger: when it was due, its status, and for how many due points it stands.
Row = tuple[datetime, str, int]


@dataclass(slots=True)
class Day:
    """A day, from where to where it goes, what was recorded by status, and how many points are planned."""

    date: date
    first: datetime
    end: datetime
    outcomes: Counter[str] = field(default_factory=Counter)
    planned: int = 0


def month(rows: Iterable[Row], zone: tzinfo, now: datetime) -> list[Day]:
    """Return the days around today, in order, with what was recorded.

    A skipped stretch counts on the day on which it began.
    """
    today = now.astimezone(zone).date()
    dates = [today + timedelta(days=number) for number in range(-DAYS, DAYS + 1)]
    days = [Day(each, _midnight(each, zone), _midnight(each + timedelta(days=1), zone)) for each in dates]
    by_date = {day.date: day for day in days}
    for due_at, status, points in rows:
        day = by_date.get(due_at.astimezone(zone).date())
        if day is not None:
            day.outcomes[status] += max(1, points)
    return days


def plan(days: Iterable[Day], schedule: AnySchedule, now: datetime) -> None:
    """Fill in what is planned on these days; nothing of a schedule that does not go on.

    Of a fixed delay it is what would be due if its runs took no time.

    Raises:
        InvalidRecurrence: It has no usable recurrence.
    """
    if not goes_on(schedule):
        return
    rule, base = schedule.rule_and_base(state_of(schedule))
    for day in days:
        if day.end > now:
            steps = Steps(day.first, day.end - day.first, 1, now + MICROSECOND)
            day.planned = sum(per_step(rule, steps, base, left(schedule)).values())


def _midnight(day: date, zone: tzinfo) -> datetime:
    """Return when a day begins; where its midnight does not exist, when the clock jumps over it."""
    return datetime.combine(day, time.min, zone).astimezone(UTC)
