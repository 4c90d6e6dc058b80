"""A compiled cron expression, evaluated in naive wall-clock seconds since 1970. Knows no time zone and no text."""

from calendar import monthrange
from dataclasses import dataclass, field
from datetime import MAXYEAR, date
from functools import lru_cache

from .point import DAY

#: `date.toordinal()` of 1970-01-01, the day with the number 0.
ORDINAL_OF_DAY_ZERO = 719_163
FIRST_DAY = 1 - ORDINAL_OF_DAY_ZERO
LAST_DAY = date.max.toordinal() - ORDINAL_OF_DAY_ZERO
#: The number in `nth` for the L of `5L`.
LAST = 6
#: Factor that repeats a mask of weekdays for six weeks.
_SIX_WEEKS = sum(1 << 7 * week for week in range(6))


def find_lowest(mask: int) -> int:
    """Return the position of the lowest set bit; the mask is not 0."""
    return (mask & -mask).bit_length() - 1


@lru_cache(maxsize=4096)
def _get_month_shape(year: int, month: int) -> tuple[int, int]:
    """Return the weekday of a month's day 1 (Sunday is 0) and its number of days."""
    monday_based, length = monthrange(year, month)
    return (monday_based + 1) % 7, length


@dataclass(slots=True)
class DayRule:
    """The fields day-of-month and day-of-week, independent of a month."""

    both: bool  # both fields have to match, otherwise one of them
    days: int = 0  # bit n is day n of the month
    weekdays: int = 0  # bit n is weekday n, Sunday is 0
    before_last: set[int] = field(default_factory=set)  # the n of `L-n`
    nearest: set[int] = field(default_factory=set)  # the days of `15W`, 31 for `LW`
    nth: set[tuple[int, int]] = field(default_factory=set)  # the pairs of `5#2`

    def build_mask(self, length: int, first_weekday: int) -> int:
        """Return the matching days, as bits 1 to 31, of a month with this length and this weekday of day 1."""
        by_day = self.days
        for back in self.before_last:
            if back < length:
                by_day |= 1 << (length - back)
        for day in self.nearest:
            # In a shorter month, day 31 means the nearest working day to its last day, within the month.
            by_day |= 1 << _find_working_day(min(day, length), length, first_weekday)
        by_weekday = self.weekdays * _SIX_WEEKS >> first_weekday << 1
        for weekday, nth in self.nth:
            first = 1 + (weekday - first_weekday) % 7
            weeks = (length - first) // 7 if nth == LAST else nth - 1
            by_weekday |= 1 << first + 7 * weeks
        matching = by_day & by_weekday if self.both else by_day | by_weekday
        return matching & ((2 << length) - 2)


def _find_working_day(day: int, length: int, first_weekday: int) -> int:
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:  # Saturday: the Friday before, but never in the month before
        return day - 1 if day > 1 else 3
    if weekday == 0:  # Sunday: the Monday after, but never in the month after
        return day + 1 if day < length else day - 2
    return day


@dataclass(frozen=True, slots=True)
class Fields:
    """The matching seconds, minutes, hours and months as bit masks, and the rule for days."""

    seconds: int
    minutes: int
    hours: int
    months: int
    rule: DayRule = field(hash=False)
    fixed: bool  # Debian cron's fixed-time job: neither minute nor hour begins with `*`
    times: int = field(init=False)  # bit n is minute n of the day
    day_masks: tuple[tuple[int, ...], ...] = field(init=False)  # [length - 28][weekday of day 1]

    def __post_init__(self) -> None:
        times = sum(self.minutes << 60 * hour for hour in range(24) if self.hours >> hour & 1)
        object.__setattr__(self, "times", times)
        masks = (tuple(self.rule.build_mask(length, weekday) for weekday in range(7)) for length in range(28, 32))
        object.__setattr__(self, "day_masks", tuple(masks))

    def find_first(self, wall: int) -> int | None:
        """Return the first matching wall-clock second from `wall` on, or None after the year 9999."""
        day, second = divmod(max(wall, FIRST_DAY * DAY), DAY)
        found = self._find_first_day(day)
        if found == day:
            time = self._find_first_time(second)
            if time is not None:
                return day * DAY + time
            found = self._find_first_day(day + 1)
        return None if found is None else found * DAY + find_lowest(self.times) * 60 + find_lowest(self.seconds)

    def count(self, begin: int, end: int) -> int:
        """Return the number of matching seconds in `begin <= wall < end`. Counts by month, not by point."""
        if end <= begin:
            return 0
        first_day, first_second = divmod(begin, DAY)
        last_day, last_second = divmod(end, DAY)
        per_day = self.times.bit_count() * self.seconds.bit_count()
        whole_days = self._count_days(first_day, last_day) * per_day
        return whole_days - self._count_times(first_day, first_second) + self._count_times(last_day, last_second)

    def _find_first_time(self, second_of_day: int) -> int | None:
        minute, second = divmod(second_of_day, 60)
        if self.times >> minute & 1 and (ahead := self.seconds >> second):
            return second_of_day + find_lowest(ahead)
        ahead = self.times >> (minute + 1)
        return (minute + 1 + find_lowest(ahead)) * 60 + find_lowest(self.seconds) if ahead else None

    def _find_first_day(self, day: int) -> int | None:
        if day > LAST_DAY:
            return None
        start = date.fromordinal(day + ORDINAL_OF_DAY_ZERO)
        year, month, skip = start.year, start.month, start.day
        while year <= MAXYEAR:
            ahead = self._find_days(year, month) >> skip
            if ahead:
                return date(year, month, skip + find_lowest(ahead)).toordinal() - ORDINAL_OF_DAY_ZERO
            skip = 0
            later = self.months >> (month + 1)
            year, month = (year, month + 1 + find_lowest(later)) if later else (year + 1, find_lowest(self.months))
        return None

    def _find_days(self, year: int, month: int) -> int:
        if not self.months >> month & 1:
            return 0
        weekday, length = _get_month_shape(year, month)
        return self.day_masks[length - 28][weekday]

    def _count_days(self, first: int, end: int) -> int:
        total = 0
        day, end = max(first, FIRST_DAY), min(end, LAST_DAY + 1)
        while day < end:
            start = date.fromordinal(day + ORDINAL_OF_DAY_ZERO)
            stop = min(end, day - start.day + _get_month_shape(start.year, start.month)[1] + 1)
            ahead = self._find_days(start.year, start.month) >> start.day
            total += (ahead & ((1 << (stop - day)) - 1)).bit_count()
            day = stop
        return total

    def _count_times(self, day: int, before_second: int) -> int:
        if not self._count_days(day, day + 1):
            return 0
        minute, second = divmod(before_second, 60)
        earlier_minutes = (self.times & ((1 << minute) - 1)).bit_count()
        earlier_seconds = (self.seconds & ((1 << second) - 1)).bit_count() if self.times >> minute & 1 else 0
        return earlier_minutes * self.seconds.bit_count() + earlier_seconds
