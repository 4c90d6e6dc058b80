"""The ledger in the admin: to be searched and read, never to be written. A run's schedule may be gone."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from .. import ledger
from ..kinds.announcing import idempotency_key
from ..models import Origin, Run, Schedule, Status
from ..redaction import redact, redact_text
from . import charts, display, paging
from .base import column
from .definitions import definition_of_run
from .display import Html, instant
from .failures import ErrorFilter, FailuresPage
from .filters import RecentFilter, ScheduleFilter
from .origins import job_of


STOP_NOTE = gettext_lazy(
    "TaskCancelled is raised in the task within two seconds. It is recorded as failed and not tried again. Code that "
    "waits outside of Python is not interrupted: after the grace it is recorded without it, and its process replaced."
)


@admin.register(Run)
class RunAdmin(FailuresPage):
    list_display = (
        "schedule_name", "shown_due", "shown_status", "shown_lag", "shown_duration", "attempt", "shown_reason",
        "worker",
    )  # fmt: skip
    list_filter = ("status", "origin", RecentFilter, ScheduleFilter, ErrorFilter)
    search_fields = ("schedule_name", "task")
    search_help_text = gettext_lazy(
        "Schedule or task; in a long ledger, the beginning of either, of existing schedules"
    )
    hidden_columns = ("result", "attempts", "outputs")
    ordering = ("-due_at", "-pk")
    sortable_by = ("shown_due",)
    list_per_page = 50
    actions = None
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "shown_schedule", ("task", "queue"), ("shown_status", "shown_reason"),
                    ("shown_origin", "shown_points"),
                )
            },
        ),
        (gettext_lazy("Outcome"), {"fields": ("shown_error", "shown_result")}),
        (
            gettext_lazy("Time"),
            {"fields": ("timeline", ("due", "claimed"), ("started", "finished"), ("shown_lag", "shown_duration"))},
        ),
        (gettext_lazy("Execution"), {"fields": (("worker", "attempt", "reclaims"), "shown_key")}),
        (gettext_lazy("Definition"), {"fields": ("definition",)}),
    )  # fmt: skip

    class Media:
        js = ("django_delayq/copy.js",)

    def get_urls(self) -> list[URLPattern]:
        take = require_http_methods(["GET", "HEAD", "POST"])
        stop = self.route("<int:pk>/stop/", take(self.stop_view), "stop")
        return [stop, *self.failures_urls(), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Return runs; what may be long and is on one page only is read for that."""
        return super().get_queryset(request).defer("attempts")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[paging.PagedChangeList]:
        return paging.PagedChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        """Look anywhere in the texts; in a long ledger, by an index for schedules and by another one for their runs."""
        text = search_term.strip()
        if not text or not paging.is_long(self.get_queryset(request)):
            return super().get_search_results(request, queryset, search_term)
        schedules = Schedule.objects.order_by().found_by(text)
        pks = list(schedules.values_list("pk", flat=True)[: paging.MOST_FOUND + 1])
        if len(pks) > paging.MOST_FOUND:
            said = _("More than %(count)d schedules or their tasks match “%(text)s”. None are listed. Type more of it.")
            self.message_user(request, said % {"count": paging.MOST_FOUND, "text": text}, messages.WARNING)
            pks = []
        return queryset.filter(schedule_id__in=pks), False

    def get_fieldsets(self, request: HttpRequest, obj: Run | None = None) -> Any:
        fieldsets = [*super().get_fieldsets(request, obj)]
        if obj is not None and len(ledger.attempts_of(obj)) > 1:
            fieldsets.insert(2, (gettext_lazy("Attempts"), {"fields": ("shown_attempts",)}))
        if not self._schedules.has_view_permission(request):
            fieldsets.pop()  # the definition
        if getattr(obj, "said", None):
            fieldsets.insert(2, (gettext_lazy("Output"), {"fields": ("shown_output",)}))
        if obj is not None and job_of(obj):
            fieldsets.insert(1, (gettext_lazy("Handed over"), {"fields": ("shown_job",)}))
        return fieldsets

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Run | None:
        run: Any = super().get_object(request, object_id, from_field)
        if run is not None:
            run.said = list(run.outputs.order_by("attempt"))
        return run  # type: ignore[no-any-return]

    def may_stop(self, request: HttpRequest) -> bool:
        """Stopping has a permission of its own."""
        return self.has_view_permission(request) and request.user.has_perm("django_delayq.add_cancellation")

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        run = kwargs.get("obj")
        if run is not None and run.status == Status.RUNNING and self.may_stop(request):
            context["stop"] = self.address("stop", run.pk)
        if run is not None and run.status in (Status.FAILED, Status.LOST) and self._may_run(request, run):
            context["again"] = self.address("run-now", run.schedule_id, model="schedule")
        return super().render_change_form(request, context, *args, **kwargs)

    def _may_run(self, request: HttpRequest, run: Run) -> bool:
        return self._schedules.may(request, "run_now") and Schedule.objects.filter(pk=run.schedule_id).exists()

    def stop_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask (GET), or have it stopped (POST)."""
        run = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.may_stop(request):
            raise PermissionDenied
        if run is None:
            raise Http404(_("There is no such run; it may have been pruned."))
        back = self.address("change", pk)
        if request.method != "POST":
            title = _("Stop “%(name)s”") % {"name": run.schedule_name}
            return self.page(request, "confirm.html", title, note=STOP_NOTE, back=back, button=_("Stop"), grave=True)
        if run.cancel(by=request.user.get_username()):
            self.log_change(request, run, _("Stop asked for."))
            self.message_user(request, _("%(name)s is being stopped.") % {"name": run.schedule_name})
        else:
            self.message_user(request, _("It has ended meanwhile."), messages.WARNING)
        return HttpResponseRedirect(back)

    def nobody(self, request: HttpRequest, obj: Any = None) -> bool:
        """The ledger is written by workers."""
        return False

    has_add_permission = has_change_permission = has_delete_permission = nobody

    @admin.display(description=gettext_lazy("schedule"))
    def shown_schedule(self, run: Run) -> Html:
        """Return a link to the schedule, its former name where it is gone."""
        if not Schedule.objects.filter(pk=run.schedule_id).exists():
            return _("%(name)s (deleted)") % {"name": run.schedule_name}
        url = self.address("change", run.schedule_id, model="schedule")
        return format_html('<a href="{}">{}</a>', url, run.schedule_name)

    @admin.display(description=gettext_lazy("due"), ordering="due_at")
    def shown_due(self, run: Run) -> Html:
        """Return the due point, to the second, and who else ordered the run."""
        if run.origin == Origin.DUE:
            return instant(run.due_at)
        return format_html('{}<div class="delayq-note">{}</div>', instant(run.due_at), run.get_origin_display())

    @admin.display(description=gettext_lazy("due points"))
    def shown_points(self, run: Run) -> Html:
        """Return how many due points a skipped stretch stands for, and its end."""
        points = str(run.points) if run.points else _("an unknown number")
        if run.last_due_at is None:
            return points
        return format_html("{}, {} {}", points, _("the last at"), instant(run.last_due_at))

    @admin.display(description=gettext_lazy("that it ran with"))
    def definition(self, run: Run) -> Html:
        return definition_of_run(run, self.address("history", run.schedule_id, model="schedule"))

    @admin.display(description=gettext_lazy("course"))
    def timeline(self, run: Run) -> Html:
        """Return a picture of how long it waited, was held and ran; the instants stand below it."""
        ended = {Status.SUCCEEDED: "good", Status.FAILED: "bad", Status.LOST: "bad"}.get(Status(run.status), "busy")
        steps = [
            ("warn", _("waited"), run.due_at, run.claimed_at),
            ("quiet", _("held by its worker"), run.claimed_at, run.started_at),
            (ended, _("ran"), run.started_at, run.finished_at),
        ]
        parts = [
            (tone, (end - begin).total_seconds(), f"{words} {(end - begin).total_seconds():.3f} s")
            for tone, words, begin, end in steps
            if begin is not None and end is not None and end >= begin
        ]
        return charts.stretches(parts) if parts else "–"

    @admin.display(description=gettext_lazy("job"))
    def shown_job(self, run: Run) -> Html:
        """Return a link to the job that the run was handed over as."""
        url = self.address("change", job_of(run).partition("-")[0])
        return format_html('<a href="{}" class="delayq-signature delayq-id">{}</a>', url, job_of(run))

    shown_status = column(gettext_lazy("status"), lambda run: display.status_badge(run.status))
    shown_reason = column(gettext_lazy("reason"), display.reason_words)
    shown_origin = column(gettext_lazy("origin"), Run.get_origin_display)
    shown_lag = column(gettext_lazy("lag"), display.shown_lag)
    shown_duration = column(gettext_lazy("duration"), lambda run: display.milliseconds(run.duration))
    due = column(gettext_lazy("due"), lambda run: instant(run.due_at, millis=True))
    claimed = column(gettext_lazy("claimed"), lambda run: instant(run.claimed_at, millis=True))
    started = column(gettext_lazy("started"), lambda run: instant(run.started_at, millis=True))
    finished = column(gettext_lazy("finished"), lambda run: instant(run.finished_at, millis=True))
    shown_result = column(
        gettext_lazy("result"),
        lambda run: "–" if run.result is None else display.block(display.pretty_json(redact(run.result))),
    )
    shown_attempts = column(
        gettext_lazy("all attempts"), lambda run: display.attempts_table(ledger.attempts_of(run), redact_text)
    )
    shown_output = column(gettext_lazy("logged and printed"), lambda run: display.said(run.said))
    shown_key = column(gettext_lazy("idempotency key"), lambda run: display.identity(idempotency_key(run)))
    shown_error = column(gettext_lazy("error"), lambda run: display.traceback(redact_text(run.error)))
