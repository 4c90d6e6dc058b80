"""What a person can do to schedules: run now, pause, resume, backfill. Each is a POST with a
permission, one call per schedule and one message; what it means is for `orders`, the models and the mirror to say.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from .. import chain, orders
from ..exceptions import InvalidBackfill, InvalidRecurrence
from ..models import Origin, Run, Schedule
from ..orders import BACKFILLED, PRUNED, UNDECIDED, Candidate
from .base import View
from .bulk import ACTIONS, BulkActions, logged
from .display import Html, status_badge, zone_of
from .formfields import InstantField
from .forms import PauseForm

#: So many names are shown on the page that asks for a reason.
NAMES_SHOWN = 20
#: So many points are shown of those that a backfill runs, and of those that it leaves out.
POINTS_SHOWN = 10
#: What the inputs of the form of a backfill are called.
INPUTS = ("start_0", "start_1", "end_0", "end_1")
Change = Callable[[Schedule], None]


def _instants() -> forms.SplitDateTimeWidget:
    """Return inputs that need no script."""
    date: dict[str, Any] = {"type": "date", "aria-label": gettext_lazy("Date")}
    time: dict[str, Any] = {"type": "time", "step": "1", "aria-label": gettext_lazy("Time")}
    return forms.SplitDateTimeWidget(date_format="%Y-%m-%d", time_format="%H:%M:%S", date_attrs=date, time_attrs=time)


class BackfillForm(forms.Form):
    start = InstantField(label=gettext_lazy("From"), widget=_instants())
    end = InstantField(label=gettext_lazy("To"), widget=_instants(), help_text=gettext_lazy("Both ends are included."))


class Asked(NamedTuple):
    """What is asked before something is done to one schedule, or to several."""

    label: Any
    one: Any
    several: Any
    note: Any


ASKED = {
    "run_now": Asked(
        gettext_lazy("Run now"), gettext_lazy("Run “%(name)s” now"), gettext_lazy("Run %(count)d schedules now"),
        ACTIONS["run_now"][1],
    ),
    "pause": Asked(
        gettext_lazy("Pause"), gettext_lazy("Pause “%(name)s”"), gettext_lazy("Pause %(count)d schedules"),
        ACTIONS["pause"][1],
    ),
    "resume": Asked(
        gettext_lazy("Resume"), gettext_lazy("Resume “%(name)s”"), gettext_lazy("Resume %(count)d schedules"),
        ACTIONS["resume"][1],
    ),
}  # fmt: skip


class ScheduleActions(BulkActions):
    """The actions of the list, and the same as buttons of the form."""

    actions = ("run_now", "pause", "resume")

    def has_run_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "run_now")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "pause")

    @admin.action(permissions=["run"], description=gettext_lazy("Run selected schedules now…"))
    def run_now(self, request: HttpRequest, schedules: Sequence[Schedule]) -> HttpResponse | None:
        return self._confirmed(request, schedules, "run_now")

    @admin.action(permissions=["pause"], description=gettext_lazy("Pause selected schedules…"))
    def pause(self, request: HttpRequest, schedules: Sequence[Schedule]) -> HttpResponse | None:
        return self._confirmed(request, schedules, "pause")

    @admin.action(permissions=["pause"], description=gettext_lazy("Resume selected schedules…"))
    def resume(self, request: HttpRequest, schedules: Sequence[Schedule]) -> HttpResponse | None:
        return self._confirmed(request, schedules, "resume")

    def _confirmed(self, request: HttpRequest, schedules: Sequence[Schedule], name: str) -> HttpResponse | None:
        """Ask, then do it to each: an action of the list, where Django knows a POST only."""
        if "apply" in request.POST:
            return self._do(request, schedules, name)
        return self._ask(request, schedules, name)

    def button(self, name: str) -> View:
        """Return the view that asks (GET), and does it to one schedule and leads back to it (POST)."""

        def view(request: HttpRequest, pk: int) -> HttpResponse:
            schedules = [self.one(request, pk, name)]
            if request.method != "POST":
                return self._ask(request, schedules, name)
            return self._do(request, schedules, name) or HttpResponseRedirect(self.address("change", pk))

        return view

    def _ask(
        self, request: HttpRequest, schedules: Sequence[Schedule], name: str, form: PauseForm | None = None
    ) -> HttpResponse:
        action, chosen = ASKED[name], request.POST.getlist(ACTION_CHECKBOX_NAME)
        across, back = request.POST.get("select_across", "0"), request.get_full_path()
        if across == "1":  # Django wants to see one of them; a form with thousands is refused
            chosen = chosen[:1]
        hidden = [("action", name), ("select_across", across), *((ACTION_CHECKBOX_NAME, pk) for pk in chosen)]
        names, count = [schedule.name for schedule in schedules], len(schedules)
        if not chosen:  # one schedule's own page
            hidden, back = [], self.address("change", schedules[0].pk)
        title = action.one % {"name": names[0]} if count == 1 else action.several % {"count": count}
        return self.page(
            request, "confirm.html", title,
            note=action.note, form=form or (PauseForm() if name == "pause" else None),
            names=names[:NAMES_SHOWN] if count > 1 else [], more=count - NAMES_SHOWN, hidden=hidden, back=back,
            button=action.label,
        )  # fmt: skip

    def _do(self, request: HttpRequest, schedules: Sequence[Schedule], name: str) -> HttpResponse | None:
        by = request.user.get_username()
        if name == "run_now":
            self.order_runs(request, schedules)
        elif name == "pause":
            form = PauseForm(request.POST)
            if not form.is_valid():
                return self._ask(request, schedules, name, form)
            reason = form.cleaned_data["reason"]
            text = ngettext_lazy("“%(name)s” is paused.", "%(count)d schedules are paused.", "count")
            self._each(
                request, schedules, lambda schedule: schedule.pause(reason, by=by), logged("pause", reason), text
            )
        else:
            text = ngettext_lazy("“%(name)s” goes on with its next due point.", "%(count)d schedules go on.", "count")
            self._each(request, schedules, lambda schedule: schedule.resume(by=by), logged("resume"), text)
        return None

    def order_runs(self, request: HttpRequest, schedules: Sequence[Schedule]) -> None:
        """Order one run of each, note it in their histories, and say so."""
        runs = orders.run_each_now(schedules)
        for schedule in schedules:
            self.log_change(request, schedule, logged("run_now"))
        text: Any = ngettext("%(count)d run is ordered.", "%(count)d runs are ordered.", len(runs))
        text %= {"count": len(runs)}
        if len(runs) == 1:
            link = format_html('<a href="{}">{}</a>', self.address("change", runs[0].pk, model="run"), _("see the run"))
            text = format_html(_("A run of “{}” is ordered: {}"), runs[0].schedule_name, link)
        self.message_user(request, text, messages.SUCCESS)

    def backfill_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a time and show its due points (GET), order their runs (POST)."""
        schedule, posted = self.one(request, pk, "backfill"), request.method == "POST"
        form = BackfillForm(request.POST if posted else request.GET if INPUTS[0] in request.GET else None)
        plan: list[Candidate] | None = None
        if form.is_valid():
            span = form.cleaned_data["start"], form.cleaned_data["end"]
            try:
                if posted:
                    self._tell_backfilled(request, schedule, orders.backfill(schedule, *span))
                    return HttpResponseRedirect(self.address("change", pk))
                plan = orders.plan_backfill(schedule, *span)
            except (InvalidBackfill, InvalidRecurrence) as error:
                form.add_error(None, str(error))
        return self.page(
            request, "schedule/backfill.html", _("Backfill “%(name)s”") % {"name": schedule.name}, form=form,
            timezone=schedule.timezone, zone=timezone.get_current_timezone_name(), shown=plan is not None,
            hidden=[(name, form.data.get(name, "")) for name in INPUTS], back=self.address("change", pk),
            pruned=(until := chain.state_of(schedule).pruned_until) and _utc(until),
            wanted=_points(schedule, [item for item in plan or () if not item.left_out]),
            left_out=_points(schedule, [item for item in plan or () if item.left_out]),
        )  # fmt: skip

    def one(self, request: HttpRequest, pk: int, name: str = "change") -> Schedule:
        """Return the schedule of a page that changes it, or does this to it.

        Raises:
            PermissionDenied, Http404: It may not be changed, or is not there.
        """
        schedule: Schedule | None = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.may(request, name, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("There is no such schedule; it may have been deleted."))
        return schedule

    def _each(self, request: HttpRequest, schedules: Sequence[Schedule], do: Change, logged: str, text: Any) -> None:
        for schedule in schedules:
            do(schedule)
            self.log_change(request, schedule, logged)
        names = [schedule.name for schedule in schedules]
        self.message_user(request, text % {"count": len(names), "name": "".join(names[:1])}, messages.SUCCESS)

    def _tell_backfilled(self, request: HttpRequest, schedule: Schedule, runs: list[Run]) -> None:
        if not runs:
            self.message_user(request, _("There is nothing left to run in this time."), messages.WARNING)
            return
        note = ngettext("Backfill: %(count)d run.", "Backfill: %(count)d runs.", len(runs)) % {"count": len(runs)}
        self.log_change(request, schedule, f"{note} {_utc(runs[0].due_at)} – {_utc(runs[-1].due_at)} UTC")
        text = ngettext("{} run of “{}” is ordered: {}", "{} runs of “{}” are ordered: {}", len(runs))
        query = f"?schedule__id__exact={schedule.pk}&origin__exact={Origin.BACKFILL.value}"
        link = format_html('<a href="{}{}">{}</a>', self.address("changelist", model="run"), query, _("see the runs"))
        self.message_user(request, format_html(text, len(runs), schedule.name, link), messages.SUCCESS)


def _points(schedule: Schedule, points: list[Candidate]) -> dict[str, Any]:
    zone = zone_of(schedule)
    shown = [(item.due_at.astimezone(zone), item) for item in points[:POINTS_SHOWN]]
    rows = [(f"{local:%a %Y-%m-%d %H:%M:%S %Z}", _utc(item.due_at), _why(item)) for local, item in shown]
    has_utc = any(local.utcoffset() for local, _item in shown)
    return {"rows": rows, "has_utc": has_utc, "count": len(points), "more": len(points) - POINTS_SHOWN}


def _utc(point: datetime) -> str:
    return f"{point.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _why(item: Candidate) -> Html:
    """Return what the ledger says of a point, or why it is left out although the ledger says nothing."""
    if item.left_out == BACKFILLED:
        return format_html("{} {}", _("backfilled before"), status_badge(item.known))
    if item.left_out == UNDECIDED:
        return _("the schedule has still to decide it")
    if item.left_out == PRUNED:
        return format_html("{} {}", _("its history is pruned"), status_badge(item.known) if item.known else "")
    return status_badge(item.known) if item.known else _("nothing recorded")
