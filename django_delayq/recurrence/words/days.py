"""Day of month, month and day of week of a cron expression in words. Knows no times of day.

A day runs if either field matches; if one of them begins with `*`, both must (the rule of Vixie and Debian cron).
"""

from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..fields import LAST, DayRule
from .sets import join, runs, said, shown, values_of

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
    """Return the words for the days, empty for every day of the year."""
    days, special = values_of(rule.days), rule.before_last or rule.nearest
    if rule.both and rule.weekdays == ALL_WEEKDAYS and len(days) == months.bit_count() == 1 and not special:
        return _("on %(day)d %(month)s") % {"day": days[0], "month": MONTHS[values_of(months)[0]]}
    found = _days(rule)
    if months != ALL_MONTHS:
        names = shown(values_of(months), lambda number: str(MONTHS[number]))
        found = [*(found or [_("every day")]), _("in %(months)s") % {"months": names}]
    return ", ".join(found)


def _days(rule: DayRule) -> list[str]:
    any_day, any_weekday = rule.days == ALL_DAYS, rule.weekdays == ALL_WEEKDAYS
    if (any_day and any_weekday) or (not rule.both and (any_day or any_weekday)):
        return []
    if any_weekday:
        return [_on_days(rule)]
    weekdays = _weekdays(rule)
    on_weekdays = _("on %(days)s") % {"days": weekdays}
    if any_day:
        return [on_weekdays if rule.nth else weekdays]
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
    for day in sorted(rule.nearest - {31}):
        text = _("the working day nearest to day %(day)d of the month")
        if day > 28:
            text = _("the working day nearest to day %(day)d of the month, or to its last day")
        parts.append(text % {"day": day})
    if 31 in rule.nearest:
        parts.append(_("the last working day of the month"))
    return _("on %(days)s") % {"days": join(parts)}


def _weekdays(rule: DayRule) -> str:
    """Return weekdays, Monday first; a run over the end of the week is one run: "Friday to Monday"."""
    found = runs(sorted(_from_monday(number) for number in values_of(rule.weekdays)))
    if len(found) > 1 and found[0][0] == 0 and found[-1][-1] == 6 and len(found[0]) + len(found[-1]) > 2:
        found = [*found[1:-1], found[-1] + found[0]]
    names = [name for run in found for name in said(run, lambda number: str(WEEKDAYS[number]))]
    for nth, weekday in sorted((nth, _from_monday(number)) for number, nth in rule.nth):
        names.append(_NTH[nth] % {"weekday": WEEKDAYS[weekday]})
    return join(names)


def _from_monday(number: int) -> int:
    return (number + 6) % 7
