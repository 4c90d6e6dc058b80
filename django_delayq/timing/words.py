"""Recurrences in short plain English. Says only what it is sure of; anything unusual is shown literally."""

import re
from datetime import datetime, timedelta

from .cron import Cron
from .recurrence import Every, Once, Recurrence, Windowed

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "", "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("µs", 1))
_NUMBER = re.compile("[0-9]+")
_NUMBERS = re.compile("[0-9]+(,[0-9]+)*")
_STEP = re.compile(r"\*/([0-9]+)")


def describe(recurrence: Recurrence) -> str:
    """Return a recurrence in words, such as "at 09:00, Monday to Friday, Europe/Riga".

    A cron expression that is none of the well-known shapes is shown as it is: "cron 0 0 29 2 * (Europe/Riga)".
    """
    if isinstance(recurrence, Cron):
        words = _cron(recurrence.fields.source)
        if words is None:
            return f"cron {' '.join(recurrence.expression.split())} ({recurrence.timezone})"
        return f"{words}, {recurrence.timezone}"
    if isinstance(recurrence, Every):
        return _every(recurrence.every)
    if isinstance(recurrence, Once):
        return f"once at {_instant(recurrence.at)}"
    if isinstance(recurrence, Windowed):
        words = describe(recurrence.recurrence)
        if recurrence.start is not None:
            words += f", from {_instant(recurrence.start)}"
        if recurrence.end is not None:
            words += f", until {_instant(recurrence.end)}"
        return words
    return str(recurrence)


def _instant(instant: datetime) -> str:
    if instant.microsecond:
        return f"{instant:%Y-%m-%d %H:%M:%S.%f} UTC"
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC" if instant.second else f"{instant:%Y-%m-%d %H:%M} UTC"


def _every(every: timedelta) -> str:
    rest = every // timedelta(microseconds=1)
    parts = []
    for unit, size in _UNITS:
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return f"every {' '.join(parts)}"


def _cron(source: tuple[str, ...]) -> str | None:
    """Return the words of six normalised fields, seconds first, or None if their shape is not well known."""
    second, minute, hour, *days = source
    when = _days(*days)
    if when is None:
        return None
    if _NUMBER.fullmatch(second) and _NUMBER.fullmatch(minute) and _NUMBERS.fullmatch(hour):
        tail = f":{int(second):02}" if int(second) else ""
        times = [f"{value:02}:{int(minute):02}{tail}" for value in sorted({int(value) for value in hour.split(",")})]
        return f"at {_join(times)}, {when}"
    rhythm = _rhythm(second, minute, hour)
    if rhythm is None:
        return None
    return rhythm if when == "every day" else f"{rhythm}, {when}"


def _rhythm(second: str, minute: str, hour: str) -> str | None:
    if hour == "*" and minute == "*":
        return _each(second, "second", 60) if second != "0" else "every minute"
    if second != "0":
        return None
    if hour == "*":
        if minute == "0":
            return "every hour"
        return f"every hour at minute {minute}" if _NUMBER.fullmatch(minute) else _each(minute, "minute", 60)
    return _each(hour, "hour", 24) if minute == "0" else None


def _each(text: str, unit: str, size: int) -> str | None:
    """Return "every 5 minutes" where a step divides the round evenly; */7 does not, it has a short last interval."""
    if text in ("*", "*/1"):
        return f"every {unit}"
    match = _STEP.fullmatch(text)
    if match is None or size % int(match[1]) or int(match[1]) == size:
        return None
    return f"every {match[1]} {unit}s"


def _days(day: str, month: str, weekday: str) -> str | None:
    if month == "*" and day == "*":
        return _weekdays(weekday)
    if weekday != "*":
        return None
    if month == "*" and day == "L":
        return "on the last day of the month"
    if month == "*" and _NUMBER.fullmatch(day) and int(day) <= 28:
        return f"on day {day} of the month"
    if _NUMBER.fullmatch(month) and _NUMBER.fullmatch(day) and int(day) <= 28:
        return f"on {day} {_MONTHS[int(month)]}"
    return None


def _weekdays(text: str) -> str | None:
    if text == "*":
        return "every day"
    if match := re.fullmatch("([0-6])-([0-7])", text):
        return f"{_DAYS[int(match[1])]} to {_DAYS[int(match[2]) % 7]}" if text not in ("0-6", "0-7") else "every day"
    if re.fullmatch("[0-6](,[0-6])*", text):
        # Monday first, as in a working week.
        numbers = sorted({int(value) for value in text.split(",")}, key=lambda number: (number - 1) % 7)
        return _join([_DAYS[number] for number in numbers])
    return None


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
