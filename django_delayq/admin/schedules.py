"""Schedules in the admin: the list, the form and the panel above it. Contains no logic."""

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten, flatten_fieldsets
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from ..calls.decorators import list_declared
from ..conf import get_config
from ..models import Run, Schedule, explain_wait
from ..models.differences import FIELDS
from ..models.kept import SWITCH_FIELDS
from . import display, glance
from .base import Column, column, is_long
from .failure_groups import ErrorFilter
from .filters import OriginFilter, OutcomeFilter, StateFilter, TagFilter, UsedQueueFilter, UsedTaskFilter
from .forms import ScheduleForm, list_task_choices, list_zones
from .schedule_history import HistoryPage
from .upcoming import render_task, render_upcoming
from .why import WhyPage

RUNS_SHOWN = 5
#: Read-only counterparts of fields: arguments with secrets redacted, instants in the schedule's zone.
SHOWN: dict[str, Any] = {name: f"{name}_column" for name in ("tags", "at", "start_at", "end_at")}
SHOWN["call"] = ("args_column", "kwargs_column")
#: Fields of a declared schedule that users may edit.
PEOPLES = frozenset(("tags", *SWITCH_FIELDS))
#: Fields whose errors the preview shows; those of other fields are shown on saving.
WHEN = ("kind", "cron", ("every", "every_from"), "at", "timezone", "upcoming", ("start_at", "end_at"), "max_runs")


def _collapse_fields(title: Any, *fields: Any) -> tuple[Any, Any]:
    return title, {"classes": ("collapse",), "fields": fields}


def _instant_column(name: str, label: Any) -> Column:
    return column(label, lambda row: display.format_instant(getattr(row, name), display.find_zone(row)))


