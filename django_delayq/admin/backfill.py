"""The page that orders runs for due points of the past: first shows which, then orders them by a POST."""

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import orders
from ..exceptions import InvalidBackfill, InvalidRecurrence
from ..models import Origin, Run, Schedule
from ..orders import BACKFILLED, UNDECIDED, Candidate
from .actions import ScheduleActions
from .display import Html, status_badge, zone_of
from .formfields import InstantField

#: What the form's inputs are called.
INPUTS = ("start_0", "start_1", "end_0", "end_1")
#: So many points are shown of those that will run, and of those that are left out.
POINTS_SHOWN = 10


def _instants() -> forms.SplitDateTimeWidget:
    """Return inputs that need no script."""
    return forms.SplitDateTimeWidget(
        date_format="%Y-%m-%d",
        time_format="%H:%M:%S",
        date_attrs={"type": "date"},
        time_attrs={"type": "time", "step": "1"},
    )


class BackfillForm(forms.Form):
    start = InstantField(label=gettext_lazy("From"), widget=_instants())
    end = InstantField(label=gettext_lazy("To"), widget=_instants(), help_text=gettext_lazy("Both ends are included."))


class ScheduleBackfill(ScheduleActions):
    """The page behind the button “Backfill…”. Whoever may run a schedule now may backfill it."""

    def backfill_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a time and show its due points (GET), order their runs (POST)."""
        schedule, posted = self.one(request, pk), request.method == "POST"
        form = BackfillForm(request.POST if posted else request.GET if INPUTS[0] in request.GET else None)
        plan: list[Candidate] | None = None
        if form.is_valid():
            span = form.cleaned_data["start"], form.cleaned_data["end"]
            try:
                if posted:
                    self._tell(request, schedule, orders.backfill(schedule, *span))
                    return HttpResponseRedirect(self.address("change", pk))
                plan = orders.plan_backfill(schedule, *span)
            except (InvalidBackfill, InvalidRecurrence) as error:
                form.add_error(None, str(error))
        wanted = [item for item in plan or () if not item.left_out]
        left_out = [item for item in plan or () if item.left_out]
        return self.page(
            request, "schedule/backfill.html", _("Backfill “%(name)s”") % {"name": schedule.name}, form=form,
            timezone=schedule.timezone, zone=timezone.get_current_timezone_name(), shown=plan is not None,
            hidden=[(name, form.data.get(name, "")) for name in INPUTS], back=self.address("change", pk),
            wanted=_rows(schedule, wanted), count=len(wanted), more=len(wanted) - POINTS_SHOWN,
            left_out=_rows(schedule, left_out), count_out=len(left_out), more_out=len(left_out) - POINTS_SHOWN,
        )  # fmt: skip

    def _tell(self, request: HttpRequest, schedule: Schedule, runs: list[Run]) -> None:
        if not runs:
            self.message_user(request, _("There is nothing left to run in this time."), messages.WARNING)
            return
        note = ngettext("Backfill: %(count)d run.", "Backfill: %(count)d runs.", len(runs)) % {"count": len(runs)}
        self.log_change(request, schedule, f"{note} {_utc(runs[0].due_at)} – {_utc(runs[-1].due_at)} UTC")
        text = ngettext("{} run of “{}” is ordered: {}", "{} runs of “{}” are ordered: {}", len(runs))
        query = f"?schedule__id__exact={schedule.pk}&origin__exact={Origin.BACKFILL.value}"
        link = format_html('<a href="{}{}">{}</a>', self.address("changelist", model="run"), query, _("see the runs"))
        self.message_user(request, format_html(text, len(runs), schedule.name, link), messages.SUCCESS)


def _rows(schedule: Schedule, plan: list[Candidate]) -> list[dict[str, Any]]:
    zone = zone_of(schedule)
    return [
        {
            "local": f"{item.due_at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}",
            "utc": _utc(item.due_at),
            "why": _why(item),
        }
        for item in plan[:POINTS_SHOWN]
    ]


def _utc(point: datetime) -> str:
    return f"{point.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _why(item: Candidate) -> Html:
    """Return what the ledger says of a point, or why it is left out although the ledger says nothing."""
    if item.left_out == BACKFILLED:
        return format_html("{} {}", _("backfilled before"), status_badge(item.known))
    if item.left_out == UNDECIDED:
        return _("the schedule has still to decide it")
    return status_badge(item.known) if item.known else _("nothing recorded")
