"""Schedules in the admin: the list, the form and the panel above it. Contains no logic."""

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern
from django.utils import translation
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from ..calls.decorators import made
from ..models import Run, Schedule, explain_wait
from ..models.differences import FIELDS
from ..models.kept import SWITCH_FIELDS
from . import display, glance, paging
from .base import Column, column
from .failures import ErrorFilter
from .filters import OriginFilter, OutcomeFilter, StateFilter, TagFilter, TaskFilter, UsedQueueFilter
from .formfields import DurationField, InstantField, task_choices, zones
from .forms import ScheduleForm
from .history import HistoryPage
from .upcoming import render_task, render_upcoming
from .why import WhyPage

RUNS_SHOWN = 5
SHOWN_OTHERWISE = ("tags", "at", "start_at", "end_at")
#: Fields of a declared schedule that users may edit.
PEOPLES = frozenset(("tags", *SWITCH_FIELDS))
#: Fields whose errors the preview shows; those of other fields are shown on saving.
RECURRENCE_FIELDS = (
    "kind", "cron", "every", "every_from", "at", "timezone", "start_at", "end_at", "max_runs", "jitter", "dst_gap",
    "dst_overlap",
)  # fmt: skip


def _in_zone(name: str, label: Any) -> Column:
    return column(label, lambda schedule: display.instant(getattr(schedule, name), display.zone_of(schedule)))


