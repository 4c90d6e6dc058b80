"""Schedules in the admin: the list, the form and what stands beside it. Holds no logic: it asks and shows."""

from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf, registry
from ..models import Origin, Run, Schedule
from ..redaction import redact_arguments
from . import declared, glance
from .asked import StorableQuestions
from .backfill import ScheduleBackfill
from .changelist import ScheduleChangeList, ask_redis
from .declared import OriginFilter, ScheduleReset
from .display import block, breakable, instant, milliseconds, pretty_json, reason_words, status_badge, zone_of
from .filters import OutcomeFilter, StateFilter
from .formfields import DurationField, InstantField
from .forms import ScheduleForm
from .guessing import NoGuessing
from .health import ask_health
from .upcoming import render_task, render_upcoming

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Schedule]
else:
    Base = admin.ModelAdmin

RUNS_SHOWN = 5
SHOWN_OTHERWISE = ("args", "kwargs", "at", "start_at", "end_at")
#: The preview is silent about the other fields: nobody has asked to save yet.
RECURRENCE_FIELDS = (
    "kind", "cron", "every", "every_from", "at", "timezone", "start_at", "end_at", "max_runs", "jitter", "dst_gap",
    "dst_overlap",
)  # fmt: skip


@admin.register(Schedule)
class ScheduleAdmin(StorableQuestions, ScheduleBackfill, ScheduleReset, NoGuessing, Base):
    """Edit, pause and run schedules."""

    form = ScheduleForm
    formfield_overrides = {
        models.DurationField: {"form_class": DurationField},
        models.DateTimeField: {"form_class": InstantField},
    }
    list_display = ("shown_name", "shown_state", "shown_recurrence", "shown_next_due", "shown_outcome", "queue")
    list_filter = (StateFilter, OutcomeFilter, OriginFilter, "kind", ("queue", admin.AllValuesFieldListFilter))
    list_select_related = ("state", "declaration")
    search_fields = ("name", "task", "description")
    search_help_text = gettext_lazy("Name, task or description")
    hidden_columns = ("args", "kwargs")
    ordering = ("name",)
    radio_fields = {"kind": admin.HORIZONTAL}
    readonly_fields = ("about_task", "upcoming")
    fieldsets = (
        (gettext_lazy("What"), {"fields": ("name", "description", "task", "about_task", "args", "kwargs")}),
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
        (gettext_lazy("Failing"), {"classes": ("collapse",), "fields": ("timeout", "max_attempts", "backoff")}),
        (gettext_lazy("Daylight saving"), {"classes": ("collapse",), "fields": ("dst_gap", "dst_overlap")}),
    )  # fmt: skip

    class Media:
        css = {"all": ("django_delayq/admin.css",)}
        js = ("django_delayq/schedule_form.js",)

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ScheduleChangeList]:
        """Return the page that asks Redis once."""
        return ScheduleChangeList

    @admin.display(description=gettext_lazy("name"), ordering="name")
    def shown_name(self, schedule: Schedule) -> SafeString:
        """Return name and task."""
        task = schedule.task.rpartition(".")[2]
        note = '{}<div class="delayq-note delayq-path" title="{}">{}</div>'
        return format_html(note, schedule.name, schedule.task, breakable(task))

    @admin.display(description=gettext_lazy("state"))
    def shown_state(self, schedule: Schedule) -> SafeString:
        """Return whether it goes on, why not, and what is unusual."""
        return format_html(
            '{} {} {}<div class="delayq-note">{}</div>',
            glance.state_badge(schedule),
            glance.marks(schedule),
            declared.marks(schedule),
            glance.state_reason(schedule),
        )

    @admin.display(description=gettext_lazy("recurrence"))
    def shown_recurrence(self, schedule: Schedule) -> SafeString | str:
        """Return the recurrence in words."""
        return glance.recurrence_words(schedule)

    @admin.display(description=gettext_lazy("next due"), ordering="state__next_due_at")
    def shown_next_due(self, schedule: Schedule) -> SafeString | str:
        """Return the next due point as Redis has it."""
        return glance.next_due(schedule, getattr(schedule, "redis", glance.Redis()))

    @admin.display(description=gettext_lazy("last outcome"), ordering="state__last_outcome_at")
    def shown_outcome(self, schedule: Schedule) -> SafeString | str:
        """Return the last outcome with its lag."""
        return glance.last_outcome(schedule)

    # The form

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        """Show who may not change them arguments without their secrets (`redaction`), and instants in the zone."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return [
            (title, {**options, "fields": [_as_shown(name) for name in options["fields"]]})
            for title, options in fieldsets
        ]

    @admin.display(description=gettext_lazy("positional arguments"))
    def shown_args(self, schedule: Schedule) -> SafeString | str:
        """Return the positional arguments as they may be shown."""
        return block(pretty_json(_shown_arguments(schedule)[0]))

    @admin.display(description=gettext_lazy("keyword arguments"))
    def shown_kwargs(self, schedule: Schedule) -> SafeString | str:
        """Return the keyword arguments as they may be shown."""
        return block(pretty_json(_shown_arguments(schedule)[1]))

    @admin.display(description=gettext_lazy("at"))
    def shown_at(self, schedule: Schedule) -> SafeString | str:
        """Return the instant of a one-off in the schedule's zone."""
        return instant(schedule.at, zone_of(schedule))

    @admin.display(description=gettext_lazy("not before"))
    def shown_start_at(self, schedule: Schedule) -> SafeString | str:
        """Return the beginning in the schedule's zone."""
        return instant(schedule.start_at, zone_of(schedule))

    @admin.display(description=gettext_lazy("not after"))
    def shown_end_at(self, schedule: Schedule) -> SafeString | str:
        """Return the end in the schedule's zone."""
        return instant(schedule.end_at, zone_of(schedule))

    @admin.display(description=gettext_lazy("about the task"))
    def about_task(self, schedule: Schedule) -> SafeString:
        """Return the chosen task's signature and docstring."""
        return format_html('<div id="delayq-task">{}</div>', render_task(schedule.task))

    @admin.display(description=gettext_lazy("next due points"))
    def upcoming(self, schedule: Schedule) -> SafeString:
        """Return the next due points of what is saved, and of what is typed if that makes a difference."""
        name = self._url_name("preview")
        url = reverse(f"admin:{name}", args=[schedule.pk or 0], current_app=self.admin_site.name)
        shown = render_upcoming(schedule, _as_saved(schedule))
        return format_html('<div id="delayq-upcoming" data-url="{}" aria-live="polite">{}</div>', url, shown)

    def get_urls(self) -> list[URLPattern]:
        """Add the preview."""
        view = self.admin_site.admin_view(self.preview_view)
        return [path("<int:pk>/preview/", view, name=self._url_name("preview")), *super().get_urls()]

    def preview_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Return the next due points of a form that is being filled in; `pk` is 0 for a new one. Saves nothing."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if pk:
            schedule: Schedule | None = self._changeable(request, pk)
        elif self.has_add_permission(request):
            schedule = None
        else:
            raise PermissionDenied
        form = self.get_form(request, schedule, change=bool(pk))(request.POST, instance=schedule)
        problems = [str(error) for name in RECURRENCE_FIELDS for error in form.errors.get(name, [])]
        shown = render_upcoming(form.instance, _as_saved(form.instance), " ".join(problems))
        return JsonResponse({"upcoming": shown, "task": render_task(request.POST.get("task", ""))})

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add what stands above the form of a saved schedule."""
        schedule = context.get("original")
        if schedule is not None:
            context.update(self._panel(schedule, details=self.has_change_permission(request)))
        return super().render_change_form(request, context, *args, **kwargs)

    def _panel(self, schedule: Schedule, *, details: bool) -> dict[str, Any]:
        redis, health = ask_redis([schedule]), ask_health(details=details)
        return {
            **declared.panel(schedule),
            "redis": redis,
            "details": details,
            "health": health,
            "problems": [] if health is None else health.concerning(schedule.queue),
            "state": glance.state_badge(schedule),
            "reason": glance.state_reason(schedule),
            "marks": glance.marks(schedule),
            "mirrored": conf.get_config().mirror and not glance.is_unmirrored(schedule),
            "mirrors": conf.get_config().mirror,
            "next_due": glance.next_due(schedule, redis),
            "outcome": glance.last_outcome(schedule),
            "recurrence": glance.recurrence_words(schedule),
            "runs": [
                {
                    "pk": run.pk,
                    "due": instant(run.due_at),
                    "status": status_badge(run.status),
                    "reason": reason_words(run),
                    "lag": "–" if run.started_at is None else milliseconds(run.lag),
                    "duration": milliseconds(run.duration),
                }
                for run in _newest_runs(schedule)
            ],
        }

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Save, and say after the commit where Redis could not follow. The mirror's own hook comes first."""
        super().save_model(request, obj, form, change)
        transaction.on_commit(partial(_tell_unmirrored, request, obj), using=obj._state.db, robust=True)


