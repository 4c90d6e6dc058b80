"""The ledger in the admin: to be searched and read, never to be written. A run's schedule may be gone."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import ledger
from ..models import Origin, Run, Schedule
from ..redaction import redact, redact_text
from .asked import StorableQuestions
from .attempts import table
from .changelist import CappedPaginator
from .display import block, instant, milliseconds, pretty_json, reason_words, status_badge
from .filters import RecentFilter, ScheduleFilter
from .guessing import NoGuessing

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Run]
else:
    Base = admin.ModelAdmin


@admin.register(Run)
class RunAdmin(StorableQuestions, NoGuessing, Base):
    """Read what ran, and what did not."""

    list_display = (
        "schedule_name", "shown_due", "shown_status", "shown_lag", "shown_duration", "attempt", "shown_reason",
        "worker",
    )  # fmt: skip
    list_filter = ("status", "origin", RecentFilter, ScheduleFilter)
    search_fields = ("schedule_name", "task")
    search_help_text = gettext_lazy("Schedule or task")
    hidden_columns = ("result", "attempts")
    ordering = ("-due_at", "-pk")
    sortable_by = ("shown_due",)
    list_per_page = 50
    actions = None
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = CappedPaginator
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
            {"fields": (("due", "claimed"), ("started", "finished"), ("shown_lag", "shown_duration"))},
        ),
        (gettext_lazy("Execution"), {"fields": (("worker", "attempt", "reclaims"),)}),
    )  # fmt: skip
    readonly_fields = (
        "shown_schedule", "shown_status", "shown_reason", "shown_origin", "shown_points", "due", "claimed", "started",
        "finished", "shown_lag", "shown_duration", "shown_result", "shown_error",
        "shown_attempts",
    )  # fmt: skip

    class Media:
        css = {"all": ("django_delayq/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Return runs; what may be long and is on one page only is read for that."""
        return super().get_queryset(request).defer("attempts")

    def get_fieldsets(self, request: HttpRequest, obj: Run | None = None) -> Any:
        """Add the attempts where there was more than one."""
        fieldsets = [*super().get_fieldsets(request, obj)]
        if obj is not None and len(ledger.attempts_of(obj)) > 1:
            fieldsets.insert(2, (gettext_lazy("Attempts"), {"fields": ("shown_attempts",)}))
        return fieldsets

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody writes the ledger."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        """Nobody writes the ledger."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        """Nobody writes the ledger."""
        return False

    @admin.display(description=gettext_lazy("schedule"))
    def shown_schedule(self, run: Run) -> SafeString | str:
        """Return a link to the schedule, its former name where it is gone."""
        if not Schedule.objects.filter(pk=run.schedule_id).exists():
            return _("%(name)s (deleted)") % {"name": run.schedule_name}
        url = reverse("admin:django_delayq_schedule_change", args=[run.schedule_id], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, run.schedule_name)

    @admin.display(description=gettext_lazy("due"), ordering="due_at")
    def shown_due(self, run: Run) -> SafeString | str:
        """Return the due point, to the second, and who else ordered the run."""
        if run.origin == Origin.DUE:
            return instant(run.due_at)
        return format_html('{}<div class="delayq-note">{}</div>', instant(run.due_at), run.get_origin_display())

    @admin.display(description=gettext_lazy("status"))
    def shown_status(self, run: Run) -> SafeString:
        """Return the status."""
        return status_badge(run.status)

    @admin.display(description=gettext_lazy("reason"))
    def shown_reason(self, run: Run) -> str:
        """Return why it did not succeed, or who has it now."""
        return reason_words(run)

    @admin.display(description=gettext_lazy("origin"))
    def shown_origin(self, run: Run) -> str:
        """Return why there is a run."""
        return run.get_origin_display()

    @admin.display(description=gettext_lazy("lag"))
    def shown_lag(self, run: Run) -> SafeString | str:
        """Return how late it was claimed; a skipped point was not meant to be in time."""
        return "–" if run.started_at is None else milliseconds(run.lag)

    @admin.display(description=gettext_lazy("duration"))
    def shown_duration(self, run: Run) -> SafeString | str:
        """Return how long the last attempt took."""
        return milliseconds(run.duration)

    @admin.display(description=gettext_lazy("due points"))
    def shown_points(self, run: Run) -> SafeString | str:
        """Return how many due points a skipped stretch stands for, and its end."""
        points = str(run.points) if run.points else _("an unknown number")
        if run.last_due_at is None:
            return points
        return format_html("{}, {} {}", points, _("the last at"), instant(run.last_due_at))

    @admin.display(description=gettext_lazy("due"))
    def due(self, run: Run) -> SafeString | str:
        """Return the due point."""
        return instant(run.due_at, millis=True)

    @admin.display(description=gettext_lazy("claimed"))
    def claimed(self, run: Run) -> SafeString | str:
        """Return when a worker took it."""
        return instant(run.claimed_at, millis=True)

    @admin.display(description=gettext_lazy("started"))
    def started(self, run: Run) -> SafeString | str:
        """Return when the last attempt began."""
        return instant(run.started_at, millis=True)

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, run: Run) -> SafeString | str:
        """Return when the last attempt ended."""
        return instant(run.finished_at, millis=True)

    @admin.display(description=gettext_lazy("result"))
    def shown_result(self, run: Run) -> SafeString | str:
        """Return what the task returned; what is named like a secret is hidden."""
        return "–" if run.result is None else block(pretty_json(redact(run.result)))

    @admin.display(description=gettext_lazy("all attempts"))
    def shown_attempts(self, run: Run) -> SafeString:
        """Return all attempts with their tracebacks."""
        return table(ledger.attempts_of(run), redact_text)

    @admin.display(description=gettext_lazy("error"))
    def shown_error(self, run: Run) -> SafeString | str:
        """Return the traceback, also that of a row that was stored unredacted."""
        return block(redact_text(run.error), "delayq-pre delayq-trace")
