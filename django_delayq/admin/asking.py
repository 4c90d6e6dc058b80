"""Search: a name leads to its schedule, an id to its job, a time lists what did not succeed then. Changes nothing."""

from datetime import timedelta

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from .. import ledger
from ..calls import parse_id
from ..models import Run, Schedule, Status
from ..monitoring import explain
from ..recurrence.point import utcnow
from ..text import escape_text
from . import display
from .base import BaseAdmin, can_view, find_key_before_newest, is_long

#: Maximum schedules or runs listed.
MOST_NAMED = 50
#: Outcomes that an index finds, and how far back a stretch of skipped points may begin.
_NOT_DONE = (Status.FAILED, Status.LOST, Status.SKIPPED)
_BACK = timedelta(days=1)


class AskPage(BaseAdmin):
    """A page for users who may view schedules; finding runs and jobs requires the permission to view runs."""

    def ask_view(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the typed schedule or job, or list the candidates; without a name, list what did not succeed."""
        if not can_view(request, "schedule"):
            raise PermissionDenied
        name, at, error = request.GET.get("name", "").strip(), request.GET.get("at", "").strip(), ""
        named, runs, sees_runs = list[Schedule](), list[Run](), can_view(request, "run")
        if name:
            if (job := parse_id(name)) is not None and ledger.find_job(*job) is not None and sees_runs:
                return HttpResponseRedirect(self.get_url("change", job[0], model="run"))
            rows = Schedule.objects.order_by("name")
            part = "name__startswith" if is_long(rows) else "name__icontains"  # as the list's search
            named = list(rows.filter(name=name)) or list(rows.filter(**{part: name})[:MOST_NAMED])
            if len(named) == 1:
                return HttpResponseRedirect(self._get_why_url(named[0].pk, at))
        elif at and sees_runs:
            try:
                runs = _list_unsuccessful(explain.parse_moment(at, timezone.get_current_timezone_name(), utcnow()))
            except (ValueError, OverflowError) as wrong:
                error = str(wrong)
        return self.render_page(
            request, "overview/ask.html", _("Why did it not run?"), places=self.list_places(request, "ask"), name=name,
            at=at, error=error, zone=timezone.get_current_timezone_name(), asked=bool(name or at) and not error,
            named=[(row.name, self._get_why_url(row.pk, at)) for row in named],
            runs=[
                (escape_text(run.title), self.get_url("change", run.pk, model="run") if run.schedule_id is None
                 else self._get_why_url(run.schedule_id, run.due_at.isoformat()),
                 display.format_instant(run.due_at), display.format_status(run.status), display.describe_reason(run))
                for run in runs
            ],
        )  # fmt: skip

    def _get_why_url(self, pk: int, at: str) -> str:
        return self.get_url("why", pk, model="schedule") + (f"?{urlencode({'at': at})}" if at else "")


def _list_unsuccessful(moment: explain.Moment) -> list[Run]:
    """Return unsuccessful runs and skipped stretches due in this moment, from the newest rows of each outcome."""
    found = list[Run]()
    for status in _NOT_DONE:
        rows = ledger.query_status(status)
        rows = rows.filter(pk__gt=find_key_before_newest(rows), due_at__gte=moment.first - _BACK, due_at__lt=moment.end)
        rows = rows.filter(Q(due_at__gte=moment.first) | Q(last_due_at__gte=moment.first))
        found += rows.order_by("-pk")[:MOST_NAMED]
    return sorted(found, key=lambda run: run.due_at, reverse=True)[:MOST_NAMED]