def _as_shown(field: Any) -> Any:
    """Return what shows a field, or a line of fields, to whoever may not change it."""
    if isinstance(field, tuple):
        return tuple(map(_as_shown, field))
    return f"shown_{field}" if field in SHOWN_OTHERWISE else field


def _shown_arguments(schedule: Schedule) -> tuple[list[Any], dict[str, Any]]:
    return redact_arguments(schedule.args, schedule.kwargs, registry.parameters_of(schedule.task))


def _as_saved(schedule: Schedule) -> Schedule | None:
    """Return the row as it stands, without what a form has written into this instance."""
    if schedule._state.adding:
        return None
    rows = Schedule._base_manager.using(schedule._state.db).select_related("state")
    return rows.filter(pk=schedule.pk).first()


def _tell_unmirrored(request: HttpRequest, saved: Schedule) -> None:
    row = Schedule._base_manager.using(saved._state.db).filter(pk=saved.pk).first()
    if row is not None and glance.is_unmirrored(row):
        messages.warning(request, _("Saved, but not yet mirrored to Redis; the workers will catch up."))


def _newest_runs(schedule: Schedule) -> list[Run]:
    """Return the newest runs. One short query per origin walks an index; one for all would sort the whole history."""
    runs: list[Run] = []
    for origin in Origin:
        runs += Run.objects.filter(schedule_id=schedule.pk, origin=origin).order_by("-due_at")[:RUNS_SHOWN]
    return sorted(runs, key=lambda run: run.due_at, reverse=True)[:RUNS_SHOWN]
