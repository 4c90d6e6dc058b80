"""Definitions in words: what differs between two, and which one a run used. Secrets are redacted."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

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
TEMPLATE = "admin/django_delayq/changes.html"


class Change(NamedTuple):
    """A field with its old and new value."""

    label: str
    before: display.Html
    after: display.Html


def changes(before: Values, after: Values) -> list[Change]:
    """Return the differences between two definitions; fields that belong together are one change."""
    found = []
    for unit in differing(before, after):
        label = _("recurrence") if unit is RECURRENCE else str(FIELDS[unit.name].verbose_name)
        was, now = shown(unit, before), shown(unit, after)
        if was == now:
            now = format_html('{} <span class="delayq-note">{}</span>', now, _("differs in what is hidden"))
        found.append(Change(label, was, now))
    return found


def shown(unit: Unit, values: Values) -> display.Html:
    """Format the values of a unit."""
    if unit is RECURRENCE:
        return recurrence(values)
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


def recurrence(values: Values) -> SafeString:
    """Format a recurrence in words, followed by its cron expression."""
    typed = values["cron"] if values["kind"] == Schedule.Kind.CRON else ""
    words = recurrence_words(Schedule(**{**values, "name": values["name"] or "H"}))
    return format_html('{} <span class="delayq-note delayq-cron">{}</span>', words, plain(typed))


def listed(rows: Sequence[Change]) -> SafeString:
    """Format the differences as a list."""
    return SafeString(render_to_string(TEMPLATE, {"changes": rows}))


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
    told = changes(values, values_of(schedule))
    calls = [
        (FIELDS[name].verbose_name, shown(Unit(name, (name,)), values)) for name in ("args", "kwargs") if values[name]
    ]
    text = _("It stands as it was.") if not told else _("The schedule was changed since.")
    return SafeString(
        render_to_string(
            "admin/django_delayq/run/definition.html",
            {"recurrence": recurrence(values), "calls": calls, "text": text, "link": link,
             "changes": told, "before": _("When it ran"), "after": _("Now")},
        )
    )  # fmt: skip
