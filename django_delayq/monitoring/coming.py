"""What is to come: due points of all schedules, counted or estimated, where they heap up, and the next ones by name."""

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
        after, remaining = base if base > since else None, left(schedule)
        key = (_key(rule), after, remaining)
        group = found.get(key)
        if group is None:
            group = found[key] = Group(rule, after, remaining)
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


HOUR = timedelta(hours=1)
#: So many hours are looked into for their busiest minutes: those in which the most schedules fall due.
HOURS_LOOKED_INTO = 4
#: So many minutes are named.
PEAKS = 3


class Peak(NamedTuple):
    """A minute, and how many runs start in it."""

    at: datetime
    runs: int


class Outlook:
    """Due points of these schedules in so many hours from `first` on; what lies before `since` does not count."""

    def __init__(self, schedules: Iterable[AnySchedule], first: datetime, hours: int, since: datetime) -> None:
        self.steps = Steps(first, HOUR, hours, since)
        self._counted = [
            (group, per_step(group.rule, self.steps, group.after, group.left))
            for group in grouped(schedules, since, self.steps.end)
        ]

    def by_queue(self) -> dict[str, list[int]]:
        """Return how many due points each queue has in each hour; only queues that have some."""
        found: dict[str, list[int]] = {}
        for group, counts in self._counted:
            if counts:
                for queue, number in Counter(each.queue for each in group.schedules).items():
                    column = found.setdefault(queue, [0] * self.steps.number)
                    for hour, count in counts.items():
                        column[hour] += count * number
        return found

    def peaks(self) -> list[Peak]:
        """Return the minutes in which the most runs start, the highest first; jitter is counted in.

        They are those of the hours with the most schedules. A minute is missed only where a few schedules start more
        often than once in it, or where more than HOURS_LOOKED_INTO hours have as many schedules.
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
    """Return how many runs start in each minute of the hour that begins then."""
    found = [0] * 60
    for group in groups:
        for number, count, schedules in starts(group, Steps(hour, MINUTE, 60, since)):
            found[number] += count * len(schedules)
    return found
