"""Upcoming due points of all schedules, counted by hour."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from django.db.models import Value
from django.db.models.functions import Mod

from .. import ledger
from ..exceptions import InvalidRecurrence
from ..ledger.chain import get_state
from ..ledger.rows import AnySchedule
from ..models import Condition, Schedule, ScheduleState
from ..recurrence import Cron, Every, Recurrence, Windowed
from ..recurrence.point import MICROSECOND
from ..recurrence.preview import preview

#: Maximum enabled schedules that are read. If there are more, an even sample of at most this size is read.
MOST_READ = 2_000
HOUR = timedelta(hours=1)


def count_left(schedule: AnySchedule) -> int | None:
    """Return how many due points a schedule may still execute; None without a limit."""
    return None if schedule.max_runs is None else max(0, schedule.max_runs - get_state(schedule).run_count)


def can_run(schedule: AnySchedule) -> bool:
    """Return whether a schedule may run: enabled, runs left, and neither finished nor broken."""
    ended = get_state(schedule).condition in (Condition.FINISHED, Condition.BROKEN)
    return schedule.enabled and not ended and count_left(schedule) != 0


class Sample(NamedTuple):
    """Schedules that may run. Each represents `weight` schedules."""

    rows: Sequence[AnySchedule]
    weight: int


def read() -> Sample:
    """Return all schedules that may run, or an even sample of them: always the same ones, by their primary keys."""
    enabled = Schedule.objects.using(ledger.get_database()).filter(enabled=True).order_by()
    weight = -(-enabled.count() // MOST_READ) | 1  # odd, because keys may be all even or all odd
    pks = enabled.alias(rest=Mod("pk", Value(weight))).filter(rest=0).values_list("pk", flat=True)
    return Sample([row for row in ledger.load_schedules(pks).values() if can_run(row)], weight)


def list_next_runs(now: datetime, most: int) -> list[tuple[datetime, AnySchedule]]:
    states = ScheduleState.objects.using(ledger.get_database()).filter(next_due_at__gte=now, schedule__enabled=True)
    found: list[tuple[datetime, AnySchedule]] = []
    for row in ledger.load_schedules(states.order_by("next_due_at").values_list("pk", flat=True)[:most]).values():
        with suppress(InvalidRecurrence, ValueError):  # a worker will report it
            found += [(point.due_at, row) for point in preview(row, most, now) if point.runs]
    return sorted(found, key=lambda each: (each[0], each[1].name))[:most]


class Hours(NamedTuple):
    """`number` hours from `first` on; due points before `since` do not count."""

    first: datetime
    number: int
    since: datetime

    @property
    def end(self) -> datetime:
        return self.first + self.number * HOUR


def count_hours(schedules: Iterable[AnySchedule], hours: Hours) -> list[int]:
    """Return the number of due points of each hour. Schedules without a usable recurrence are left out."""
    groups: dict[Any, tuple[Recurrence, int]] = {}
    for schedule in schedules:
        try:
            rule, base = schedule.get_rule_and_base(get_state(schedule))
        except (InvalidRecurrence, ValueError, OverflowError):
            continue
        after = base if base > hours.since else None
        rule = _narrow_rule(rule, hours.since, hours.end)
        same = (rule.fields, rule.timezone, rule.dst_gap, rule.dst_overlap) if isinstance(rule, Cron) else rule
        key = same, after, count_left(schedule)
        groups[key] = rule, groups.get(key, (rule, 0))[1] + 1
    found = [0] * hours.number
    for (_same, after, most), (rule, number) in groups.items():
        for hour, count in count_by_hour(rule, hours, after, most).items():
            found[hour] += count * number
    return found


def _narrow_rule(rule: Recurrence, since: datetime, end: datetime) -> Recurrence:
    if not isinstance(rule, Windowed):
        return rule
    open_before, open_after = rule.start is None or rule.start <= since, rule.end is None or rule.end >= end
    return rule.recurrence if open_before and open_after else rule


def count_by_hour(
    rule: Recurrence, hours: Hours, after: datetime | None = None, most: int | None = None
) -> dict[int, int]:
    """Return the number of due points by hour, without zeros: only those after `after`, and only the first `most`."""
    begin, last = max(hours.first, hours.since), hours.end - MICROSECOND
    begin = begin if after is None else max(begin, after + MICROSECOND)
    if begin > last:
        return {}
    found: dict[int, int] = {}
    if isinstance(rule, Every):
        found = _count_lattice(rule, hours, begin)
    elif rule.count_between(begin, last) <= hours.number:
        point = rule.next_after(begin - MICROSECOND)
        while point is not None and point <= last:
            hour = (point - hours.first) // HOUR
            found[hour] = found.get(hour, 0) + 1
            point = rule.next_after(point)
    else:
        for hour in range(hours.number):
            first = max(begin, hours.first + hour * HOUR)
            count = rule.count_between(first, hours.first + (hour + 1) * HOUR - MICROSECOND)
            if count > 0:
                found[hour] = count
    return found if most is None else _limit_counts(found, most)


def _count_lattice(rule: Every, hours: Hours, begin: datetime) -> dict[int, int]:
    """Count an interval at a tenth of the cost of other rules: most intervals are alone in their group."""
    every, hour = rule.every // MICROSECOND, HOUR // MICROSECOND
    first, start = (hours.first - rule.anchor) // MICROSECOND, (begin - rule.anchor) // MICROSECOND
    before = [-(-max(start, edge) // every) for edge in range(first, first + hours.number * hour + 1, hour)]
    return {number: until - begun for number, (begun, until) in enumerate(pairwise(before)) if until > begun}


def _limit_counts(counts: dict[int, int], most: int) -> dict[int, int]:
    found = {}
    for hour in sorted(counts):
        found[hour] = min(most, counts[hour])
        most -= found[hour]
    return {hour: count for hour, count in found.items() if count}
