"""Converts other cron dialects to ours: sets of numbers to text, and the rule for the two day fields.

Note [Two day fields]
If both day of month and day of week are restricted, our dialect matches either, unless one of them begins with `*`:
then both must match. Other schedulers always require both (Celery, Huey, APScheduler, rq-scheduler), or match either
unless one is a plain `*` (croniter). For "either", a leading `*` is replaced by numbers. For "both", a part that begins
with `*` and adds nothing is put in front: `*/31` is day 1, `*/7` is Sunday. If neither day is in its field, whole weeks
of the month are tried: `8-14` and Tuesday is `TUE#2`. The rest, such as every Friday the 13th, has no equivalent.
"""

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from ...exceptions import InvalidRecurrence
from ...recurrence import Cron
from ...recurrence.dialect import MACROS, compile_cron
from ...recurrence.fields import DayRule
from ...recurrence.grammar import SPECS, FieldSpec, read_field
from ...recurrence.point import seconds
from ...recurrence.preview import clock_changes
from ...recurrence.words import runs, values_of
from ...recurrence.zone import DAY, LONGEST_SHIFT, stretch
from .entry import Refused

#: Seconds ahead in which clock changes are searched; each year has two.
AHEAD = 370 * DAY
_ONE_TO_ITSELF = re.compile(r"\b(\w+)-\1\b", re.IGNORECASE)
_ALL_DAYS, _ALL_WEEKDAYS = (1 << 32) - 2, (1 << 7) - 1
_WEEKS = [sum(1 << day for day in range(7 * week + 1, min(7 * week + 7, 31) + 1)) for week in range(5)]


def spelled(place: int, numbers: Collection[int], text: object = "") -> str:
    """Return a cron field for these numbers: `text` itself if it has the same meaning in our dialect.

    `place` is the index of the field in an expression with seconds.
    """
    spec = SPECS[place]
    mask = sum(1 << number for number in {number % 7 if place == 5 else number for number in numbers})
    if isinstance(text, str) and text:
        try:
            if read_field(spec, text.upper(), "", DayRule(both=False)) == mask:
                return text
        except InvalidRecurrence:
            pass
    return _ranges(spec, mask)


def joined(fields: Sequence[str], *, both: bool) -> str:
    """Return an expression of five or six fields, whose day fields keep their meaning. See Note [Two day fields].

    Raises:
        Refused: Our dialect has no equivalent.
        InvalidRecurrence: A field is not valid in our dialect.
    """
    *others, day, month, weekday = fields
    rule = compile_cron(" ".join(fields), "x").rule
    if (rule.days == _ALL_DAYS and (both or "*" in weekday)) or day == "?":
        day = "*"
    if (rule.weekdays == _ALL_WEEKDAYS and (both or "*" in day)) or weekday == "?":
        weekday = "*"
    if "*" in (day, weekday):
        pass
    elif not both:
        day, weekday = _without_star(SPECS[3], day), _without_star(SPECS[5], weekday)
    elif not day.startswith("*") and not weekday.startswith("*"):
        day, weekday = _both(rule, day, weekday)
    return " ".join((*others, day, month, weekday))


def _both(rule: DayRule, day: str, weekday: str) -> tuple[str, str]:
    if rule.days & 2:
        return f"*/31,{day}", weekday
    if rule.weekdays & 1:
        return day, f"*/7,{weekday}"
    weeks = [week for week in range(5) if _WEEKS[week] & rule.days == _WEEKS[week]]
    special = rule.nth or rule.nearest or rule.before_last
    if not special and sum(_WEEKS[week] for week in weeks) == rule.days:
        days = [number for number in range(7) if rule.weekdays >> number & 1]
        return "*", ",".join(f"{number}#{week + 1}" for number in days for week in weeks)
    raise Refused(
        f"It runs where day of month {day!r} and day of week {weekday!r} both match, which no cron expression says "
        "here: with neither day 1 nor Sunday among them, either matches. Leave the day of week out, and let the task "
        "return on other days."
    )


def from_croniter(text: str) -> str:
    """Convert an expression of croniter's dialect: seconds come last, and either day field matches.

    Raises:
        Refused, InvalidRecurrence: Our dialect has no equivalent.
    """
    fields = text.split()
    if len(fields) == 1 and fields[0].upper() in MACROS:
        return text.strip()
    if len(fields) == 7 and fields[6] == "*":
        fields.pop()
    if len(fields) == 6:
        fields = [fields[5], *fields[:5]]
    if len(fields) not in (5, 6):
        raise Refused(f"{text!r} is no cron expression of five or six fields.")
    if same := _ONE_TO_ITSELF.search(text):
        raise Refused(
            f"{same[0]!r} is every value to croniter, and {same[1]} alone here: write which of both is meant."
        )
    fields[-1] = _weekdays(fields[-1])
    rule = compile_cron(" ".join(fields), "x").rule
    # In croniter, 5#2 and 15W apply to both sides of its "either", so the other day field adds nothing.
    if rule.nth and not rule.nearest:
        fields[-3] = "*"
    elif rule.nearest and not rule.nth:
        fields[-1] = "*"
    return joined(fields, both=bool(rule.nth))


def _weekdays(text: str) -> str:
    """Convert a field to our spelling: L5 is 5L here, and SAT-SUN ends with 7."""
    items = text.upper().split(",")
    items = [f"{item[1:]}L" if item[:1] == "L" and item[1:].isalnum() else item for item in items]
    return ",".join(re.sub("-(SUN|0)$", "-7", item) for item in items)


def from_crontab_package(text: str) -> str:
    """Convert an expression of the package `crontab`, which rq-scheduler uses: both day fields must match.

    Raises:
        Refused, InvalidRecurrence: Our dialect has no equivalent.
    """
    if text.strip().upper() in MACROS:
        return text.strip()
    fields = text.split()
    if len(fields) == 7 and fields[6] == "*":
        fields.pop()
    elif len(fields) == 6 and fields.pop() != "*":  # the sixth field is a year there
        raise Refused(f"{text!r} has a year, which a schedule has not: bound it with its start and end.")
    if len(fields) not in (5, 6):
        raise Refused(f"{text!r} is no cron expression of five to seven fields.")
    fields[-1] = _weekdays(fields[-1])
    return joined(fields, both=True)


def clock_note(expression: str, zone: str, now: datetime) -> tuple[str, ...]:
    """Return a note on the effects of the next clock changes on an expression; most expressions have none."""
    cron, second = Cron(expression, zone), seconds(now)
    notes: dict[str, None] = {}
    while cron.fields.fixed and (second := stretch(cron._zone, second)[1]) < seconds(now) + AHEAD:
        change, around = datetime.fromtimestamp(second, UTC), timedelta(seconds=LONGEST_SHIFT)
        point = change - around
        while point < change + around and (following := cron.next_after(point)) is not None:
            day = following.astimezone(cron._zone).date()
            notes |= dict.fromkeys(f"on {day} {note}" for note in clock_changes(cron, point, following))
            point = following
    return (f"clocks change: {'; '.join(notes)} (dst_gap, dst_overlap)",) if notes else ()


def _without_star(spec: FieldSpec, text: str) -> str:
    return ",".join(f"{spec.low}-{spec.high}{item[1:]}" if item[:1] == "*" else item for item in text.split(","))


def _ranges(spec: FieldSpec, mask: int) -> str:
    ends = [(run[0], run[-1]) for run in runs(values_of(mask))]
    if ends == [(spec.low, spec.high)]:
        return "*"
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ends)
