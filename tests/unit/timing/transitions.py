"""What the sweeps over all time zones go through: zones, their changes of 2024 to 2027, and expressions.

Everything is picked by counting, nothing by chance: a failure comes back.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import pytest

from .simulation import MINUTE, Ticks, watch

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
FIRST, LAST = datetime(2024, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)

#: Fields of times and dates around which clocks change, in every form of the dialect. Minute first, or seconds first.
EXPRESSIONS = [
    # wildcard jobs: real time goes on
    "* * * * *",
    "*/5 * * * *",
    "*/7 * * * *",
    "15 * * * *",
    "45 */2 * * *",
    "30 */3 * * *",
    "*/20 2 * * *",
    "*/15 1-3 * * *",
    "* 2 * * *",
    "*/30 0,23 * * 0L",
    "*/10 3 L * *",
    # fixed-time jobs
    "0 0 * * *",
    "30 0 * * *",
    "59 23 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "59 2 * * *",
    "0 3 * * *",
    "30 3 * * *",
    "0 4 * * *",
    "0,30 1,2,3 * * *",
    "0-59 2 * * *",
    "10-50/20 0-4 * * *",
    "0 0-23 * * *",
    "30 0-23/2 * * *",
    "0 9 * * 1-5",
    # fixed times on some days
    "30 1 * * 1-5",
    "0 0 * * 0L",
    "30 2 * * 0L",
    "0 1,2 * * 0#2",
    "30 1 * * 0#1",
    "0 0,1 L * *",
    "0 3 L-1 * *",
    "30 2 31 3 *",
    "0 2,3 LW * *",
    "45 23 15W,29W * *",
    "30 2 */2 * 0",
    "15 0,2 1-7 * 6",
    # with seconds
    "15,45 30 2 * * *",
    "*/20 0 1-3 * * *",
]


class Change(NamedTuple):
    """A zone, when its clock changes, and by how much: forward is a gap, back an overlap."""

    zone: str
    at: datetime
    shift: timedelta

    @property
    def wall(self) -> datetime:
        return self.at.astimezone(ZoneInfo(self.zone)).replace(tzinfo=None)

    @property
    def kind(self) -> tuple[timedelta, time, bool]:
        """By how much, to what time on the wall, and whether on the last Sunday of a month, as many are."""
        last_sunday = self.wall.isoweekday() == 7 and (self.wall + 7 * DAY).month != self.wall.month
        return self.shift, self.wall.time(), last_sunday

    @property
    def begin(self) -> datetime:
        return self.at.replace(minute=0, second=0) - 8 * HOUR

    @property
    def end(self) -> datetime:
        return self.begin + 20 * HOUR

    def ticks(self) -> Ticks:
        return watch(self.zone, self.begin, self.end)


def changes(zone: str) -> Iterator[Change]:
    """Find the changes of a zone: from noon to noon, each narrowed down to its hour and minute."""
    info = ZoneInfo(zone)

    def offset(instant: datetime) -> timedelta:
        return instant.astimezone(info).utcoffset() or timedelta(0)

    noons = [FIRST + n * DAY + 12 * HOUR for n in range((LAST - FIRST) // DAY)]
    offsets = [offset(noon) for noon in noons]
    for (noon, before), (_, after) in pairwise(zip(noons, offsets, strict=True)):
        if before != after:
            hour = next(noon + n * HOUR for n in range(24) if offset(noon + (n + 1) * HOUR) != before)
            at = next(hour + n * MINUTE for n in range(1, 61) if offset(hour + n * MINUTE) != before)
            yield Change(zone, at, after - before)


@cache
def zones_that_change() -> dict[str, list[Change]]:
    """Return the zones of zoneinfo with a change, by name."""
    names = sorted(name for name in available_timezones() if not name.startswith(("posix", "right/", "localtime")))
    return {name: found for name in names if (found := list(changes(name)))}


def picked(number: int, found: list[Change]) -> list[Change]:
    """Return one gap and one overlap of a zone, of another year for each number."""
    gaps = [change for change in found if change.shift > timedelta(0)]
    overlaps = [change for change in found if change.shift < timedelta(0)]
    return [kind[number % len(kind)] for kind in (gaps, overlaps) if kind]


def sampled(share: int, *, every_zone: bool) -> Iterator[tuple[Change, list[str]]]:
    """Go through one gap and one overlap of zones, each with its own part of the expressions, `share` of them.

    Zones that change at the same times of their own are a set. With every zone, the first of each set goes through all
    expressions. Without, only the first of each set is visited, and the first change of each kind, wherever that is,
    goes through all expressions.
    """
    sets: set[tuple[tuple[datetime, timedelta], ...]] = set()
    kinds: set[tuple[timedelta, time, bool]] = set()
    place = 0
    for number, found in enumerate(zones_that_change().values()):
        key = tuple((change.wall, change.shift) for change in found)
        for change in picked(number, found):
            first_of_set, first_of_kind = key not in sets, change.kind not in kinds
            kinds.add(change.kind)
            if first_of_set if every_zone else first_of_kind:
                yield change, EXPRESSIONS
            elif first_of_set or every_zone:
                yield change, [EXPRESSIONS[(place + n) % len(EXPRESSIONS)] for n in range(share)]
                place += share
        sets.add(key)


#: Every zone takes too long for each change of the code; one zone of each set meets each kind of change.
in_both_forms = pytest.mark.parametrize(
    "every_zone",
    [pytest.param(False, id="one zone of each set"), pytest.param(True, id="every zone", marks=pytest.mark.long)],
)
