"""Seconds, minutes and hours of a cron expression in words. Knows no days and no time zone.

A rhythm ("every 5 minutes") is said only of steps that divide the round evenly: */7 has a short last interval.
"""

from collections.abc import Callable, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .sets import join, runs, shown, values_of

#: More times of day than this are not listed one by one.
MOST_LISTED = 6


def describe_times(second_mask: int, minute_mask: int, hour_mask: int) -> tuple[str, bool]:
    """Return the words, and whether they are a rhythm, which needs no "every day" beside it."""
    seconds, minutes, hours = values_of(second_mask), values_of(minute_mask), values_of(hour_mask)
    if len(hours) == 24:
        return _within_hours(seconds, minutes), True
    if len(seconds) == 1:
        rhythm = _rhythm(hours, 24, _every_hour) if seconds == [0] and minutes == [0] else None
        if rhythm is not None:
            return rhythm, True
        if seconds == [0] and (span := _spanned(minutes, hours)) is not None:
            return span, False
        if len(hours) * len(minutes) <= MOST_LISTED:
            times = [clock(hour, minute, seconds[0]) for hour in hours for minute in minutes]
            return _("at %(times)s") % {"times": join(times)}, False
    in_hours = ngettext("in hour %(values)s", "in hours %(values)s", len(hours)) % {"values": shown(hours)}
    return f"{_within_hours(seconds, minutes, named=False)}, {in_hours}", False


def clock(hour: int, minute: int, second: int = 0) -> str:
    """Return "09:00", with seconds where there are some."""
    return f"{hour:02}:{minute:02}:{second:02}" if second else f"{hour:02}:{minute:02}"


def _within_hours(seconds: Sequence[int], minutes: Sequence[int], *, named: bool = True) -> str:
    """Return the times of each hour; `named`: of every hour there is, which has to be said beside a mere minute."""
    if seconds == [0]:
        return _every_minutes(minutes) or _at_minutes(minutes, named=named)
    rhythm = _rhythm(seconds, 60, _every_second)
    if rhythm is not None:
        return rhythm if len(minutes) == 60 else f"{rhythm}, {_at_minutes(minutes, named=named)}"
    on_minutes = None if minutes == [0] else _every_minutes(minutes)
    at_seconds = ngettext("at second %(values)s", "at seconds %(values)s", len(seconds)) % {"values": shown(seconds)}
    return f"{on_minutes or _at_minutes(minutes, named=named)}, {at_seconds}"


def _spanned(minutes: Sequence[int], hours: Sequence[int]) -> str | None:
    """Return "every 5 minutes from 09:00 to 17:55" for hours without a hole, None for other shapes."""
    rhythm = _every_minutes(minutes)
    if len(minutes) == 1:
        rhythm = _every_hour(1) if len(hours) > 3 else None
    if rhythm is None or len(runs(hours)) != 1 or len(hours) * len(minutes) <= 2:
        return None
    first, last = clock(hours[0], minutes[0]), clock(hours[-1], minutes[-1])
    return _("%(rhythm)s from %(first)s to %(last)s") % {"rhythm": rhythm, "first": first, "last": last}


def _at_minutes(minutes: Sequence[int], *, named: bool) -> str:
    values = {"values": shown(minutes)}
    if named:
        return ngettext("every hour at minute %(values)s", "every hour at minutes %(values)s", len(minutes)) % values
    return ngettext("at minute %(values)s", "at minutes %(values)s", len(minutes)) % values


def _every_minutes(minutes: Sequence[int]) -> str | None:
    return _every_hour(1) if minutes == [0] else _rhythm(minutes, 60, _every_minute)


def _rhythm(values: Sequence[int], size: int, every: Callable[[int], str]) -> str | None:
    """Say the n of `*/n` where it divides the round evenly and leaves at least two values."""
    step = size // len(values)
    return every(step) if len(values) > 1 and list(values) == list(range(0, size, step)) else None


def _every_second(step: int) -> str:
    return ngettext("every second", "every %(count)d seconds", step) % {"count": step}


def _every_minute(step: int) -> str:
    return ngettext("every minute", "every %(count)d minutes", step) % {"count": step}


def _every_hour(step: int) -> str:
    return ngettext("every hour", "every %(count)d hours", step) % {"count": step}
