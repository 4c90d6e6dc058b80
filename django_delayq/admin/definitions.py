"""Definitions in words: what differs between two, and which one a run used. Secrets are redacted."""

from datetime import datetime, timedelta
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Definition, Run, Schedule
from ..models.differences import FIELDS, RECURRENCE, SWITCH, Unit, Values, differing, from_json, values_of
from ..text import plain, redact_arguments
from . import display
from .durations import format_duration
from .glance import recurrence_words

#: Maximum characters of a text on one line; a longer one is a block.
LINE = 100


#: The label of a unit, and its old and new value.
Change = tuple[str, display.Html, display.Html]


def changes(before: Values, after: Values) -> list[Change]:
    """Return the differences between two definitions; fields that belong together are one change."""
    found = []
    for unit in differing(before, after):
        label = _("recurrence") if unit is RECURRENCE else str(FIELDS[unit.name].verbose_name)
        was, now = _format_unit(unit, before), _format_unit(unit, after)
        if was == now:
            now = format_html('{} <span class="delayq-note">{}</span>', now, _("differs in what is hidden"))
        found.append((label, was, now))
    return found


def _format_unit(unit: Unit, values: Values) -> display.Html:
    if unit is RECURRENCE:
        return _format_recurrence(values)
    if unit is SWITCH:
        reason = values["pause_reason"]
        return _("yes") if values["enabled"] else _("no, %(reason)s") % {"reason": reason} if reason else _("no")
    if unit.name in ("args", "kwargs"):
        both = redact_arguments(values["args"], values["kwargs"], display.parameters_of(values["task"]))
        return _text(display.pretty_json(both[unit.name == "kwargs"]))
    value = values[unit.name]
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, datetime):
        return display.instant(value, display.zone_of(Schedule(timezone=values["timezone"])))
    choices: Any = FIELDS[unit.name].flatchoices
    return _text(str(dict(choices).get(value, value)) if value is not None else "")


def _text(text: str) -> display.Html:
    return display.block(text) if len(text) > LINE or "\n" in text else plain(text) or "–"


def _format_recurrence(values: Values) -> SafeString:
    typed = values["cron"] if values["kind"] == Schedule.Kind.CRON else ""
    words = recurrence_words(Schedule(**{**values, "name": values["name"] or "H"}))
    return format_html('{} <span class="delayq-note delayq-cron">{}</span>', words, plain(typed))


def definition_of_run(run: Run, history: str) -> display.Html:
    """Format a run's definition, and its differences from the current one; `history`: address of the edits."""
    schedule = Schedule.objects.filter(pk=run.schedule_id or 0).first()
    if schedule is None:
        return _("Not kept: the schedule was deleted.")
    kept = Definition.objects.of_generation(schedule.pk, run.generation)
    link = format_html('<a href="{}">{}</a>', history, _("History"))
    if kept is None and run.generation != schedule.generation:
        why = _("Not kept: it was replaced by a bulk update or by SQL, or more than fifty definitions ago.")
        return format_html("{} {}", why, link)
    values = values_of(schedule) if kept is None else from_json(kept.values)
    since = changes(values, values_of(schedule))
    context = {
        "recurrence": _format_recurrence(values), "link": link, "changes": since,
        "calls": [
            (FIELDS[name].verbose_name, _format_unit(Unit(name, (name,)), values))
            for name in ("args", "kwargs") if values[name]
        ],
        "text": _("The schedule was changed since.") if since else _("It stands as it was."),
        "before": _("When it ran"), "after": _("Now"),
    }  # fmt: skip
    return SafeString(render_to_string("admin/django_delayq/run/definition.html", context))
