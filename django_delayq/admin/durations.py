"""Durations as users write them, such as `1h 30m`. Independent of forms."""

import re
from datetime import timedelta

from django.utils.dateparse import parse_duration as parse_standard
from django.utils.translation import gettext as _

#: Maximum duration: a century, which every database can store.
LONGEST = timedelta(days=36_525)

#: Names of each unit; the first is used for output.
_UNITS = (
    (timedelta(weeks=1), ("w", "week", "weeks")),
    (timedelta(days=1), ("d", "day", "days")),
    (timedelta(hours=1), ("h", "hr", "hrs", "hour", "hours")),
    (timedelta(minutes=1), ("m", "min", "mins", "minute", "minutes")),
    (timedelta(seconds=1), ("s", "sec", "secs", "second", "seconds")),
    (timedelta(milliseconds=1), ("ms",)),
    (timedelta(microseconds=1), ("us", "µs")),
)
_LENGTH_OF = {name: length for length, names in _UNITS for name in names}
_PART = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-zµ]+)\s*,?")
#: Formats that Django parses, except 15:00, which may be hours or minutes.
_STANDARD = re.compile(r"p.*[0-9].*|([0-9]{1,12}|([0-9]{1,6} (days?,? )?)?[0-9]{1,6}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,6})?")
#: A point that may be a decimal point or a thousands separator; in `0.250` it can only be the former.
_AMBIGUOUS = re.compile(r"(?<![\w:.])[1-9][0-9]{0,2}\.[0-9]{3}(?![0-9])")


def format_duration(value: timedelta, parts: int | None = None) -> str:
    """Return `1h 30m`, exactly, or only the first `parts` units."""
    if value < timedelta(0):
        return f"-{format_duration(-value, parts)}"
    shown: list[str] = []
    rest = value
    for length, names in _UNITS[1:]:  # no weeks
        amount, rest = divmod(rest, length)
        if amount:
            shown.append(f"{amount}{names[0]}")
        if shown and parts is not None and len(shown) == parts:
            break
    return " ".join(shown) or "0s"


def parse_duration(text: str) -> timedelta:
    """Parse `90`, `90s`, `15m`, `1h30m`, `2d`, `00:15:00` or `PT15M`; a bare number is seconds.

    Raises:
        ValueError: It is not a duration, or out of range; the message says what to write.
    """
    wanted = text.strip().lower().removeprefix("every ")
    if _AMBIGUOUS.search(wanted):
        message = _("“%(text)s” has a point that may be one between thousands. Write 1000 or 1.5, for example.")
        raise ValueError(message % {"text": text.strip()})
    try:
        value = _read(wanted)
    except OverflowError:
        value = timedelta.max
    if value is None:
        raise ValueError(
            _("“%(text)s” is not a duration. Write 90s, 15m, 1h30m, 2d or 00:15:00.") % {"text": text.strip()}
        )
    if value > LONGEST:
        raise ValueError(_("A duration is at most %(days)d days.") % {"days": LONGEST.days})
    return value


def _read(text: str) -> timedelta | None:
    if _STANDARD.fullmatch(text):
        value = parse_standard(text.upper() if text.startswith("p") else text)
        return value if value is None or value >= timedelta(0) else None
    parts = _PART.findall(text)
    lengths = {_LENGTH_OF[unit]: float(amount) for amount, unit in parts if unit in _LENGTH_OF}
    if not parts or len(lengths) < len(parts) or _PART.sub("", text):
        return None  # empty, an unknown or repeated unit, or other text
    return sum((length * amount for length, amount in lengths.items()), timedelta(0))
