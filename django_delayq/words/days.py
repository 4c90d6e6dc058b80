"""Day of month, month and day of week of a cron expression in words. Knows no times of day.

The fields of days come as the normalised text that `Fields.source` holds: `5#2` and `L-3` have no mask. A day runs if
either field matches; if one of them begins with `*`, both must (the rule of Vixie and Debian cron).
"""

from collections.abc import Sequence

from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..timing.fields import DayRule
from ..timing.grammar import DAY_OF_MONTH, DAY_OF_WEEK, Items, read_field
from .sets import join, runs, shown, span, values_of

ALL_MONTHS = 0b1111111111110
ALL_DAYS = 2**32 - 2
ALL_WEEKDAYS = 0b1111111


def describe_days(day: str, month: str, weekday: str, months: int) -> str:
    """Return the words for the days, empty for every day of the year."""
    rule = _read(day, weekday)
    plain = month.isdecimal() and weekday == "*" and day.isdecimal()
    if plain:
        return _("on %(day)d %(month)s") % {"day": int(day), "month": MONTHS[int(month)]}
    found = _days(rule)
    if months != ALL_MONTHS:
        names = shown(values_of(months), lambda number: str(MONTHS[number]))
        found = [*(found or [_("every day")]), _("in %(months)s") % {"months": names}]
    return ", ".join(found)


def _read(day: str, weekday: str) -> DayRule:
    days, weekdays = read_field(DAY_OF_MONTH, day, ""), read_field(DAY_OF_WEEK, weekday, "")
    return DayRule(
        days=_mask(days, 1, 31),
        before_last=tuple(sorted(set(days.before_last))),
        nearest=tuple(sorted(set(days.nearest))),
        last_working_day=days.last_working_day,
        weekdays=_mask(weekdays, 0, 6),
        nth=tuple(sorted(set(weekdays.nth), key=lambda pair: (pair[1], (pair[0] + 6) % 7))),
        last=tuple(sorted(set(weekdays.last), key=lambda number: (number + 6) % 7)),
        both=day.startswith("*") or weekday.startswith("*"),
    )


def _mask(items: Items, low: int, high: int) -> int:
    """Return the values of plain items, `*`, `*/n`, `a`, `a-b` or `a-b/n`, as bits."""
    mask = 0
    for item in items.plain:
        values, _slash, step = item.partition("/")
        first, _dash, last = (str(low), "-", str(high)) if values == "*" else values.partition("-")
        for value in range(int(first), int(last or first) + 1, int(step or 1)):
            mask |= 1 << (value % 7 if high == 6 else value)
    return mask


def _days(rule: DayRule) -> list[str]:
    any_day, any_weekday = rule.days == ALL_DAYS, rule.weekdays == ALL_WEEKDAYS
    if (any_day and any_weekday) or (not rule.both and (any_day or any_weekday)):
        return []
    if any_weekday:
        return [_on_days(rule)]
    weekdays, special = _on_weekdays(rule)
    on_weekdays = _("on %(days)s") % {"days": weekdays}
    if any_day:
        return [on_weekdays if special else weekdays]
    if rule.both:
        return [_("%(weekdays)s, but only %(days)s") % {"weekdays": weekdays, "days": _on_days(rule)}]
    return [_("%(days)s or %(weekdays)s") % {"days": _on_days(rule), "weekdays": on_weekdays}]


def _on_days(rule: DayRule) -> str:
    parts = []
    plain = values_of(rule.days)
    if plain:
        text = ngettext("day %(days)s of the month", "days %(days)s of the month", len(plain))
        parts.append(text % {"days": shown(plain)})
    for back in sorted(rule.before_last, reverse=True):
        if back == 0:
            parts.append(_("the last day of the month"))
            continue
        text = ngettext(
            "the day before the last day of the month", "the day %(count)d days before the last day of the month", back
        )
        parts.append(text % {"count": back})
    for day in rule.nearest:
        if day == 31:  # the nearest within the month, so in shorter months that to its last day
            continue
        text = _("the working day nearest to day %(day)d of the month")
        if day > 28:
            text = _("the working day nearest to day %(day)d of the month, or to its last day")
        parts.append(text % {"day": day})
    if rule.last_working_day or 31 in rule.nearest:
        parts.append(_("the last working day of the month"))
    return _("on %(days)s") % {"days": join(parts)}


def _on_weekdays(rule: DayRule) -> tuple[str, bool]:
    """Return the words, and whether they are more than names of weekdays."""
    plain = _weekdays(values_of(rule.weekdays))
    special = [_nth(number) % {"weekday": _weekday(weekday)} for weekday, number in rule.nth]
    special += [_("the last %(weekday)s of the month") % {"weekday": _weekday(weekday)} for weekday in rule.last]
    return join([*plain, *special]), bool(special)


def _nth(number: int) -> str:
    return {
        1: _("the first %(weekday)s of the month"),
        2: _("the second %(weekday)s of the month"),
        3: _("the third %(weekday)s of the month"),
        4: _("the fourth %(weekday)s of the month"),
        5: _("the fifth %(weekday)s of the month"),
    }[number]


def _weekdays(numbers: Sequence[int]) -> list[str]:
    """Return weekdays, Monday first; a run over the end of the week is one run: "Friday to Monday"."""
    order = sorted((number + 6) % 7 for number in numbers)
    found = runs(order)
    if len(found) > 1 and found[0][0] == 0 and found[-1][-1] == 6 and len(found[0]) + len(found[-1]) > 2:
        found = [*found[1:-1], found[-1] + found[0]]
    names = []
    for run in found:
        names += (
            [span(str(WEEKDAYS[run[0]]), str(WEEKDAYS[run[-1]]))]
            if len(run) > 2
            else [str(WEEKDAYS[number]) for number in run]
        )
    return names


def _weekday(number: int) -> str:
    """Return the name of a weekday with Sunday as 0."""
    return str(WEEKDAYS[(number + 6) % 7])
