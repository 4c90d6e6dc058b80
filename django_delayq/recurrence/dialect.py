"""The cron dialect: compiles text to fields. Never walks time; `grammar.py` reads the single fields."""

import re
from collections.abc import Sequence
from datetime import date, timedelta

from ..exceptions import InvalidRecurrence
from .fields import DayRule, Fields
from .grammar import SPECS, read_field
from .point import DAY

MAX_LENGTH = 255
MACROS = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
REFUSED_MACROS = {
    "@EVERY": "@every is an interval, not a cron expression. Use the kind 'every' and write the interval there.",
    "@REBOOT": (
        "@reboot is not supported: workers restart at any time, and there are many. "
        "Write a time, or use the kind 'once'."
    ),
}
#: The wall-clock second at which the year 9600 begins: the last 400-year cycle of the calendar, which ends with 9999.
_LAST_CYCLE = (date(9600, 1, 1) - date(1970, 1, 1)).days * DAY

_WORD = re.compile(r"\S+", re.ASCII)
#: Start of a seventh field that is a year; other texts of seven words are phrases.
_YEAR = re.compile(r"[*?]|[0-9]{4}")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(MS|D|H|M|S)")
_EVERY = re.compile(rf"\s*@EVERY\s+((?:{_DURATION.pattern})+)\s*", re.ASCII)
_UNITS = {
    "D": timedelta(days=1),
    "H": timedelta(hours=1),
    "M": timedelta(minutes=1),
    "S": timedelta(seconds=1),
    "MS": timedelta(milliseconds=1),
}


def parse_every(text: str) -> timedelta | None:
    """Return the interval of `@every 1h30m` (units d, h, m, s, ms), or None if the text is not one."""
    match = _EVERY.fullmatch(text.upper()) if len(text) <= MAX_LENGTH else None
    if match is None:
        return None
    try:
        parts = (float(amount) * _UNITS[unit] for amount, unit in _DURATION.findall(match[1]))
        return sum(parts, timedelta(0)) or None
    except OverflowError:
        return None


def compile_cron(expression: str, key: str) -> Fields:
    """Return the compiled expression; `key` feeds `H`."""
    if len(expression) > MAX_LENGTH:
        raise InvalidRecurrence(
            f"A cron expression has at most {MAX_LENGTH} characters, this one has {len(expression)}. "
            "Use ranges and steps instead of long lists, or several schedules."
        )
    if not expression.isascii():
        odd = next(character for character in expression if not character.isascii())
        raise InvalidRecurrence(f"A cron expression is plain ASCII; {expression!r} has {odd!r}.")
    words = _split(expression)
    if len(words) == 5:
        words = ["0", *words]
    rule = DayRule(both=words[3].startswith(("*", "?")) or words[5].startswith(("*", "?")))
    masks = (read_field(spec, word, key, rule) for spec, word in zip(SPECS, words, strict=True))
    seconds, minutes, hours, rule.days, months, rule.weekdays = masks
    fixed = not words[1].startswith("*") and not words[2].startswith("*")
    fields = Fields(seconds, minutes, hours, months, rule, fixed)
    if fields.find_first(_LAST_CYCLE) is None:
        raise _build_never_error(words)
    return fields


def _split(text: str) -> list[str]:
    words = _WORD.findall(text)
    if not words:
        raise InvalidRecurrence("The cron expression is empty. Write five fields, such as 0 9 * * 1-5.")
    if re.match(r"(CRON_)?TZ=", words[0], re.IGNORECASE):
        raise InvalidRecurrence(
            f"A time zone in the expression ({words[0]!r}) is not supported. Write it in the field 'timezone'."
        )
    if words[0].startswith("@"):
        return _expand_macro(words)
    if len(words) == 7 and _YEAR.match(words[6]):
        raise InvalidRecurrence(
            f"Seven fields: a year ({words[6]!r}) is not supported. Leave it out, and bound the "
            "schedule with its start and end."
        )
    if len(words) not in (5, 6):
        raise InvalidRecurrence(
            f"{len(words)} field{'s' if len(words) > 1 else ''} in {text!r}, but cron has 5 (minute hour "
            "day-of-month month day-of-week), or 6 with the seconds first."
        )
    return words


def _expand_macro(words: list[str]) -> list[str]:
    name = words[0].upper()
    if len(words) == 1 and name in MACROS:
        return MACROS[name].split()
    known = ", ".join(name.lower() for name in MACROS)
    unknown = f"{' '.join(words)!r} is not a macro. Known are {known}, each on its own."
    raise InvalidRecurrence(REFUSED_MACROS.get(name, unknown))


def _build_never_error(words: Sequence[str]) -> InvalidRecurrence:
    fields = [f"day-of-month {words[3]!r}", f"month {words[4]!r}"]
    if words[5] not in ("*", "?"):
        fields.append(f"day-of-week {words[5]!r}")
    return InvalidRecurrence(
        f"This date never comes: {', '.join(fields)} have no day in common. Choose a day that the month has; "
        "L is its last one."
    )
