"""Upcoming due points of all schedules: counts per queue and hour, busiest minutes, and the next runs by name."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from django.db.models import Max, Min

from .. import ledger
from ..exceptions import InvalidRecurrence
from ..ledger.chain import state_of
from ..ledger.rows import AnySchedule, ScheduleRow
from ..models import Condition, Schedule, ScheduleState
from ..recurrence import Cron, Every, Recurrence, Windowed, wake_at
from ..recurrence.point import EPOCH, MICROSECOND
from ..recurrence.preview import preview

#: Maximum number of enabled schedules that are all read; above it, a sample of about this size is drawn.
MOST_READ = 2_000
#: Number of primary keys in the first draw, and the maximum where few of the drawn keys exist.
DRAWN_FIRST, DRAWN_AT_MOST = 2_500, 20_000


def left(schedule: AnySchedule) -> int | None:
    """Return how many due points a schedule may still execute; None without a limit."""
    return None if schedule.max_runs is None else max(0, schedule.max_runs - state_of(schedule).run_count)


def goes_on(schedule: AnySchedule) -> bool:
    """Return whether a schedule may run: enabled, runs left, and neither exhausted nor parked."""
    ended = state_of(schedule).condition in (Condition.EXHAUSTED, Condition.PARKED)
    return schedule.enabled and not ended and left(schedule) != 0


class Sample(NamedTuple):
    """Schedules that may run. Each represents `weight` schedules; `total` is their number, estimated in a sample."""

    rows: Sequence[AnySchedule]
    weight: float
    total: int

    @property
    def is_estimate(self) -> bool:
        return self.weight != 1


def read(now: datetime) -> Sample:
    """Return all schedules that may run, or a sample of them, with at most four queries.

    Primary keys are drawn evenly, so no table is scanned, and the share of existing keys gives the total. The draw
    changes once an hour, so that reloading a page keeps its numbers.
    """
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
        with suppress(InvalidRecurrence, ValueError):  # a worker will park it
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
    return [row for row in ledger.load_schedules(pks).values() if goes_on(row)]


MINUTE = timedelta(minutes=1)
#: Maximum due points of a group with jitter that are computed one by one; above it, jitter is ignored.
MOST_FOLLOWED = 600


class Steps(NamedTuple):
    """`number` steps of `step` (whole minutes) from `first` on; due points before `since` do not count."""

    first: datetime
    step: timedelta
    number: int
    since: datetime

    @property
    def end(self) -> datetime:
        return self.first + self.number * self.step

    @property
    def begin(self) -> datetime:
        return max(self.first, self.since)

    def at(self, instant: datetime) -> int:
        """Return the index of the step that contains an instant."""
        return (instant - self.first) // self.step


@dataclass(slots=True)
class Group:
    """Schedules with the same due minutes; only points after `after` count, and at most `left` of them."""

    rule: Recurrence
    after: datetime | None
    left: int | None
    schedules: list[AnySchedule] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        return any(each.jitter for each in self.schedules)


def grouped(schedules: Iterable[AnySchedule], since: datetime, end: datetime) -> list[Group]:
    """Group schedules with the same due minutes between these instants; leave out those without a usable recurrence."""
    found: dict[Any, Group] = {}
    for schedule in schedules:
        try:
            rule, base = schedule.rule_and_base(state_of(schedule))
        except (InvalidRecurrence, ValueError, OverflowError):
            continue
        rule = _within(rule, since - schedule.jitter, end)
        after, remaining = base if base > since else None, left(schedule)
        key = (_key(rule), after, remaining)
        group = found.get(key)
        if group is None:
            group = found[key] = Group(rule, after, remaining)
        group.schedules.append(schedule)
    return list(found.values())


def _within(rule: Recurrence, since: datetime, end: datetime) -> Recurrence:
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
    """Return the number of due points by step; only after `after`, and only the first `left` from `since` on.

    Steps without points are left out. Dense rules are counted step by step, sparse ones point by point.
    """
    begin, last = _begin(steps.begin, after), steps.end - MICROSECOND
    if begin > last:
        return {}
    if left is not None:
        left -= rule.count_between(_begin(steps.since, after), begin - MICROSECOND)
    found = _of_lattice(rule, steps, begin) if isinstance(rule, Every) else _of_any(rule, steps, begin, last)
    return found if left is None or left >= sum(found.values()) else _cut(found, left)


def starts(group: Group, steps: Steps) -> Iterator[tuple[int, int, Sequence[AnySchedule]]]:
    """Yield (step, runs that each schedule starts in it, schedules): due points moved by their jitter.

    A group with jitter and more than MOST_FOLLOWED points yields its due points instead.
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
    """Return the points whose runs may start in these steps with at most this jitter; None for too many points."""
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
    """Do the same as `_of_any` for an interval at a tenth of the cost: most intervals are alone in their group."""
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
    found = {}
    for number in sorted(counts):
        if left <= 0:
            break
        found[number] = min(left, counts[number])
        left -= found[number]
    return found


HOUR = timedelta(hours=1)
#: Number of hours that are searched for the busiest minutes: those in which most schedules fall due.
HOURS_LOOKED_INTO = 4
#: Maximum number of busiest minutes returned.
PEAKS = 3


class Peak(NamedTuple):
    """A minute and the number of runs that start in it."""

    at: datetime
    runs: int


class Outlook:
    """Due points of schedules in `hours` hours from `first` on; those before `since` do not count."""

    def __init__(self, schedules: Iterable[AnySchedule], first: datetime, hours: int, since: datetime) -> None:
        self.steps = Steps(first, HOUR, hours, since)
        self._counted = [
            (group, per_step(group.rule, self.steps, group.after, group.left))
            for group in grouped(schedules, since, self.steps.end)
        ]

    def by_queue(self) -> dict[str, list[int]]:
        """Return the number of due points of each queue by hour; queues without due points are left out."""
        found: dict[str, list[int]] = {}
        for group, counts in self._counted:
            if counts:
                for queue, number in Counter(each.queue for each in group.schedules).items():
                    column = found.setdefault(queue, [0] * self.steps.number)
                    for hour, count in counts.items():
                        column[hour] += count * number
        return found

    def peaks(self) -> list[Peak]:
        """Return the minutes in which most runs start, the busiest first, with jitter.

        Only the HOURS_LOOKED_INTO hours with the most schedules are searched. A busier minute elsewhere is missed only
        if few schedules start several runs in it, or if more hours have as many schedules.
        """
        best: list[Peak] = []
        crowds: Counter[int] = Counter()
        for group, counts in self._counted:
            for hour in counts:
                crowds[hour] += len(group.schedules)
        for hour, most in crowds.most_common(HOURS_LOOKED_INTO):
            if len(best) == PEAKS and best[-1].runs >= most:
                break
            first = self.steps.first + hour * HOUR
            groups = [group for group, counts in self._counted if hour in counts or group.moves]
            minutes = minutes_of(groups, first, self.steps.since)
            best += [Peak(first + number * MINUTE, count) for number, count in enumerate(minutes) if count]
            best = sorted(best, key=lambda peak: (-peak.runs, peak.at))[:PEAKS]
        return best


def minutes_of(groups: Iterable[Group], hour: datetime, since: datetime) -> list[int]:
    """Return the number of runs that start in each minute of the hour that begins at `hour`."""
    found = [0] * 60
    for group in groups:
        for number, count, schedules in starts(group, Steps(hour, MINUTE, 60, since)):
            found[number] += count * len(schedules)
    return found
