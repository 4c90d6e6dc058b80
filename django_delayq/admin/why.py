"""Why a schedule ran or did not run at a time: an explanation and the runs."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from .. import ledger
from ..models import Run, Schedule
from ..monitoring import explain
from ..recurrence.point import utcnow
from ..recurrence.zone import get_zone
from ..text import escape_text
from .display import Html, find_zone, format_instant, format_status
from .schedule_actions import ScheduleActions

RUNS_SHOWN = 10


class WhyPage(ScheduleActions):
    """A page about one schedule, for users who may view it."""

    def why_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Explain the time in the address, or without one the current state."""
        schedule: Schedule | None = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.has_view_permission(request, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("This schedule does not exist; it may have been deleted."))
        typed = request.GET.get("at", "").strip()
        lines, runs, error = list[str](), list[dict[str, Any]](), ""
        try:
            get_zone(schedule.timezone)
            if typed:
                moment = explain.parse_moment(typed, schedule.timezone, utcnow())
                lines = explain.explain_point(schedule, moment, utcnow())
                runs = self._list_runs(request, schedule, moment)
            else:
                lines = explain.explain_state(schedule, utcnow())
        except (ValueError, OverflowError) as wrong:  # including InvalidRecurrence
            error = str(wrong)
        resumes = not schedule.enabled and self.can_act(request, "resume", schedule)
        return self.render_page(
            request, "schedule/why.html", _("Why did “%(name)s” run, or not?") % {"name": schedule.name}, typed=typed,
            lines=list(map(escape_text, lines)), error=error, zone=schedule.timezone, runs=runs,
            back=self.get_url("change", pk), places=self.list_places(request, "ask"),
            pauses=self._list_pauses(request, schedule), resume=self.get_url("resume", pk) if resumes else "",
        )  # fmt: skip

    def _list_runs(self, request: HttpRequest, schedule: Schedule, moment: explain.Moment) -> list[dict[str, Any]]:
        if not request.user.has_perm("django_delayq.view_run"):
            return []
        inside = Run.objects.filter(schedule_id=schedule.pk, due_at__gte=moment.first, due_at__lt=moment.end)
        zone = find_zone(schedule)
        return [
            {
                "address": self.get_url("change", run.pk, model="run"),
                "due": format_instant(run.due_at, zone),
                "status": format_status(run.status),
            }
            for run in inside.order_by("due_at")[:RUNS_SHOWN]
        ]

    def _list_pauses(self, request: HttpRequest, schedule: Schedule) -> list[Html]:
        if not request.user.has_perm("django_delayq.change_control"):
            return []
        name = schedule.queue, schedule.task
        held = [row for row in ledger.load_controls() if row.is_paused() and row.is_about(*name)]
        link = '<a role="button" href="{}">{}</a>'
        return [format_html(link, self.get_url("change", row.pk, model="control"), row) for row in held]
