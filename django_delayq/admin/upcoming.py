"""Previews beside the inputs of the form: the next due points and the chosen task. Renders HTML; saves nothing."""

import inspect
from copy import copy
from datetime import datetime
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ..calls import commands, registry
from ..exceptions import InvalidRecurrence, UnknownTask
from ..models import Schedule
from ..models.versions import is_start_moved
from ..monitoring.explain import is_counted_from_finish
from ..recurrence.phrases import offer
from ..recurrence.point import utcnow
from ..recurrence.words import describe
from .display import Html, format_block, format_duration, format_relative
from .glance import is_task_missing

SHOWN = 5


def render_upcoming(schedule: Schedule, saved: Schedule | None = None, problem: Html = "", typed: str = "") -> Html:
    """Return a table of the next due points in the schedule's zone and in UTC, or a hint if there is no recurrence.

    `saved`: the stored row, if `schedule` holds unsaved input; if they differ, there are two tables. With a `problem`,
    only the stored row has a table, and a button suggests a correct expression for `typed`, the cron input.
    """
    now = utcnow()
    before = None if saved is None else _build_table(saved, now)
    after = None if problem else _build_table(_simulate_save(schedule, saved, now), now)
    hint = "" if problem or after else _("Choose when it runs to see the next due times.")
    if before is None or before == after:
        tables = [after]
    else:
        tables = [{**before, "heading": _("Now")}, after and {**after, "heading": _("After saving")}]
    offered = offer(typed) if problem else None
    context = {"problem": problem, "offered": offered, "hint": hint, "tables": [*filter(None, tables)]}
    return render_to_string("admin/django_delayq/schedule/upcoming.html", context)


def _simulate_save(schedule: Schedule, saved: Schedule | None, now: datetime) -> Schedule:
    """Return the schedule as saving it now would store it: a changed recurrence takes effect now."""
    if saved is None or not is_start_moved(saved, schedule):
        return schedule
    typed = copy(schedule)
    typed.effective_from = max(now, schedule.effective_from)
    return typed


def _build_table(schedule: Schedule, now: datetime) -> dict[str, Any] | None:
    try:
        words = describe(schedule.recurrence)
        points = schedule.preview(SHOWN, now)
    except (InvalidRecurrence, LookupError, ValueError, OSError):
        return None
    rows = [
        {
            "local": f"{point.local:%a %Y-%m-%d %H:%M:%S %Z}",
            "utc": f"{point.due_at:%a %Y-%m-%d %H:%M:%S}",
            "relative": format_relative(point.due_at, now),
            "is_utc": not point.local.utcoffset(),
            "annotations": point.annotations,
            "runs": point.runs,
        }
        for point in points
    ]
    notes = []
    if not schedule.enabled:
        notes.append(_("It is not enabled, so none of these will run."))
    elif schedule.task and is_task_missing(schedule.task):
        notes.append(_("task missing: does not run"))
    if is_counted_from_finish(schedule):
        notes.append(_("The duration of each run delays the following ones."))
    if schedule.jitter:
        notes.append(
            _("Each starts up to %(jitter)s later, because of its jitter.")
            % {"jitter": format_duration(schedule.jitter)}
        )
    has_utc = not all(row["is_utc"] for row in rows)
    return {"rows": rows, "zone": schedule.timezone, "has_utc": has_utc, "words": words, "notes": notes}


def render_task(path: str) -> Html:
    """Return a task's signature and docstring, or a hint if none is chosen."""
    if not path:
        return _("Choose a task to see its arguments.")
    try:
        task = registry.get_task(path)
    except UnknownTask as error:
        return format_html('<p class="delayq-problem">{}</p>', str(error))
    called = f"{task.name}{registry.get_redacted_signature(task)}"
    doc = inspect.getdoc(task.func) or ""
    if path == commands.COMMAND_TASK:
        doc = f"{doc}\n\n{commands.list_helps()}"
    note = ""
    if task.module_path != path:
        text = _("This is a former name of %(task)s. It works while DELAYQ['TASK_ALIASES'] contains it.")
        text += " " + _("Save the schedule with the present name to replace it.")
        note = format_html('<p class="delayq-note">{}</p>', text % {"task": task.module_path})
    shown = format_block(doc, "delayq-doc") if doc else ""
    return format_html('{}<code class="delayq-signature">{}</code>{}', note, called, shown)
