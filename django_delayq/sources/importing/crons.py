"""Converts other cron dialects to ours. croniter judges whether an expression has the same days.

Note [Day fields keep their meaning]
If both day of month and day of week are restricted, our dialect matches either, unless one of them begins with `*`:
then both must match. Other schedulers always require both (Celery, Huey, APScheduler, rq-scheduler), or match either
unless one is a plain `*` (croniter). So several spellings are tried: for "either" a leading `*` becomes numbers; for
"both" a part that begins with `*` and adds nothing is put in front (`*/31` is day 1, `*/7` is Sunday), or whole weeks
become `TUE#2`. The rest, such as every Friday the 13th, has no equivalent.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from croniter import croniter

from ...exceptions import InvalidRecurrence
from ...recurrence.dialect import MACROS, compile_cron
from ...recurrence.fields import DayRule
from ...recurrence.grammar import SPECS, read_field
from ...recurrence.point import DAY
from ...recurrence.words import list_bits, split_runs
from .entry import Refused

#: Wall-clock seconds between which days are compared: eight years with two leap days.
_BEGIN, _END = 20_454 * DAY, 23_376 * DAY
_WEEKS = [sum(1 << day for day in range(7 * week + 1, min(7 * week + 7, 31) + 1)) for week in range(5)]
_ONE_TO_ITSELF = re.compile(r"\b(\w+)-\1\b", re.IGNORECASE)


def spell_field(place: int, numbers: Collection[int], text: object = "") -> str:
    """Return a cron field for these numbers, or `text` if it means the same. `place` counts from the seconds."""
    spec = SPECS[place]
    mask = sum(1 << number for number in {number % 7 if place == 5 else number for number in numbers})
    try:
        if text and isinstance(text, str) and read_field(spec, text, "", DayRule(both=False)) == mask:
            return text
    except InvalidRecurrence:
        pass
    ends = [(run[0], run[-1]) for run in split_runs(list_bits(mask))]
    if ends == [(spec.low, spec.high)]:
        return "*"
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ends)


def join_fields(fields: Sequence[str], *, both: bool, weekdays: str = "") -> str:
    """Return an expression: see Note [Day fields keep their meaning]. `weekdays`: the last field of croniter.

    Raises Refused without an equivalent, and InvalidRecurrence for an invalid field.
    """
    *others, day, month, weekday = ("*" if text == "?" else text for text in fields)
    rule = compile_cron(" ".join([*others, day, month, weekday]), "x").rule
    theirs = f"0 0 {day} {month} {weekdays or weekday}"
    for days in _spell_days(rule, day, weekday):
        if "*" in (day, weekday) or _has_same_days(f"0 0 {days[0]} {month} {days[1]}", theirs, both=both):
            return " ".join([*others, days[0], month, days[1]])
    raise Refused(
        f"It runs on days that match both day of month {day!r} and day of week {weekday!r}. A cron expression here "
        "cannot express this, because it would match either. Leave the day of week out, and let the task return on "
        "other days."
    )


def _spell_days(rule: DayRule, day: str, weekday: str) -> Iterator[tuple[str, str]]:
    yield day, weekday
    yield "*", weekday
    yield day, "*"
    yield re.sub(r"(^|,)\*", r"\g<1>1-31", day), re.sub(r"(^|,)\*", r"\g<1>0-6", weekday)
    yield f"*/31,{day}", weekday
    yield day, f"*/7,{weekday}"
    weeks = [number for number, mask in enumerate(_WEEKS) if mask & rule.days == mask]
    if weeks:
        yield "*", ",".join(f"{number}#{week + 1}" for number in list_bits(rule.weekdays) for week in weeks)


def _has_same_days(ours: str, theirs: str, *, both: bool) -> bool:
    """Return whether our expression has the points that croniter has for another one."""
    try:
        fields = compile_cron(ours, "x")
    except InvalidRecurrence:
        return False
    other, wall = croniter(theirs, _BEGIN, day_or=not both), _BEGIN
    while wall < _END:
        found, wall = fields.find_first(wall + 1), int(other.get_next())
        if found != wall:
            return False
    return True


def convert_croniter(text: str) -> str:
    """Convert an expression of croniter's dialect: seconds come last, and either day field matches."""
    fields = text.split()
    if len(fields) == 7 and fields[6] == "*":
        fields.pop()
    if len(fields) == 6:
        fields = [fields[5], *fields[:5]]
    if same := _ONE_TO_ITSELF.search(text):
        raise Refused(f"{same[0]!r} means every value in croniter, but only {same[1]} here. Write {same[1]} or *.")
    return _join_texts(text, fields, both=False)


def convert_crontab_package(text: str) -> str:
    """Convert an expression of the package `crontab`, which rq-scheduler uses: both day fields must match."""
    fields = text.split()
    if len(fields) in (6, 7) and fields.pop() != "*":  # the last field is a year there
        raise Refused(f"{text!r} has a year, which a schedule does not have: bound it with its start and end.")
    return _join_texts(text, fields, both=True)


def _join_texts(text: str, fields: list[str], *, both: bool) -> str:
    """Join fields with texts, in which L5 is our 5L, and SAT-SUN ends with our 7."""
    if len(fields) == 1 and fields[0].upper() in MACROS:
        return fields[0]
    if len(fields) not in (5, 6):
        raise Refused(f"{text!r} is not a cron expression of five or six fields.")
    *others, weekday = fields
    items = (re.sub("^L([^,]+)$", r"\1L", item) for item in weekday.upper().split(","))
    ours = ",".join(re.sub("-(SUN|0)$", "-7", item) for item in items)
    return join_fields([*others, ours], both=both, weekdays=weekday.replace("?", "*"))
