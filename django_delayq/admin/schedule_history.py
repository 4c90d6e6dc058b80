"""The history of a schedule: who did what, what each edit changed; and restoring an earlier definition.

Note [An edit in both sources is one line]
The admin's log has every action and its user, but no values. Kept definitions have the values, but a user only if the
caller named one. An edit that is in both becomes one line: same user, replaced less than TOGETHER before the entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import ADDITION, DELETION, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..calls.validators import read_key
from ..models import Definition, Run, Schedule
from ..models.columns import Values, from_json, get_values
from ..models.differences import FIELDS, RECURRENCE, SWITCH, Unit, list_differing
from ..models.primary import list_heirs
from ..text import escape_text, redact_arguments
from . import display
from .glance import format_recurrence
from .schedule_actions import ScheduleActions

#: Events per page, and maximum entries read per row, the newest; the log has no index by object.
PAGE, MOST_READ = 50, 1_000
TOGETHER = timedelta(seconds=5)
#: Maximum characters of a text on one line; a longer one is a block.
LINE = 100
NOTE = gettext_lazy(
    "The schedule becomes what it was before that edit. Its tags, its runs and whether it is "
    "paused do not change. The present definition is kept."
)


@dataclass(slots=True)
class Event:
    """One line: a log entry, a replaced definition, or both."""

    at: datetime
    who: str
    text: str = ""
    changes: str = ""
    note: str = ""
    address: str = ""
    #: A definition that differs from the current one, and can be restored.
    definition: Definition | None = None

    @property
    def time(self) -> display.Html:
        return display.format_instant(self.at)


def read(schedule: Schedule) -> list[Event]:
    """Return the events of a schedule, newest first. See Note [An edit in both sources is one line]."""
    found: list[Event] = []
    for event in sorted([*_read_entries(schedule), *_read_edits(schedule)], key=lambda event: event.at, reverse=True):
        around = found if event.changes else ()
        near = [each for each in around if each.who == event.who and each.at - event.at < TOGETHER and not each.changes]
        if near:
            near[-1].changes, near[-1].note, near[-1].definition = event.changes, event.note, event.definition
        else:
            found.append(event)
    return found


def _read_entries(schedule: Schedule) -> Iterator[Event]:
    types = ContentType.objects.get_for_models(*list_heirs(Schedule), for_concrete_models=False)
    rows = LogEntry.objects.filter(content_type__in=[each.pk for each in types.values()], object_id=str(schedule.pk))
    for entry in rows.select_related("user").order_by("-pk")[:MOST_READ]:
        yield Event(get_instant(entry), escape_text(entry.user.get_username()), format_message(entry))


def format_message(entry: LogEntry) -> str:
    text = entry.get_change_message() or {ADDITION: _("Added."), DELETION: _("Deleted.")}.get(entry.action_flag, "")
    return escape_text(text)


def get_instant(entry: LogEntry) -> datetime:
    """Return the time of a log entry, aware even if USE_TZ is off."""
    at = entry.action_time
    return at if timezone.is_aware(at) else timezone.make_aware(at)


#: The label of a unit, and its old and new value.
Change = tuple[str, display.Html, display.Html]


def list_changes(before: Values, after: Values) -> list[Change]:
    """Return the differences between two definitions; fields that belong together are one change."""
    found = []
    for unit in list_differing(before, after):
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
        both = redact_arguments(values["args"], values["kwargs"], display.find_parameters(values["task"]))
        return _format_text(display.format_json(both[unit.name == "kwargs"]))
    value = values[unit.name]
    if isinstance(value, timedelta):
        return display.format_duration(value)
    if isinstance(value, datetime):
        return display.format_instant(value, display.find_zone(Schedule(timezone=values["timezone"])))
    choices: Any = FIELDS[unit.name].flatchoices
    return _format_text(str(dict(choices).get(value, value)) if value is not None else "")


def _format_text(text: str) -> display.Html:
    return display.format_block(text) if len(text) > LINE or "\n" in text else escape_text(text) or "–"


def _format_recurrence(values: Values) -> SafeString:
    typed = values["cron"] if values["kind"] == Schedule.Kind.CRON else ""
    words = format_recurrence(Schedule(**{**values, "name": values["name"] or "H"}))
    return format_html('{} <span class="delayq-note delayq-cron">{}</span>', words, escape_text(typed))


def format_run_definition(run: Run, history: str) -> display.Html:
    """Format a run's definition, and its differences from the current one; `history`: address of the edits."""
    schedule = Schedule.objects.filter(pk=run.schedule_id or 0).first()
    if schedule is None:
        return _("Not kept: the schedule was deleted.")
    kept = Definition.objects.find_generation(schedule.pk, run.generation)
    link = format_html('<a href="{}">{}</a>', history, _("History"))
    if kept is None and run.generation != schedule.generation:
        why = _("Not kept: a bulk update or SQL replaced it, or it is older than fifty definitions.")
        return format_html("{} {}", why, link)
    values = get_values(schedule) if kept is None else from_json(kept.values)
    since = list_changes(values, get_values(schedule))
    context = {
        "recurrence": _format_recurrence(values), "link": link, "changes": since,
        "calls": [
            (FIELDS[name].verbose_name, _format_unit(Unit(name, (name,)), values))
            for name in ("args", "kwargs") if values[name]
        ],
        "text": _("The schedule was changed since.") if since else _("The schedule has not changed since this run."),
        "before": _("When it ran"), "after": _("Now"),
    }  # fmt: skip
    return SafeString(render_to_string("admin/django_delayq/run/definition.html", context))


