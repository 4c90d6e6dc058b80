"""Durations as people write them: `1h 30m`. Pure text and numbers; knows no form."""

import re
from datetime import timedelta

from django.utils.dateparse import parse_duration as parse_standard
from django.utils.translation import gettext as _

#: A century is more than anything here means, and little enough for every database.
LONGEST = timedelta(days=36_525)

_SHOWN = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
    ("us", timedelta(microseconds=1)),
)
_NAMES = {
    "us": ("us", "µs"),
    "ms": ("ms",),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_UNIT_OF = {name: unit for unit, names in _NAMES.items() for name in names}
_LENGTH = {**dict(_SHOWN), "w": timedelta(weeks=1)}
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_PART = re.compile(r"\s*(?P<amount>[0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(?P<unit>[a-zµ]+)\s*,?")
_STANDARD = re.compile(r"p.*[0-9].*|([0-9]{1,6} (days?,? )?)?[0-9]{1,6}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")


def format_duration(value: timedelta, parts: int | None = None) -> str:
    """Return `1h 30m`, exactly, or cut off after so many parts where `parts` is given."""
    if value < timedelta(0):
        return f"-{format_duration(-value, parts)}"
    shown = []
    rest = value
    for unit, length in _SHOWN:
        amount, rest = divmod(rest, length)
        if amount:
            shown.append(f"{amount}{unit}")
        if shown and parts is not None and len(shown) == parts:
            break
    return " ".join(shown) or "0s"


def parse_duration(text: str) -> timedelta:
    """Return the duration of `90`, `90s`, `15m`, `1h30m`, `2d`, `00:15:00` or `PT15M`; a bare number is seconds.

    Raises:
        ValueError: The text is none of these, or out of range; the message says what to write.
    """
    wanted = text.strip().lower()
    try:
        value = _read(wanted)
    except OverflowError:
        value = timedelta.max
    if value is None:
        raise ValueError(
            _("“%(text)s” is not a duration. Write 90s, 15m, 1h30m, 2d or 00:15:00.") % {"text": text.strip()[:64]}
        )
    if value > LONGEST:
        raise ValueError(_("A duration is at most %(days)d days.") % {"days": LONGEST.days})
    return value


def _read(text: str) -> timedelta | None:
    if _NUMBER.fullmatch(text):
        return timedelta(seconds=float(text))
    if _STANDARD.fullmatch(text):
        value = parse_standard(text.upper() if text.startswith("p") else text)
        return value if value is None or value >= timedelta(0) else None
    return _read_parts(text)


def _read_parts(text: str) -> timedelta | None:
    total, at = timedelta(0), 0
    seen = set()
    while at < len(text):
        match = _PART.match(text, at)
        unit = match and _UNIT_OF.get(match["unit"])
        if match is None or unit is None or unit in seen:
            return None
        seen.add(unit)
        total += float(match["amount"]) * _LENGTH[unit]
        at = match.end()
    return total if seen else None
