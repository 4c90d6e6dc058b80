"""A cron daemon in the plainest way: every minute it looks at the clock on the wall and asks whether a job is due.

Written from the rules of cron's manual and of semantics.md, for the tests to hold `Cron` against. Shares no code with
the package, and is never fast: it asks of each minute, and of each item of each field.
"""

import calendar
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
#: Debian cron: a clock that jumps further was corrected; nothing is made up for, nothing held back.
THREE_HOURS = timedelta(hours=3)
BOUNDS = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 6)}

#: (instant in UTC, what the clock on the wall shows), minute by minute.
Ticks = Sequence[tuple[datetime, datetime]]


def item_matches(item: str, value: int, low: int, high: int) -> bool:
    body, _, step = item.partition("/")
    if body == "*":
        first, last = low, high
    elif "-" in body:
        first, last = (int(part) for part in body.split("-"))
    else:
        first = int(body)
        last = high if step else first
    return first <= value <= last and (value - first) % int(step or 1) == 0


@cache
def field_matches(text: str, value: int, name: str) -> bool:
    low, high = BOUNDS[name]
    return any(item_matches(item, value, low, high) for item in text.split(","))


def day_item_matches(item: str, day: date) -> bool:
    last = calendar.monthrange(day.year, day.month)[1]
    if item.startswith("L-") or item == "L":
        return day.day == last - int(item[2:] or 0)
    if item == "LW" or item.endswith("W"):
        wanted = last if item == "LW" else min(int(item[:-1]), last)
        working = [n for n in range(1, last + 1) if date(day.year, day.month, n).weekday() < 5]
        # The nearest; a Saturday moves back first, and that is never as far as Monday.
        return day.day == min(working, key=lambda n: abs(n - wanted))
    return item_matches(item, day.day, 1, 31)


def weekday_item_matches(item: str, day: date) -> bool:
    sunday_first = day.isoweekday() % 7
    if "#" in item:
        weekday, nth = (int(part) for part in item.split("#"))
        return sunday_first == weekday and (day.day - 1) // 7 + 1 == nth
    if item.endswith("L"):
        return sunday_first == int(item[:-1]) and (day + timedelta(days=7)).month != day.month
    return item_matches(item, sunday_first, 0, 6)


@cache
def date_matches(days: str, months: str, weekdays: str, day: date) -> bool:
    if not field_matches(months, day.month, "month"):
        return False
    by_day = any(day_item_matches(item, day) for item in days.split(","))
    by_weekday = any(weekday_item_matches(item, day) for item in weekdays.split(","))
    if days.startswith("*") or weekdays.startswith("*"):
        return by_day and by_weekday
    return by_day or by_weekday


def watch(zone: str, begin: datetime, end: datetime) -> Ticks:
    """Write down the clock on the wall from four hours before `begin`, to know what it shows for the second time."""
    info = ZoneInfo(zone)
    ticks = []
    now = begin - timedelta(hours=4)
    while now <= end:
        ticks.append((now, now.astimezone(info).replace(tzinfo=None)))
        now += MINUTE
    return ticks


def simulate(expression: str, ticks: Ticks, gap: str = "run_after", overlap: str = "once") -> list[datetime]:
    """Return the points from four hours after the first tick on, like a daemon that is never late.

    With six fields, a due minute has several points; what is made up for after a gap comes once, with its first second.
    """
    *seconds, minute, hour, days, months, weekdays = expression.split()
    at_seconds = [timedelta(seconds=n) for n in range(60) if field_matches(seconds[0] if seconds else "0", n, "second")]
    fixed = not minute.startswith("*") and not hour.startswith("*")

    def matches(wall: datetime) -> bool:
        return (
            field_matches(minute, wall.minute, "minute")
            and field_matches(hour, wall.hour, "hour")
            and date_matches(days, months, weekdays, wall.date())
        )

    found: set[datetime] = set()
    seen: dict[datetime, datetime] = {}
    before = ticks[0][1] - MINUTE
    for now, wall in ticks:
        due = matches(wall)
        if fixed and overlap == "once":
            first = seen.setdefault(wall, now)
            due = due and not timedelta(0) < now - first <= THREE_HOURS
        if due:
            found.update(now + second for second in at_seconds)
        if wall - before != MINUTE and fixed and gap == "run_after" and wall - before - MINUTE <= THREE_HOURS:
            missing = before + MINUTE
            while missing < wall:
                if matches(missing):
                    found.add(now)
                missing += MINUTE
        before = wall
    begin = ticks[0][0] + timedelta(hours=4)
    return sorted(point for point in found if point >= begin)