def _read_edits(schedule: Schedule) -> Iterator[Event]:
    kept = list(Definition.objects.using(schedule._state.db).filter(schedule=schedule.pk).order_by("generation"))
    versions: list[Definition | Schedule] = [*kept, schedule]
    values = [*(from_json(each.values) for each in kept), get_values(schedule)]
    for each, following, then, after in zip(kept, versions[1:], values, values[1:], strict=False):
        if rows := list_changes(then, after):
            note = "" if each.is_followed_by(following) else _(
                "This includes later edits that were not kept: bulk updates, or SQL."
            )  # fmt: skip
            text = render_to_string("admin/django_delayq/changes.html", {"changes": rows})
            restorable = each if any(unit is not SWITCH for unit in list_differing(then, values[-1])) else None
            yield Event(each.replaced_at, escape_text(each.by), changes=text, note=note, definition=restorable)


class HistoryPage(ScheduleActions):
    """The history, for users who may view the schedule, and restoring, for users who may change it."""

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        pk = unquote(object_id)
        schedule: Schedule | None = self.get_object(request, pk)
        if schedule is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, pk)  # type: ignore[attr-defined,no-any-return]
        if not self.has_view_or_change_permission(request, schedule):
            raise PermissionDenied
        events = Paginator(read(schedule), PAGE).get_page(request.GET.get("page"))
        may_restore = self.has_change_permission(request, schedule) and not schedule.is_declared
        for event in events:
            if may_restore and event.definition is not None:
                event.address = f"{self.get_url('restore', schedule.pk)}?definition={event.definition.pk}"
        return self.render_page(
            request, "schedule/history.html", _("History of “%(name)s”") % {"name": schedule.name}, events=events,
            back=self.get_url("change", schedule.pk),
        )  # fmt: skip

    def restore_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show the changes and ask (GET), or restore a definition (POST)."""
        schedule, back = self.find(request, pk, "change"), HttpResponseRedirect(self.get_url("history", pk))
        if schedule.is_declared:
            raise PermissionDenied
        given = request.POST if request.method == "POST" else request.GET
        rows = Definition.objects.using(schedule._state.db).filter(schedule=schedule)
        kept = rows.filter(pk=read_key(given.get("definition", "")) or 0).first()
        if kept is None:
            text = _("That definition is no longer kept; each schedule keeps the newest fifty.")
            self.message_user(request, text, messages.WARNING)
            return back
        if request.method == "POST":
            if given.get("seen") != str(schedule.generation):
                text = _("Another user changed this schedule in the meantime; nothing was restored. Check it again.")
                self.message_user(request, text, messages.WARNING)
            elif self._restore(request, schedule, kept):
                return back
        current, wanted = get_values(schedule), from_json(kept.values)
        wanted |= {name: current[name] for name in SWITCH.fields}
        return self.render_page(
            request, "confirm.html", _("Restore “%(name)s”") % {"name": schedule.name}, note=NOTE,
            changes=list_changes(current, wanted), before=_("Now"), after=_("Restored"),
            hidden=[("definition", kept.pk), ("seen", schedule.generation)], button=_("Restore"), back=back.url,
        )  # fmt: skip

    def _restore(self, request: HttpRequest, schedule: Schedule, kept: Definition) -> bool:
        try:
            done = kept.restore(by=request.user.get_username())
        except ValidationError as error:
            text = _("It cannot be restored: %(reason)s") % {"reason": " ".join(error.messages)}
            self.message_user(request, text, messages.ERROR)
            return False
        if done:
            time = f"{kept.replaced_at:%Y-%m-%d %H:%M:%S}"
            self.log_change(request, schedule, _("Restored the definition of %(time)s UTC.") % {"time": time})
            text = _("“%(name)s” is restored.") % {"name": from_json(kept.values)["name"]}
            self.message_user(request, text, messages.SUCCESS)
        else:
            self.message_user(request, _("There is nothing to restore."), messages.INFO)
        return True
