"""Durations as users write them, such as `1h 30m`. Independent of forms."""

import re
from datetime import timedelta

from django.utils.dateparse import parse_duration as parse_standard
from django.utils.translation import gettext as _

#: Maximum duration: a century, which every database can store.
LONGEST = timedelta(days=36_525)

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "us": timedelta(microseconds=1),
}
_PART = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|us|[dhms])\s*")
#: A point or comma that may be a decimal one or a thousands separator; in `0.250` it can only be the former.
_AMBIGUOUS = re.compile(r"(?<![\w:.,])[1-9][0-9]{0,2}[.,][0-9]{3}(?![0-9])")


def format_duration(value: timedelta, parts: int | None = None) -> str:
    """Return `1h 30m`, exactly, or only the first `parts` units."""
    if value < timedelta(0):
        return f"-{format_duration(-value, parts)}"
    shown: list[str] = []
    for name, length in _UNITS.items():
        amount, value = divmod(value, length)
        if amount:
            shown.append(f"{amount}{name}")
        if shown and len(shown) == parts:
            break
    return " ".join(shown) or "0s"


def parse_duration(text: str) -> timedelta:
    """Parse `90`, `90s`, `15m`, `1h30m`, `2d`, `00:15:00` or `PT15M`; a bare number is seconds.

    Raises:
        ValueError: It is not a duration, or out of range; the message says what to write.
    """
    text = text.strip()
    if _AMBIGUOUS.search(text):
        message = _("“%(text)s” has a point that may be one between thousands. Write 1000 or 1.5, for example.")
        raise ValueError(message % {"text": text})
    try:
        value = _read(text.lower())
    except OverflowError:
        value = timedelta.max
    if value is None or value < timedelta(0):
        raise ValueError(_("“%(text)s” is not a duration. Write 90s, 15m, 1h30m, 2d or 00:15:00.") % {"text": text})
    if value > LONGEST:
        raise ValueError(_("A duration is at most %(days)d days.") % {"days": LONGEST.days})
    return value


def _read(text: str) -> timedelta | None:
    parts = _PART.findall(text)
    if parts and not _PART.sub("", text):
        lengths = {unit: _UNITS[unit] * float(amount) for amount, unit in parts}
        return sum(lengths.values(), timedelta(0)) if len(lengths) == len(parts) else None
    # 15:00 may be hours or minutes
    return None if text.count(":") == 1 else parse_standard(text.upper() if text.startswith("p") else text)