@admin.register(Schedule)
class ScheduleAdmin(HistoryPage, WhyPage):
    # Set explicitly, because for a subclass of the model Django searches the templates of its app.
    change_form_template = "admin/django_delayq/schedule/change_form.html"
    change_list_template = "admin/django_delayq/schedule/change_list.html"
    delete_confirmation_template = "admin/django_delayq/schedule/delete_confirmation.html"
    delete_selected_confirmation_template = "admin/django_delayq/schedule/delete_selected_confirmation.html"
    form = ScheduleForm
    formfield_overrides = {
        models.DurationField: {"form_class": DurationField},
        models.DateTimeField: {"form_class": InstantField},
    }
    list_display = ("shown_name", "shown_state", "shown_recurrence", "shown_next_due", "shown_outcome")
    list_filter = (
        StateFilter, OutcomeFilter, UsedQueueFilter, TagFilter, TaskFilter, "kind", OriginFilter, ErrorFilter,
    )  # fmt: skip
    list_per_page = 50  # as in the other lists; a row costs about 1 ms, and a query of its newest runs
    list_select_related = ("state", "declaration")
    search_fields = ("name", "task", "description")
    search_help_text = gettext_lazy("Name, task or description")
    paginator = paging.CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    hidden_columns = ("args", "kwargs")
    radio_fields = {"kind": admin.HORIZONTAL}
    readonly_fields = ("about_task", "upcoming")
    fieldsets = (
        (
            gettext_lazy("What"),
            {"fields": ("name", "description", "tags", "task", "about_task", "call")},
        ),
        (
            gettext_lazy("When"),
            {
                "fields": (
                    "kind", "cron", ("every", "every_from"), "at", "timezone", "upcoming",
                    ("start_at", "end_at"), "max_runs",
                )
            },
        ),
        (gettext_lazy("Where"), {"fields": ("queue", ("backend", "priority"), "enabled", "pause_reason")}),
        (
            gettext_lazy("Late or overlapping"),
            {
                "classes": ("collapse",),
                "fields": ("overlap", "missed", "grace", "catch_up_window", "max_catch_up", "jitter"),
            },
        ),
        (
            gettext_lazy("Failing"),
            {
                "classes": ("collapse",),
                "fields": ("timeout", "max_attempts", "backoff", "expected_within", "ping_url"),
            },
        ),
        (gettext_lazy("Afterwards"), {"classes": ("collapse",), "fields": ("on_success", "on_failure")}),
        (gettext_lazy("History"), {"classes": ("collapse",), "fields": (("keep", "keep_last"),)}),
        (gettext_lazy("Daylight saving"), {"classes": ("collapse",), "fields": ("dst_gap", "dst_overlap")}),
    )  # fmt: skip

    class Media:
        js = ("django_delayq/schedule_form.js",)

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[glance.ScheduleChangeList]:
        return glance.ScheduleChangeList

    @admin.display(description=gettext_lazy("name"), ordering="name")
    def shown_name(self, schedule: Schedule) -> SafeString:
        task = display.breakable(schedule.task.rpartition(".")[2])
        mark = '<span class="delayq-tag">{}</span>'
        tags = format_html_join("", mark, ((tag.name,) for tag in getattr(schedule, "shown_tags", ())))
        note = '{}<div class="delayq-note delayq-path" title="{}">{}</div><div class="delayq-note">{}{}</div>'
        return format_html(note, schedule.name, schedule.task, task, schedule.queue, tags)

    @admin.display(description=gettext_lazy("state"))
    def shown_state(self, schedule: Schedule) -> SafeString:
        """Format the state, its reason, and marks of unusual conditions."""
        return format_html(
            '{} {} {}<div class="delayq-note">{}</div>',
            glance.state_badge(schedule, getattr(schedule, "waits", "")),
            glance.marks(schedule),
            glance.origin_marks(schedule),
            glance.state_reason(schedule),
        )

    shown_recurrence = column(gettext_lazy("recurrence"), glance.recurrence_words)
    shown_next_due = column(
        gettext_lazy("next due"),
        lambda schedule: glance.next_due(
            schedule, getattr(schedule, "redis", glance.Redis()), getattr(schedule, "waits", "")
        ),
        ordering="state__next_due_at",
    )
    shown_outcome = column(gettext_lazy("last outcome"), glance.last_outcome, ordering="state__last_outcome_at")

    # The form

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        """Show read-only arguments with secrets redacted, and read-only instants in the schedule's zone."""
        fieldsets = super().get_fieldsets(request, obj)
        may = obj is None or self.has_change_permission(request, obj)
        if obj is None or (may and not obj.is_declared):
            return fieldsets
        as_shown = partial(_as_shown, edited=PEOPLES if may else frozenset())
        return [(title, {**options, "fields": [*map(as_shown, options["fields"])]}) for title, options in fieldsets]

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        """Make the fields that the code declares read-only."""
        if obj is None or not obj.is_declared:
            return super().get_readonly_fields(request, obj)
        shown = flatten_fieldsets(self.get_fieldsets(request, obj))
        return [name for name in dict.fromkeys((*shown, *FIELDS, "call")) if name not in PEOPLES]

    shown_args = column(
        gettext_lazy("positional arguments"), lambda row: display.arguments(row.task, row.args, row.kwargs)[0]
    )
    shown_kwargs = column(
        gettext_lazy("keyword arguments"), lambda row: display.arguments(row.task, row.args, row.kwargs)[1]
    )
    shown_tags = column(gettext_lazy("tags"), lambda row: ", ".join(tag.name for tag in row.tags.all()) or "–")
    shown_at = _in_zone("at", gettext_lazy("at"))
    shown_start_at = _in_zone("start_at", gettext_lazy("not before"))
    shown_end_at = _in_zone("end_at", gettext_lazy("not after"))
    about_task = column(
        gettext_lazy("about the task"),
        lambda schedule: format_html('<div id="delayq-task">{}</div>', render_task(schedule.task)),
    )

    @admin.display(description=gettext_lazy("next due points"))
    def upcoming(self, schedule: Schedule) -> SafeString:
        """Format the next due points of the stored row, and of unsaved input if they differ."""
        url = self.address("preview", schedule.pk or 0)
        shown = render_upcoming(schedule, _as_saved(schedule))
        return format_html('<div id="delayq-upcoming" data-url="{}" aria-live="polite">{}</div>', url, shown)

    def get_urls(self) -> list[URLPattern]:
        views = {
            "run-now": self.button("run_now"),
            "pause": self.button("pause"),
            "resume": self.button("resume"),
            "restore": self.restore_view,
            "backfill": self.backfill_view,
            "preview": require_POST(self.preview_view),
            "why": self.why_view,
        }
        own = [self.route(f"<int:pk>/{name}/", view, name) for name, view in views.items()]
        return [*own, *super().get_urls()]

    def preview_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Return the next due points of unsaved input; `pk` is 0 for a new schedule. Saves nothing."""
        schedule = self.one(request, pk) if pk else None
        if not pk and not self.has_add_permission(request):
            raise PermissionDenied
        form = self.get_form(request, schedule, change=bool(pk))(request.POST, instance=schedule)
        call = str(form["call"]) if "call" in form.fields else ""
        problems = [str(error) for name in RECURRENCE_FIELDS for error in form.errors.get(name, [])]
        shown = render_upcoming(
            form.instance, _as_saved(form.instance), " ".join(problems), request.POST.get("cron", "")
        )
        task = render_task(request.POST.get("task", ""))
        return JsonResponse({"upcoming": shown, "task": task, "call": call})

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the zones and tasks to choose from, and the panel above the form of a saved schedule."""
        schedule = context.get("original")
        context |= {"zones": zones(), "tasks": task_choices(schedule.task if schedule else "")}
        if schedule is not None:
            context.update(self._panel(schedule, details=self.has_change_permission(request)))
            context |= {"may_run": self.has_run_permission(request), "may_pause": self.has_pause_permission(request)}
        return super().render_change_form(request, context, *args, **kwargs)

    def _panel(self, schedule: Schedule, *, details: bool) -> dict[str, Any]:
        redis, notes = glance.ask_redis([schedule]), glance.read_notes()
        health = glance.ask_health(notes, details=details)
        waits = explain_wait(notes.held, (schedule.queue, schedule.task))
        declaration = getattr(schedule, "declaration", None)
        return {
            "declaration": declaration,
            "declared_in": next((each.module for each in made() if declaration and each.key == declaration.key), ""),
            "redis": redis,
            "details": details,
            "health": health,
            "problems": [each for each in (health or {}).get("problems", ()) if each.queue in ("", schedule.queue)],
            "waits": waits,
            "state": glance.state_badge(schedule, waits),
            "reason": glance.state_reason(schedule),
            "marks": glance.marks(schedule),
            "unmirrored": glance.is_unmirrored(schedule),
            "next_due": glance.next_due(schedule, redis, waits),
            "outcome": glance.last_outcome(schedule),
            "recurrence": glance.recurrence_words(schedule),
            "runs": [
                {
                    "pk": run.pk,
                    "due": display.instant(run.due_at),
                    "status": display.status_badge(run.status),
                    "reason": display.reason_words(run),
                    "lag": display.shown_lag(run),
                    "duration": display.milliseconds(run.duration),
                }
                for run in _newest_runs(schedule)
            ],
        }

    def save_related(self, request: HttpRequest, form: Any, *args: Any, **kwargs: Any) -> None:
        super().save_related(request, form, *args, **kwargs)
        if "tags" in form.changed_data:
            form.instance.tags.put(form.instance, form.cleaned_data["tags"])

    def construct_change_message(self, request: HttpRequest, form: Any, *args: Any, **kwargs: Any) -> Any:
        """Log the tags before and after an edit, because definitions do not contain tags."""
        message = super().construct_change_message(request, form, *args, **kwargs)
        if "tags" in form.changed_data:
            both = form.initial.get("tags", ()), form.cleaned_data["tags"]
            with translation.override(None):  # as in Django: the message is translated when shown
                label = str(form.fields["tags"].label)
            edit = "{} ({} → {})".format(label, *(", ".join(tags) or "–" for tags in both))
            for fields in (each["changed"]["fields"] for each in message if "fields" in each.get("changed", ())):
                fields[:] = [edit if name == label else name for name in fields]
        return message

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Save, and warn after the commit if the edit has not reached Redis. The mirror's own hook runs first."""
        obj.changed_by = request.user.get_username()
        super().save_model(request, obj, form, change)
        transaction.on_commit(partial(_tell_unmirrored, request, obj), using=obj._state.db, robust=True)


def _as_shown(field: Any, edited: frozenset[str]) -> Any:
    """Return the read-only counterpart of a field, or of a line of fields, unless it is `edited`."""
    if isinstance(field, tuple):
        return tuple(_as_shown(each, edited) for each in field)
    if field == "call":
        return "shown_args", "shown_kwargs"
    return f"shown_{field}" if field in SHOWN_OTHERWISE and field not in edited else field


def _as_saved(schedule: Schedule) -> Schedule | None:
    """Return the stored row, without the values that a form has written to this instance."""
    if schedule._state.adding:
        return None
    rows = Schedule._base_manager.using(schedule._state.db).select_related("state")
    return rows.filter(pk=schedule.pk).first()


def _tell_unmirrored(request: HttpRequest, saved: Schedule) -> None:
    row = Schedule._base_manager.using(saved._state.db).filter(pk=saved.pk).first()
    if row is not None and glance.is_unmirrored(row):
        messages.warning(request, _("Saved, but not yet mirrored to Redis; the workers will catch up."))


def _newest_runs(schedule: Schedule) -> list[Run]:
    return list(Run.objects.filter(schedule_id=schedule.pk).order_by("-due_at")[:RUNS_SHOWN])
