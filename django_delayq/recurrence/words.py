"""Recurrences in words, translated: "at 09:00, Monday to Friday, Europe/Riga". Computes no due point, reads no row."""

from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta

from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from . import Cron, Every, Once, Recurrence, Windowed
from .fields import LAST, DayRule

_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("µs", 1))


def describe(recurrence: Recurrence) -> str:
    """Return a recurrence in words. Two cron expressions with the same words match the same local times."""
    if isinstance(recurrence, Cron):
        return f"{describe_cron(recurrence)}, {recurrence.timezone}"
    if isinstance(recurrence, Every):
        return describe_every(recurrence.every)
    if isinstance(recurrence, Once):
        return _("once at %(instant)s") % {"instant": _format_instant(recurrence.at)}
    if isinstance(recurrence, Windowed):
        words = describe(recurrence.recurrence)
        if recurrence.start is not None:
            words += ", " + _("from %(instant)s") % {"instant": _format_instant(recurrence.start)}
        if recurrence.end is not None:
            words += ", " + _("until %(instant)s") % {"instant": _format_instant(recurrence.end)}
        return words
    return str(recurrence)


def describe_every(interval: timedelta) -> str:
    return _("every %(duration)s") % {"duration": _format_duration(interval)}


def describe_cron(cron: Cron) -> str:
    fields = cron.fields
    times, is_rhythm = describe_times(fields.seconds, fields.minutes, fields.hours)
    days = describe_days(fields.rule, fields.months)
    if not days:
        return times if is_rhythm else f"{times}, {_('every day')}"
    return f"{times}, {days}"


def _format_instant(instant: datetime) -> str:
    precise = instant.second or instant.microsecond
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC" if precise else f"{instant:%Y-%m-%d %H:%M} UTC"


def _format_duration(duration: timedelta) -> str:
    rest = duration // timedelta(microseconds=1)
    parts = []
    for unit, size in _UNITS:
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts)


ALL_MONTHS = 0b1111111111110
ALL_DAYS = 2**32 - 2
ALL_WEEKDAYS = 0b1111111
_NTH = {
    1: gettext_lazy("the first %(weekday)s of the month"),
    2: gettext_lazy("the second %(weekday)s of the month"),
    3: gettext_lazy("the third %(weekday)s of the month"),
    4: gettext_lazy("the fourth %(weekday)s of the month"),
    5: gettext_lazy("the fifth %(weekday)s of the month"),
    LAST: gettext_lazy("the last %(weekday)s of the month"),
}


def describe_days(rule: DayRule, months: int) -> str:
    """Return the words for the days; empty for every day of the year."""
    days, special = list_bits(rule.days), rule.before_last or rule.nearest
    if rule.both and rule.weekdays == ALL_WEEKDAYS and len(days) == months.bit_count() == 1 and not special:
        return _("on %(day)d %(month)s") % {"day": days[0], "month": MONTHS[list_bits(months)[0]]}
    found = _list_days(rule)
    if months != ALL_MONTHS:
        names = format_values(list_bits(months), lambda number: str(MONTHS[number]))
        found = [*(found or [_("every day")]), _("in %(months)s") % {"months": names}]
    return ", ".join(found)


def _list_days(rule: DayRule) -> list[str]:
    any_day, any_weekday = rule.days == ALL_DAYS, rule.weekdays == ALL_WEEKDAYS
    if (any_day and any_weekday) or (not rule.both and (any_day or any_weekday)):
        return []
    if any_weekday:
        return [_describe_days_of_month(rule)]
    weekdays = _format_weekdays(rule)
    on_weekdays = _("on %(days)s") % {"days": weekdays}
    if any_day:
        return [on_weekdays if rule.nth else weekdays]
    if rule.both:
        return [_("%(weekdays)s, but only %(days)s") % {"weekdays": weekdays, "days": _describe_days_of_month(rule)}]
    return [_("%(days)s or %(weekdays)s") % {"days": _describe_days_of_month(rule), "weekdays": on_weekdays}]


def _describe_days_of_month(rule: DayRule) -> str:
    parts = []
    plain = list_bits(rule.days)
    if plain:
        text = ngettext("day %(days)s of the month", "days %(days)s of the month", len(plain))
        parts.append(text % {"days": format_values(plain)})
    for back in sorted(rule.before_last, reverse=True):
        if back == 0:
            parts.append(_("the last day of the month"))
            continue
        text = ngettext(
            "the day before the last day of the month", "the day %(count)d days before the last day of the month", back
        )
        parts.append(text % {"count": back})
    for day in sorted(rule.nearest - {31}):
        text = _("the working day nearest to day %(day)d of the month")
        if day > 28:
            text = _("the working day nearest to day %(day)d of the month, or to its last day")
        parts.append(text % {"day": day})
    if 31 in rule.nearest:
        parts.append(_("the last working day of the month"))
    return _("on %(days)s") % {"days": join_parts(parts)}


def _format_weekdays(rule: DayRule) -> str:
    """Return weekdays, Monday first; a range over the end of the week is one range: "Friday to Monday"."""
    found = split_runs(sorted((number + 6) % 7 for number in list_bits(rule.weekdays)))
    if len(found) > 1 and found[0][0] == 0 and found[-1][-1] == 6 and len(found[0]) + len(found[-1]) > 2:
        found = [*found[1:-1], found[-1] + found[0]]
    names = [name for run in found for name in format_run(run, lambda number: str(WEEKDAYS[number]))]
    for nth, weekday in sorted((nth, (number + 6) % 7) for number, nth in rule.nth):
        names.append(_NTH[nth] % {"weekday": WEEKDAYS[weekday]})
    return join_parts(names)


#: Minimum values of a range, and of a series of steps. Fewer values are listed.
SHORTEST_RUN = 3
SHORTEST_SERIES = 4


