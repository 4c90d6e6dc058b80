"""Why a schedule ran or did not run at a time: an explanation, the runs, and users' actions around that time."""

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from .. import ledger
from ..models import Control, Run, Schedule
from ..monitoring import explain
from ..recurrence.point import utcnow
from ..recurrence.zone import get_zone
from ..text import plain
from .display import Html, instant, status_badge, zone_of
from .schedule_actions import ScheduleActions
from .schedule_history import Event, read

RUNS_SHOWN = 10
#: Maximum actions shown before that time, and of the day after it.
ACTS_SHOWN = 3


class WhyPage(ScheduleActions):
    """A page about one schedule, for users who may view it."""

    def why_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Explain the time in the address, or without one the current state."""
        schedule: Schedule | None = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.has_view_permission(request, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("There is no such schedule; it may have been deleted."))
        typed, details = request.GET.get("at", "").strip(), self.has_change_permission(request, schedule)
        lines, runs, error, moment = list[str](), list[dict[str, Any]](), "", None
        try:
            get_zone(schedule.timezone)
            if typed:
                moment = explain.parse_moment(typed, schedule.timezone, utcnow())
                lines = explain.explain_point(schedule, moment, utcnow(), details=details)
                runs = self._runs(request, schedule, moment)
            else:
                lines = explain.explain_state(schedule, utcnow(), details=details)
        except (ValueError, OverflowError) as wrong:  # including InvalidRecurrence
            error = str(wrong)
        return self.page(
            request, "schedule/why.html", _("Why did “%(name)s” run, or not?") % {"name": schedule.name}, typed=typed,
            lines=[plain(line) for line in lines], error=error, zone=schedule.timezone, runs=runs,
            back=self.address("change", pk), places=self.places(request, "ask"), pauses=self._pauses(request, schedule),
            resume="" if schedule.enabled or not self.may(request, "resume", schedule) else self.address("resume", pk),
            events=self._acts(request, schedule, utcnow() if moment is None else moment.first),
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

    def _pauses(self, request: HttpRequest, schedule: Schedule) -> list[Html]:
        if not request.user.has_perm("django_delayq.change_control"):
            return []
        held = [row for row in ledger.held_back() if row.is_paused() and row.concerns(schedule.queue, schedule.task)]
        link = '<a role="button" href="{}">{}</a>'
        return [format_html(link, self.address("change", row.pk, model="control"), row) for row in held]

    def _acts(self, request: HttpRequest, schedule: Schedule, at: datetime) -> list[Event]:
        """Return actions shortly before and after that time that the user may view, newest first."""
        about: list[tuple[str, Schedule | Control]] = [("schedule", schedule)]
        if request.user.has_perm("django_delayq.view_control"):
            rows = Control.objects.all()
            about += [("control", row) for row in rows if row.concerns(schedule.queue, schedule.task)]
        found: list[Event] = []
        for model, row in about:
            for event in read(row):
                event.label = str(row._meta.verbose_name)
                event.address = self.address("history", row.pk, model=model)
                found.append(event)
        found.sort(key=lambda event: event.at, reverse=True)
        after = [event for event in found if at < event.at <= at + timedelta(days=1)]
        return [*after[-ACTS_SHOWN:], *[event for event in found if event.at <= at][:ACTS_SHOWN]]
