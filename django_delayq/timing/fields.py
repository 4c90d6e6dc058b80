"""A compiled cron expression, walked over naive wall-clock seconds since 1970. Knows no time zone and no text."""

from dataclasses import dataclass
from datetime import date

DAY = 86_400
#: `date.toordinal()` of 1970-01-01, the day with the number 0.
ORDINAL_OF_DAY_ZERO = 719_163
LAST_ORDINAL = date.max.toordinal()
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def lowest(mask: int) -> int:
    """Return the position of the lowest set bit; the mask is not 0."""
    return (mask & -mask).bit_length() - 1


def month_length(year: int, month: int) -> int:
    """Return the number of days in a month."""
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _LENGTHS[month]


@dataclass(frozen=True, slots=True)
class DayRule:
    """What the fields day-of-month and day-of-week say, before it is known what a month looks like.

    Bit n of `days` is day n of the month, bit n of `weekdays` is weekday n with Sunday as 0. `before_last` holds the n
    of `L-n`, `nearest` the days of `15W`, `nth` the pairs of `5#2`, `last` the weekdays of `5L`.
    """

    days: int
    before_last: tuple[int, ...]
    nearest: tuple[int, ...]
    last_working_day: bool
    weekdays: int
    nth: tuple[tuple[int, int], ...]
    last: tuple[int, ...]
    both: bool

    def mask(self, length: int, first_weekday: int) -> int:
        """Return the matching days of a month of that length whose day 1 is that weekday, as bits 1 to 31."""
        by_day, by_weekday = self._by_day(length, first_weekday), self._by_weekday(length, first_weekday)
        return by_day & by_weekday if self.both else by_day | by_weekday

    def _by_day(self, length: int, first_weekday: int) -> int:
        found = self.days & ((2 << length) - 2)
        for back in self.before_last:
            if back < length:
                found |= 1 << (length - back)
        for day in self.nearest:
            # Day 31 of a shorter month: the nearest to it *within the month*, as croniter has it.
            found |= 1 << _nearest_working_day(min(day, length), length, first_weekday)
        if self.last_working_day:
            found |= 1 << _nearest_working_day(length, length, first_weekday)
        return found

    def _by_weekday(self, length: int, first_weekday: int) -> int:
        found = 0
        for day in range(1, length + 1):
            weekday = (first_weekday + day - 1) % 7
            if (
                self.weekdays >> weekday & 1
                or (weekday, (day + 6) // 7) in self.nth
                or (weekday in self.last and day + 7 > length)
            ):
                found |= 1 << day
        return found


def _nearest_working_day(day: int, length: int, first_weekday: int) -> int:
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:  # Saturday: the Friday before, but never in the month before
        return day - 1 if day > 1 else 3
    if weekday == 0:  # Sunday: the Monday after, but never in the month after
        return day + 1 if day < length else day - 2
    return day


@dataclass(frozen=True, slots=True)
class Fields:
    """The matching seconds, minutes, hours and months as bit masks, and the matching days of each shape of month.

    `day_masks[length - 28][weekday of day 1]` holds the 28 shapes. `fixed` is Debian's fixed-time job: neither minute
    nor hour begins with `*`. `source` is the normalised text of the six fields, seconds first.
    """

    seconds: int
    minutes: int
    hours: int
    months: int
    day_masks: tuple[tuple[int, ...], ...]
    fixed: bool
    source: tuple[str, ...]

    def first_at_or_after(self, wall: int) -> int | None:
        """Return the first matching wall-clock second from `wall` on, or None after the year 9999."""
        day, second = divmod(wall, DAY)
        if day <= -ORDINAL_OF_DAY_ZERO:  # before the year 1
            day, second = 1 - ORDINAL_OF_DAY_ZERO, 0
        if day + ORDINAL_OF_DAY_ZERO > LAST_ORDINAL:
            return None
        found = self._first_day(day)
        if found == day:
            time = self._first_time(second)
            if time is not None:
                return day * DAY + time
            found = self._first_day(day + 1)
        if found is None:
            return None
        return found * DAY + lowest(self.hours) * 3600 + lowest(self.minutes) * 60 + lowest(self.seconds)

    def count(self, begin: int, end: int) -> int:
        """Return how many matching seconds lie in `begin <= wall < end`, month by month, not point by point."""
        if end <= begin:
            return 0
        first_day, first_second = divmod(begin, DAY)
        last_day, last_second = divmod(end, DAY)
        per_day = self.seconds.bit_count() * self.minutes.bit_count() * self.hours.bit_count()
        total = self._count_days(first_day, last_day) * per_day
        if self._count_days(first_day, first_day + 1):
            total -= self._count_times(first_second)
        if last_second and self._count_days(last_day, last_day + 1):
            total += self._count_times(last_second)
        return total

    def _first_time(self, second_of_day: int) -> int | None:
        hour, rest = divmod(second_of_day, 3600)
        minute, second = divmod(rest, 60)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1:
                ahead = self.seconds >> second
                if ahead:
                    return second_of_day + lowest(ahead)
            ahead = self.minutes >> (minute + 1)
            if ahead:
                return hour * 3600 + (minute + 1 + lowest(ahead)) * 60 + lowest(self.seconds)
        ahead = self.hours >> (hour + 1)
        if not ahead:
            return None
        return (hour + 1 + lowest(ahead)) * 3600 + lowest(self.minutes) * 60 + lowest(self.seconds)

    def _first_day(self, day: int) -> int | None:
        ordinal = day + ORDINAL_OF_DAY_ZERO
        if ordinal > LAST_ORDINAL:
            return None
        start = date.fromordinal(ordinal)
        year, month, skip = start.year, start.month, start.day
        while True:
            if self.months >> month & 1:
                first = ordinal - skip + 1 if skip else date(year, month, 1).toordinal()
                # Ordinal 1, 0001-01-01, is a Monday.
                ahead = self.day_masks[month_length(year, month) - 28][first % 7] >> skip
                if ahead:
                    return first - ORDINAL_OF_DAY_ZERO + skip + lowest(ahead) - 1
            skip = 0
            ahead = self.months >> (month + 1)
            if ahead:
                month += 1 + lowest(ahead)
            else:
                year, month = year + 1, lowest(self.months)
                if year > date.max.year:
                    return None

    def _count_days(self, first: int, end: int) -> int:
        total = 0
        day = max(first, 1 - ORDINAL_OF_DAY_ZERO)
        end = min(end, LAST_ORDINAL + 1 - ORDINAL_OF_DAY_ZERO)
        while day < end:
            start = date.fromordinal(day + ORDINAL_OF_DAY_ZERO)
            length = month_length(start.year, start.month)
            stop = min(end, day + length - start.day + 1)
            if self.months >> start.month & 1:
                mask = self.day_masks[length - 28][(start.toordinal() - start.day + 1) % 7]
                total += ((mask >> start.day) & ((1 << (stop - day)) - 1)).bit_count()
            day = stop
        return total

    def _count_times(self, second_of_day: int) -> int:
        hour, rest = divmod(second_of_day, 3600)
        minute, second = divmod(rest, 60)
        total = (self.hours & ((1 << hour) - 1)).bit_count() * self.minutes.bit_count() * self.seconds.bit_count()
        if self.hours >> hour & 1:
            total += (self.minutes & ((1 << minute) - 1)).bit_count() * self.seconds.bit_count()
            if self.minutes >> minute & 1:
                total += (self.seconds & ((1 << second) - 1)).bit_count()
        return total
