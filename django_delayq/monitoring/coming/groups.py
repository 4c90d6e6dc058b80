"""How many due points lie in each step of a time, and when their runs start. Reads no table and no clock.

Note [Once for each definition]
Thousands of schedules have the same handful of recurrences. Those that fall due in the same minutes are counted once:
cron expressions that match the same times, intervals of whole minutes whose points are in the same minutes, and what a
bound does not touch in the time that is looked at. Steps are whole minutes, so nothing finer is told apart.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from ...exceptions import InvalidRecurrence
from ...ledger.chain import state_of
from ...ledger.rows import AnySchedule
from ...recurrence import Cron, Every, Recurrence, Windowed, wake_at
from ...recurrence.point import EPOCH, MICROSECOND
from .sample import left as left_of

MINUTE = timedelta(minutes=1)
#: So many points of a schedule with jitter are followed one by one; more are counted as if there was no jitter.
MOST_FOLLOWED = 600


class Steps(NamedTuple):
    """So many steps of whole minutes, the first from `first` on; what lies before `since` does not count."""

    first: datetime
    step: timedelta
    number: int
    since: datetime

    @property
    def end(self) -> datetime:
        """Where the last one ends."""
        return self.first + self.number * self.step

    @property
    def begin(self) -> datetime:
        """From where on points count."""
        return max(self.first, self.since)

    def at(self, instant: datetime) -> int:
        """Return the number of the step that an instant lies in."""
        return (instant - self.first) // self.step


@dataclass(slots=True)
class Group:
    """Schedules that fall due in the same minutes, from `after` on where that is set, `left` times at most."""

    rule: Recurrence
    after: datetime | None
    left: int | None
    schedules: list[AnySchedule] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        """Say whether some start later than they are due."""
        return any(each.jitter for each in self.schedules)


def grouped(schedules: Iterable[AnySchedule], since: datetime, end: datetime) -> list[Group]:
    """Return schedules by what they have in common between these. See Note [Once for each definition].

    What has no usable recurrence is left out: it will be parked.
    """
    found: dict[Any, Group] = {}
    for schedule in schedules:
        try:
            rule, base = schedule.rule_and_base(state_of(schedule))
        except (InvalidRecurrence, ValueError, OverflowError):
            continue
        rule = _within(rule, since - schedule.jitter, end)
        after, left = base if base > since else None, left_of(schedule)
        key = (_key(rule), after, left)
        group = found.get(key)
        if group is None:
            group = found[key] = Group(rule, after, left)
        group.schedules.append(schedule)
    return list(found.values())


def _within(rule: Recurrence, since: datetime, end: datetime) -> Recurrence:
    """Return a rule without bounds that change nothing in this time."""
    if not isinstance(rule, Windowed):
        return rule
    open_before, open_after = rule.start is None or rule.start <= since, rule.end is None or rule.end >= end
    return rule.recurrence if open_before and open_after else rule


def _key(rule: Recurrence) -> Any:
    if isinstance(rule, Windowed):
        return _key(rule.recurrence), rule.start, rule.end
    if isinstance(rule, Cron):
        fields = rule.fields
        times = fields.seconds, fields.minutes, fields.hours, fields.months, fields.day_masks, fields.fixed
        return times, rule.timezone, rule.dst_gap, rule.dst_overlap
    if isinstance(rule, Every):
        phase = (rule.anchor - EPOCH) % rule.every
        return rule.every, phase if rule.every % MINUTE else phase // MINUTE
    return rule


def per_step(rule: Recurrence, steps: Steps, after: datetime | None = None, left: int | None = None) -> dict[int, int]:
    """Return how many due points lie in each step; only of steps that have some.

    Points up to `after` are none, and only the first `left` from `since` on are. What is dense is asked for step by
    step, what is sparse point by point: either costs no more than there are steps.
    """
    begin, last = _begin(steps.begin, after), steps.end - MICROSECOND
    if begin > last:
        return {}
    if left is not None:
        left -= rule.count_between(_begin(steps.since, after), begin - MICROSECOND)
    found = _of_lattice(rule, steps, begin) if isinstance(rule, Every) else _of_any(rule, steps, begin, last)
    return found if left is None or left >= sum(found.values()) else _cut(found, left)


def starts(group: Group, steps: Steps) -> Iterator[tuple[int, int, Sequence[AnySchedule]]]:
    """Yield (step, how many runs start in it, of which schedules each): due points, each with its jitter.

    Of a schedule with jitter and very many points the due points are taken instead.
    """
    plain = [each for each in group.schedules if not each.jitter]
    moved = [each for each in group.schedules if each.jitter]
    points = _followed(group, steps, max((each.jitter for each in moved), default=timedelta(0)))
    if points is None:
        plain, points = group.schedules, []
    if plain:
        for number, count in per_step(group.rule, steps, group.after, group.left).items():
            yield number, count, plain
    for each in moved:
        for point in points:
            if point + each.jitter >= steps.begin:
                start = wake_at(point, each.jitter, each.name)
                if steps.begin <= start < steps.end:
                    yield steps.at(start), 1, (each,)


def _followed(group: Group, steps: Steps, jitter: timedelta) -> list[datetime] | None:
    """Return the points whose runs may start in these steps, by so much jitter at most; None for too many."""
    begin, last = _begin(steps.begin - jitter, group.after), steps.end - MICROSECOND
    if not jitter or begin > last:
        return []
    if group.rule.count_between(begin, last) > MOST_FOLLOWED:
        return None
    points = list(_points(group.rule, begin, last))
    if group.left is None:
        return points
    return points[: max(0, group.left - group.rule.count_between(steps.since, begin - MICROSECOND))]


def _of_any(rule: Recurrence, steps: Steps, begin: datetime, last: datetime) -> dict[int, int]:
    found: dict[int, int] = {}
    if rule.count_between(begin, last) <= steps.number:
        for point in _points(rule, begin, last):
            number = steps.at(point)
            found[number] = found.get(number, 0) + 1
        return found
    for number in range(steps.number):
        first = max(begin, steps.first + number * steps.step)
        count = rule.count_between(first, steps.first + (number + 1) * steps.step - MICROSECOND)
        if count > 0:
            found[number] = count
    return found


def _of_lattice(rule: Every, steps: Steps, begin: datetime) -> dict[int, int]:
    """Return the same for an interval, at a tenth of the cost: lattices that nobody else has are many."""
    every, step = rule.every // MICROSECOND, steps.step // MICROSECOND
    first, start = (steps.first - rule.anchor) // MICROSECOND, (begin - rule.anchor) // MICROSECOND
    end, found = first + steps.number * step, dict[int, int]()
    if (end - start) // every <= steps.number:
        for point in range(-(-start // every) * every, end, every):
            number = (point - first) // step
            found[number] = found.get(number, 0) + 1
        return found
    before = [-(-max(start, edge) // every) for edge in range(first, end + 1, step)]
    return {number: until - begun for number, (begun, until) in enumerate(pairwise(before)) if until > begun}


def _begin(first: datetime, after: datetime | None) -> datetime:
    return first if after is None else max(first, after + MICROSECOND)


def _points(rule: Recurrence, first: datetime, last: datetime) -> Iterator[datetime]:
    point = rule.next_after(first - MICROSECOND)
    while point is not None and point <= last:
        yield point
        point = rule.next_after(point)


def _cut(counts: dict[int, int], left: int) -> dict[int, int]:
    """Return the first `left` of what was counted."""
    found = {}
    for number in sorted(counts):
        if left <= 0:
            break
        found[number] = min(left, counts[number])
        left -= found[number]
    return found
