"""Recurrences in words, translated: "at 09:00, Monday to Friday, Europe/Riga". Computes no due point, reads no row."""

from datetime import datetime, timedelta

from django.utils.translation import gettext as _

from .. import Cron, Every, Once, Recurrence, Windowed, parse_every
from .days import describe_days
from .phrases import understand
from .times import describe_times

_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("µs", 1))


def describe(recurrence: Recurrence) -> str:
    """Return a recurrence in the current language, such as "at 09:00, Monday to Friday, Europe/Riga".

    Two cron expressions with the same words match the same local times. What happens around a change of the clock is
    not part of the words; see `preview`.
    """
    if isinstance(recurrence, Cron):
        return f"{_cron(recurrence)}, {recurrence.timezone}"
    if isinstance(recurrence, Every):
        return _every(recurrence.every)
    if isinstance(recurrence, Once):
        return _("once at %(instant)s") % {"instant": _instant(recurrence.at)}
    if isinstance(recurrence, Windowed):
        words = describe(recurrence.recurrence)
        if recurrence.start is not None:
            words += ", " + _("from %(instant)s") % {"instant": _instant(recurrence.start)}
        if recurrence.end is not None:
            words += ", " + _("until %(instant)s") % {"instant": _instant(recurrence.end)}
        return words
    return str(recurrence)


def offer(text: str) -> tuple[str, str] | None:
    """Return the cron expression, or the `@every` of an interval, that a phrase may mean, and its words without a zone.

    None where none is understood. See `phrases`, Note [Phrases are offers].
    """
    expression = understand(text)
    if expression is None:
        return None
    every = parse_every(expression)
    return expression, _cron(Cron(expression)) if every is None else _every(every)


def _every(interval: timedelta) -> str:
    return _("every %(duration)s") % {"duration": _duration(interval)}


def _cron(cron: Cron) -> str:
    fields = cron.fields
    times, is_rhythm = describe_times(fields.seconds, fields.minutes, fields.hours)
    days = describe_days(fields.rule, fields.months)
    if not days:
        return times if is_rhythm else f"{times}, {_('every day')}"
    return f"{times}, {days}"


def _instant(instant: datetime) -> str:
    precise = instant.second or instant.microsecond
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC" if precise else f"{instant:%Y-%m-%d %H:%M} UTC"


def _duration(duration: timedelta) -> str:
    rest = duration // timedelta(microseconds=1)
    parts = []
    for unit, size in _UNITS:
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts)
