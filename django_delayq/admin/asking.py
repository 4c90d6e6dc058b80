"""Why did this one not run? A name and a time are typed; the page about that schedule answers, or what did not run then
is listed. Changes nothing.
"""

from datetime import timedelta

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from .. import explain
from ..fields import utcnow
from ..models import Run, Schedule, Status
from ..plain import plain
from . import display, paging
from .base import BaseAdmin

#: So many schedules, or runs, are named.
MOST_NAMED = 50
#: What has such an outcome is found by an index; and how far back a stretch of skipped points may begin.
_NOT_DONE = (Status.FAILED, Status.LOST, Status.SKIPPED)
_BACK = timedelta(days=1)


class AskPage(BaseAdmin):
    """A page for whoever may view schedules; what is said of runs, for whoever may view those."""

    def ask_view(self, request: HttpRequest) -> HttpResponse:
        """Lead to the schedule whose name was typed, or name those that it may be; without a name, what did not run."""
        if not request.user.has_perm("django_delayq.view_schedule"):
            raise PermissionDenied
        name, at, error = request.GET.get("name", "").strip(), request.GET.get("at", "").strip(), ""
        named, runs = list[Schedule](), list[Run]()
        if name:
            named = _named(name)
            if len(named) == 1:
                return HttpResponseRedirect(self._why(named[0].pk, at))
        elif at and request.user.has_perm("django_delayq.view_run"):
            try:
                runs = _not_done(explain.parse_moment(at, timezone.get_current_timezone_name(), utcnow()))
            except (ValueError, OverflowError) as wrong:
                error = str(wrong)
        return self.page(
            request, "overview/ask.html", _("Why did it not run?"), places=self.places(request, "ask"), name=name,
            at=at, error=error, zone=timezone.get_current_timezone_name(), asked=bool(name or at) and not error,
            named=[(row.name, self._why(row.pk, at)) for row in named],
            runs=[
                (plain(run.schedule_name), self._why(run.schedule_id, run.due_at.isoformat()),
                 display.instant(run.due_at), display.status_badge(run.status), display.reason_words(run))
                for run in runs
            ],
        )  # fmt: skip

    def _why(self, pk: int, at: str) -> str:
        return self.address("why", pk, model="schedule") + (f"?{urlencode({'at': at})}" if at else "")


def _named(text: str) -> list[Schedule]:
    """Return the schedule of this name, else those whose name has it in it; in a long list, at its beginning."""
    rows = Schedule.objects.order_by("name")
    found = list(rows.filter(name=text))
    if not found:
        long = paging.is_long(Schedule.objects.all())
        # Of many no order is asked for: PostgreSQL would walk all names for it.
        some = Schedule.objects.order_by().found_by(text) if long else rows.filter(name__icontains=text)
        found = sorted(some[:MOST_NAMED], key=lambda row: row.name)
    return found


def _not_done(moment: explain.Moment) -> list[Run]:
    """Return what was due in this moment and did not succeed, also as a part of a stretch of skipped points."""
    rows = Run.objects.filter(status__in=_NOT_DONE, due_at__gte=moment.first - _BACK, due_at__lt=moment.end)
    return list(
        rows.filter(Q(due_at__gte=moment.first) | Q(last_due_at__gte=moment.first)).order_by("-due_at")[:MOST_NAMED]
    )