def list_bits(mask: int) -> list[int]:
    return [position for position in range(mask.bit_length()) if mask >> position & 1]


def join_parts(parts: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    if len(parts) == 1:
        return parts[0]
    return _("%(some)s and %(last)s") % {"some": ", ".join(parts[:-1]), "last": parts[-1]}


def format_range(first: str, last: str) -> str:
    return _("%(first)s to %(last)s") % {"first": first, "last": last}


def format_values(values: Sequence[int], name: Callable[[int], str] = str) -> str:
    """Return ascending values as ranges, single values, or one series of steps; other values give another text."""
    step = values[1] - values[0] if len(values) >= SHORTEST_SERIES else 1
    if step > 1 and list(values) == list(range(values[0], values[-1] + 1, step)):
        span = format_range(name(values[0]), name(values[-1]))
        return _("%(span)s in steps of %(step)d") % {"span": span, "step": step}
    return join_parts([text for run in split_runs(values) for text in format_run(run, name)])


def split_runs(values: Sequence[int]) -> list[list[int]]:
    """Split ascending values into runs without gaps."""
    found: list[list[int]] = []
    for value in values:
        if found and found[-1][-1] == value - 1:
            found[-1].append(value)
        else:
            found.append([value])
    return found


def format_run(run: Sequence[int], name: Callable[[int], str]) -> list[str]:
    """Return a run as one range, a short one value by value."""
    return [format_range(name(run[0]), name(run[-1]))] if len(run) >= SHORTEST_RUN else [name(value) for value in run]


#: Maximum times of day that are listed.
MOST_LISTED = 6


def describe_times(second_mask: int, minute_mask: int, hour_mask: int) -> tuple[str, bool]:
    """Return the words, and whether they are a rhythm such as "every hour", which needs no "every day"."""
    seconds, minutes, hours = list_bits(second_mask), list_bits(minute_mask), list_bits(hour_mask)
    if len(hours) == 24:
        return _describe_within_hours(seconds, minutes), True
    if len(seconds) == 1:
        rhythm = _describe_rhythm(hours, "hour") if seconds == [0] and minutes == [0] else None
        if rhythm is not None:
            return rhythm, True
        if seconds == [0] and (span := _describe_span(minutes, hours)) is not None:
            return span, False
        if len(hours) * len(minutes) <= MOST_LISTED:
            times = [format_time(time(hour, minute, seconds[0])) for hour in hours for minute in minutes]
            return _("at %(times)s") % {"times": join_parts(times)}, False
    in_hours = ngettext("in hour %(values)s", "in hours %(values)s", len(hours)) % {"values": format_values(hours)}
    return f"{_describe_within_hours(seconds, minutes, named=False)}, {in_hours}", False


def format_time(value: time | datetime) -> str:
    """Return "09:00", with seconds unless they are 0."""
    return f"{value:%H:%M:%S}" if value.second else f"{value:%H:%M}"


def _describe_within_hours(seconds: Sequence[int], minutes: Sequence[int], *, named: bool = True) -> str:
    """Return the times within each hour; `named` adds "every hour" to plain minutes."""
    if seconds == [0]:
        return _describe_rhythm_of_minutes(minutes) or _describe_minutes(minutes, named=named)
    rhythm = _describe_rhythm(seconds, "second")
    if rhythm is not None:
        return rhythm if len(minutes) == 60 else f"{rhythm}, {_describe_minutes(minutes, named=named)}"
    on_minutes = None if minutes == [0] else _describe_rhythm_of_minutes(minutes)
    at_seconds = ngettext("at second %(values)s", "at seconds %(values)s", len(seconds)) % {
        "values": format_values(seconds)
    }
    return f"{on_minutes or _describe_minutes(minutes, named=named)}, {at_seconds}"


def _describe_span(minutes: Sequence[int], hours: Sequence[int]) -> str | None:
    """Return "every 5 minutes from 09:00 to 17:55" for consecutive hours, None for other shapes."""
    rhythm = _describe_rhythm_of_minutes(minutes)
    if len(minutes) == 1:
        rhythm = _format_every("hour", 1) if len(hours) > 3 else None
    if rhythm is None or len(split_runs(hours)) != 1 or len(hours) * len(minutes) <= 2:
        return None
    first, last = format_time(time(hours[0], minutes[0])), format_time(time(hours[-1], minutes[-1]))
    return _("%(rhythm)s from %(first)s to %(last)s") % {"rhythm": rhythm, "first": first, "last": last}


def _describe_minutes(minutes: Sequence[int], *, named: bool) -> str:
    values = {"values": format_values(minutes)}
    if named:
        return ngettext("every hour at minute %(values)s", "every hour at minutes %(values)s", len(minutes)) % values
    return ngettext("at minute %(values)s", "at minutes %(values)s", len(minutes)) % values


def _describe_rhythm_of_minutes(minutes: Sequence[int]) -> str | None:
    return _format_every("hour", 1) if minutes == [0] else _describe_rhythm(minutes, "minute")


def _describe_rhythm(values: Sequence[int], unit: str) -> str | None:
    """Return the words for `*/n` if n divides the round evenly and leaves at least two values, else None."""
    size = 24 if unit == "hour" else 60
    step = size // len(values)
    return _format_every(unit, step) if len(values) > 1 and list(values) == list(range(0, size, step)) else None


_EVERY = {
    "second": ngettext_lazy("every second", "every %(count)d seconds", "count"),
    "minute": ngettext_lazy("every minute", "every %(count)d minutes", "count"),
    "hour": ngettext_lazy("every hour", "every %(count)d hours", "count"),
}


def _format_every(unit: str, step: int) -> str:
    return str(_EVERY[unit] % {"count": step})