@admin.register(Schedule)
class ScheduleAdmin(HistoryPage, WhyPage):
    # Set explicitly, because for a subclass of the model Django searches the templates of its app.
    change_form_template = "admin/django_delayq/schedule/change_form.html"
    change_list_template = "admin/django_delayq/schedule/change_list.html"
    delete_confirmation_template = "admin/django_delayq/schedule/delete_confirmation.html"
    delete_selected_confirmation_template = "admin/django_delayq/schedule/delete_selected_confirmation.html"
    form = ScheduleForm
    list_display = ("name_column", "state_column", "recurrence_column", "next_due_column", "outcome_column")
    list_filter = (
        StateFilter, OutcomeFilter, UsedQueueFilter, TagFilter, UsedTaskFilter, "kind", OriginFilter, ErrorFilter,
    )  # fmt: skip
    list_per_page = 50  # as in the other lists; a row costs about 1 ms, and a query of its newest runs
    list_select_related = ("state",)
    search_fields = ("name", "task", "description")
    search_help_text = gettext_lazy("Name, task or description; in a long list the beginning of a name")
    hidden_columns = ("args", "kwargs")
    radio_fields = {"kind": admin.HORIZONTAL}
    readonly_fields = ("about_task", "upcoming")
    fieldsets = (
        (gettext_lazy("What"), {"fields": ("name", "description", "tags", "task", "about_task", "call")}),
        (gettext_lazy("When"), {"fields": WHEN}),
        (gettext_lazy("Where"), {"fields": ("queue", ("backend", "priority"), "enabled", "pause_reason")}),
        _collapse_fields(
            gettext_lazy("Late or overlapping"),
            "overlap", "missed", "grace", "catch_up_window", "max_catch_up", "jitter",
        ),
        _collapse_fields(
            gettext_lazy("Failing"), "timeout", "max_attempts", "backoff", "expected_within", "ping_url"
        ),
        _collapse_fields(gettext_lazy("Afterwards"), "on_success", "on_failure"),
        _collapse_fields(gettext_lazy("History"), ("keep", "keep_last")),
        _collapse_fields(gettext_lazy("Daylight saving"), "dst_gap", "dst_overlap"),
    )  # fmt: skip

    class Media:
        js = ("django_delayq/schedule_form.js",)

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """Return the columns that have an index; those of a short list need none."""
        return ("name_column",) if _is_long(request) else super().get_sortable_by(request)

    def get_ordering(self, request: HttpRequest) -> Any:
        """Return the name; in a long list filtered by state or outcome, the key, as their indexes are sorted."""
        is_narrowed = not {StateFilter.parameter_name, OutcomeFilter.parameter_name}.isdisjoint(request.GET)
        return ("pk",) if is_narrowed and _is_long(request) else super().get_ordering(request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if search_term and _is_long(request):
            return queryset.filter(name__startswith=search_term.strip()), False
        return super().get_search_results(request, queryset, search_term)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return glance.ScheduleChangeList

    @admin.display(description=gettext_lazy("name"), ordering="name")
    def name_column(self, schedule: Any) -> SafeString:
        task = display.format_breakable(schedule.task.rpartition(".")[2])
        names = ((tag.name,) for tag in getattr(schedule, "tag_rows", ()))  # a POST that performs no action has none
        tags = format_html_join("", '<span class="delayq-tag">{}</span>', names)
        note = '{}<div class="delayq-note delayq-path" title="{}">{}</div><div class="delayq-note">{}{}</div>'
        return format_html(note, schedule.name, schedule.task, task, schedule.queue, tags)

    @admin.display(description=gettext_lazy("state"))
    def state_column(self, schedule: Any) -> SafeString:
        return format_html(
            '{} {} {}<div class="delayq-note">{}</div>', glance.format_state(schedule, getattr(schedule, "waits", "")),
            glance.format_marks(schedule), glance.format_origin_marks(schedule), glance.get_state_reason(schedule),
        )  # fmt: skip

    recurrence_column = column(gettext_lazy("recurrence"), glance.format_recurrence)
    next_due_column = column(
        gettext_lazy("next due"),
        lambda row: glance.format_next_due(row, getattr(row, "redis", glance.Redis()), getattr(row, "waits", "")),
        ordering="state__next_due_at",
    )
    outcome_column = column(gettext_lazy("last outcome"), glance.format_last_outcome, ordering="state__last_outcome_at")

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        may = obj is None or self.has_change_permission(request, obj)
        if obj is None or (may and not obj.is_declared):
            return fieldsets
        shown = {name: other for name, other in SHOWN.items() if not may or name not in PEOPLES}
        return [(title, {**options, "fields": _replace(options["fields"], shown)}) for title, options in fieldsets]

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        if obj is None or not obj.is_declared:
            return super().get_readonly_fields(request, obj)
        shown = flatten_fieldsets(self.get_fieldsets(request, obj))
        return [name for name in dict.fromkeys((*shown, *FIELDS, "call")) if name not in PEOPLES]

    args_column = column(
        gettext_lazy("positional arguments"), lambda row: display.format_arguments(row.task, row.args, row.kwargs)[0]
    )
    kwargs_column = column(
        gettext_lazy("keyword arguments"), lambda row: display.format_arguments(row.task, row.args, row.kwargs)[1]
    )
    tags_column = column(gettext_lazy("tags"), lambda row: ", ".join(tag.name for tag in row.tags.all()) or "–")
    at_column = _instant_column("at", gettext_lazy("at"))
    start_at_column = _instant_column("start_at", gettext_lazy("not before"))
    end_at_column = _instant_column("end_at", gettext_lazy("not after"))
    about_task = column(
        gettext_lazy("about this task"),
        lambda schedule: format_html('<div id="delayq-task">{}</div>', render_task(schedule.task)),
    )

    @admin.display(description=gettext_lazy("next due times"))
    def upcoming(self, schedule: Schedule) -> SafeString:
        url = self.get_url("preview", schedule.pk or 0)
        shown = render_upcoming(schedule, _load_saved(schedule))
        return format_html('<div id="delayq-upcoming" data-url="{}" aria-live="polite">{}</div>', url, shown)

    def get_urls(self) -> list[URLPattern]:
        views = {
            "restore": self.restore_view,
            "backfill": self.backfill_view,
            "preview": require_POST(self.preview_view),
            "why": self.why_view,
        }
        own = [self.build_route(f"<int:pk>/{name}/", view, name) for name, view in views.items()]
        return [*own, *super().get_urls()]

    def preview_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Return the next due points of unsaved input; `pk` is 0 for a new schedule. Saves nothing."""
        schedule = self.find(request, pk, "change") if pk else None
        if not pk and not self.has_add_permission(request):
            raise PermissionDenied
        form = self.get_form(request, schedule, change=bool(pk))(request.POST, instance=schedule)
        call = str(form["call"]) if "call" in form.fields else ""
        problem = " ".join(str(error) for name in flatten(WHEN) for error in form.errors.get(name, []))
        upcoming = render_upcoming(form.instance, _load_saved(form.instance), problem, request.POST.get("cron", ""))
        return JsonResponse({"upcoming": upcoming, "task": render_task(request.POST.get("task", "")), "call": call})

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        schedule = context.get("original")
        context |= {"zones": list_zones(), "tasks": list_task_choices(schedule.task if schedule else "")}
        if schedule is not None:
            context.update(self._build_panel(schedule, details=self.has_change_permission(request)))
            context |= {"may_run": self.can_act(request, "run_now"), "may_pause": self.can_act(request, "pause")}
        return super().render_change_form(request, context, *args, **kwargs)

    def _build_panel(self, schedule: Schedule, *, details: bool) -> dict[str, Any]:
        redis, health = glance.ask_redis([schedule]), glance.read_health(details=details)
        waits = explain_wait(health.snapshot.held_back or (), (schedule.queue, schedule.task))
        runs = Run.objects.filter(schedule_id=schedule.pk).order_by("-due_at")[:RUNS_SHOWN]
        return {
            "declared_in": next((each.module for each in list_declared() if each.key == schedule.declared_key), ""),
            "redis": redis,
            "details": details,
            "mirrors": get_config().mirror,
            "snapshot": health.snapshot,
            "problems": [each for each in health.problems if each.queue in ("", schedule.queue)],
            "waits": waits,
            "state": glance.format_state(schedule, waits),
            "reason": glance.get_state_reason(schedule),
            "marks": glance.format_marks(schedule),
            "unmirrored": glance.is_unmirrored(schedule),
            "next_due": glance.format_next_due(schedule, redis, waits),
            "outcome": glance.format_last_outcome(schedule),
            "recurrence": glance.format_recurrence(schedule),
            "runs": [
                (run.pk, display.format_instant(run.due_at), display.format_status(run.status),
                 display.describe_reason(run), display.format_latency(run), display.format_span(run.duration))
                for run in runs
            ],
        }  # fmt: skip

    def save_related(self, request: HttpRequest, form: Any, *args: Any, **kwargs: Any) -> None:
        super().save_related(request, form, *args, **kwargs)
        if "tags" in form.changed_data:
            form.instance.tags.put(form.instance, form.cleaned_data["tags"])

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Log the tags before and after an edit, because definitions do not contain tags."""
        edit = []
        if not add and "tags" in form.changed_data:
            form.changed_data.remove("tags")
            before, after = form.initial["tags"], ", ".join(form.cleaned_data["tags"])
            edit = [{"changed": {"fields": [f"Tags ({before or '–'} → {after or '–'})"]}}]
        return [*super().construct_change_message(request, form, formsets, add), *edit]

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Save, and warn after the commit if the edit has not reached Redis. The mirror's own hook runs first."""
        obj.changed_by = request.user.get_username()
        super().save_model(request, obj, form, change)
        transaction.on_commit(partial(_report_unmirrored, request, obj), using=obj._state.db, robust=True)


def _is_long(request: Any) -> bool:
    """Return whether there are many schedules. Queries once per request."""
    if not hasattr(request, "delayq_is_long"):
        request.delayq_is_long = is_long(Schedule.objects.all())
    return bool(request.delayq_is_long)


def _replace(field: Any, shown: dict[str, Any]) -> Any:
    return tuple(_replace(each, shown) for each in field) if isinstance(field, tuple) else shown.get(field, field)


def _load_saved(schedule: Schedule) -> Schedule | None:
    """Return the stored row, without the values that a form has written to this instance."""
    return Schedule.objects.select_related("state").filter(pk=schedule.pk or 0).first()


def _report_unmirrored(request: HttpRequest, saved: Schedule) -> None:
    row = _load_saved(saved)
    if row is not None and glance.is_unmirrored(row):
        messages.warning(request, _("Saved, but not in Redis yet. A worker adds it within seconds."))
