"""Why did this run, or not? A time is typed; the sentences of `delayq_explain` appear, and the runs behind them."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from .. import explain
from ..fields import utcnow
from ..models import Run, Schedule
from ..plain import plain
from ..timing.zone import get_zone
from .base import BaseAdmin
from .display import instant, status_badge, zone_of

RUNS_SHOWN = 10


class WhyPage(BaseAdmin):
    """A page about one schedule, for whoever may view it."""

    def why_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Answer about the time that the address names, else how it stands now."""
        schedule: Schedule | None = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.has_view_permission(request, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("There is no such schedule; it may have been deleted."))
        typed, details = request.GET.get("at", "").strip(), self.has_change_permission(request, schedule)
        lines, runs, error = list[str](), list[dict[str, Any]](), ""
        try:
            get_zone(schedule.timezone)
            if typed:
                moment = explain.parse_moment(typed, schedule.timezone, utcnow())
                lines = explain.explain_point(schedule, moment, utcnow(), details=details)
                runs = self._runs(request, schedule, moment)
            else:
                lines = explain.explain_state(schedule, utcnow(), details=details)
        except (ValueError, OverflowError) as wrong:  # InvalidRecurrence is one
            error = str(wrong)
        return self.page(
            request, "schedule/why.html", _("Why did “%(name)s” run, or not?") % {"name": schedule.name}, typed=typed,
            lines=[plain(line) for line in lines], error=error, zone=schedule.timezone, runs=runs,
            back=self.address("change", pk),
        )  # fmt: skip

    def _runs(self, request: HttpRequest, schedule: Schedule, moment: explain.Moment) -> list[dict[str, Any]]:
        if not request.user.has_perm("django_delayq.view_run"):
            return []
        inside = Run.objects.filter(schedule_id=schedule.pk, due_at__gte=moment.first, due_at__lt=moment.end)
        zone = zone_of(schedule)
        return [
            {
                "address": self.address("change", run.pk, model="run"),
                "due": instant(run.due_at, zone),
                "status": status_badge(run.status),
            }
            for run in inside.order_by("due_at")[:RUNS_SHOWN]
        ]
