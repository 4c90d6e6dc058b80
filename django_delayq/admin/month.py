"""A month of one schedule: what became of its points in the days behind, and what is planned for those ahead."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import coming
from ..coming.days import Row
from ..exceptions import InvalidRecurrence
from ..fields import utcnow
from ..models import Run, Schedule, Status
from .base import BaseAdmin
from .coming import number
from .display import badge, instant, tone_of, zone_of

#: So many of the newest runs are counted.
MOST_COUNTED = 20_000


class MonthPage(BaseAdmin):
    """A page about one schedule, for whoever may view it; its runs are for those only who may see runs."""

    def month_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show fifteen days behind and ahead as a calendar, in the zone of the schedule."""
        rows = self.get_queryset(request).select_related("state")
        schedule: Schedule | None = rows.filter(pk=pk).first() if pk < 2**63 else None
        if not self.has_view_permission(request, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("There is no such schedule; it may have been deleted."))
        now, zone, error = utcnow(), zone_of(schedule), ""
        may = request.user.has_perm("django_delayq.view_run")
        runs = _runs(pk, now - timedelta(days=coming.DAYS + 2)) if may else []
        cut_off = len(runs) > MOST_COUNTED
        days = coming.month(runs[:MOST_COUNTED], zone, now)
        try:
            coming.plan(days, schedule, now)
        except (InvalidRecurrence, ValueError, OverflowError) as wrong:
            error = str(wrong)
        today = now.astimezone(zone).date()
        return self.page(
            request, "schedule/month.html", _("A month of “%(name)s”") % {"name": schedule.name}, error=error,
            zone=schedule.timezone, back=self.address("change", pk), goes_on=coming.goes_on(schedule),
            counted_from=instant(runs[MOST_COUNTED - 1][0], zone) if cut_off else "", counted=number(MOST_COUNTED),
            heads=[f"{day.date:%a}" for day in _weeks(days)[1] if day],
            weeks=[[self._shown(day, pk, today, may) for day in week] for week in _weeks(days)],
        )  # fmt: skip

    def _shown(self, day: coming.Day | None, pk: int, today: Any, may: bool) -> dict[str, Any] | None:
        if day is None:
            return None
        first, end = day.first.isoformat(), day.end.isoformat()
        query = urlencode({"schedule__id__exact": str(pk), "due_at__gte": first, "due_at__lt": end})
        linked = may and day.outcomes
        return {
            "date": f"{day.date:%m-%d}",
            "today": day.date == today,
            "outcomes": [_counted(status, count) for status, count in sorted(day.outcomes.items())],
            "address": f"{self.address('changelist', model='run')}?{query}" if linked else "",
            "planned": badge("quiet", _("%(count)s planned") % {"count": number(day.planned)}) if day.planned else "",
        }


def _counted(status: str, count: int) -> SafeString:
    label = Status(status).label if status in Status.values else status
    return badge("warn" if status == Status.SKIPPED else tone_of(status), f"{number(count)} {label}")


def _runs(pk: int, since: datetime) -> list[Row]:
    """Return the newest runs since then, one more than are counted."""
    rows = Run.objects.filter(schedule_id=pk, due_at__gte=since).order_by("-due_at")
    return list(rows.values_list("due_at", "status", "points")[: MOST_COUNTED + 1])


def _weeks(days: Sequence[coming.Day]) -> list[list[coming.Day | None]]:
    """Return the days in weeks from Monday to Sunday; None where the month has not begun or has ended."""
    padded: list[coming.Day | None] = [*[None] * days[0].date.weekday(), *days]
    padded += [None] * (-len(padded) % 7)
    return [padded[at : at + 7] for at in range(0, len(padded), 7)]
