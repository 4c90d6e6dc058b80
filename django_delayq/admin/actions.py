"""Actions on schedules, each a POST that checks a permission. The logic is in `actions`, the models and `sync`."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import Error, transaction
from django.db.models import F, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from .. import actions, ledger
from ..actions import BACKFILLED, PRUNED, UNDECIDED, Candidate
from ..calls.validators import read_key
from ..exceptions import InvalidArguments, InvalidRecurrence
from ..ledger import chain
from ..models import Definition, Origin, Run, Schedule, ScheduleQuerySet
from ..models.kept import MOST_AT_ONCE
from ..text import plain
from .base import BaseAdmin, View
from .display import Html, status_badge, zone_of
from .formfields import InstantField
from .forms import PauseForm
from .paging import is_long

#: Maximum names listed on a confirmation page.
NAMES_SHOWN = 20
#: Maximum points listed of those that a backfill runs, and of those that it leaves out.
POINTS_SHOWN = 10
#: Input names of the backfill form.
INPUTS = ("start_0", "start_1", "end_0", "end_1")
#: Seconds after which no further slice begins.
SECONDS = 10


def _instants() -> forms.SplitDateTimeWidget:
    """Return native date and time inputs, which need no JavaScript."""
    date: dict[str, Any] = {"type": "date", "aria-label": gettext_lazy("Date")}
    time: dict[str, Any] = {"type": "time", "step": "1", "aria-label": gettext_lazy("Time")}
    return forms.SplitDateTimeWidget(date_format="%Y-%m-%d", time_format="%H:%M:%S", date_attrs=date, time_attrs=time)


class BackfillForm(forms.Form):
    start = InstantField(label=gettext_lazy("From"), widget=_instants())
    end = InstantField(label=gettext_lazy("To"), widget=_instants(), help_text=gettext_lazy("Both ends are included."))


def _switch(schedules: ScheduleQuerySet, by: str, **values: Any) -> None:
    """Update schedules, and store the user in the definitions that this edit replaced."""
    schedules.update(**values)
    kept = Definition.objects.using(schedules.db).filter(schedule__in=schedules.values("pk"), by="")
    kept.filter(followed_by=F("schedule__generation")).update(by=by)


class Asked(NamedTuple):
    """What an action asks, does and reports. `do` takes the schedules, the username and the reason."""

    label: Any
    one: Any
    several: Any
    note: Any
    do: Callable[[Any, str, str], Any] = lambda schedules, by, reason: None
    done: Any = ""


ASKED = {
    "run_now": Asked(
        gettext_lazy("Run now"), gettext_lazy("Run “%(name)s” now"), gettext_lazy("Run %(count)d schedules now"),
        gettext_lazy("A run is ordered, also of what is paused. It ignores overlap and moves no due point."),
        lambda schedules, by, reason: actions.run_each_now(schedules),
        ngettext_lazy("%(count)d run is ordered.", "%(count)d runs are ordered.", "count"),
    ),
    "pause": Asked(
        gettext_lazy("Pause"), gettext_lazy("Pause “%(name)s”"), gettext_lazy("Pause %(count)d schedules"),
        gettext_lazy(
            "No further run starts until somebody resumes. A run that is going on finishes and is recorded; due points "
            "that pass meanwhile are not made up for."
        ),
        lambda schedules, by, reason: _switch(schedules, by, enabled=False, pause_reason=reason),
        ngettext_lazy("“%(name)s” is paused.", "%(count)d schedules are paused.", "count"),
    ),
    "resume": Asked(
        gettext_lazy("Resume"), gettext_lazy("Resume “%(name)s”"), gettext_lazy("Resume %(count)d schedules"),
        gettext_lazy("It goes on with the first due point from now on. What passed meanwhile is not made up for."),
        lambda schedules, by, reason: _switch(schedules, by, enabled=True, pause_reason=""),
        ngettext_lazy("“%(name)s” goes on with its next due point.", "%(count)d schedules go on.", "count"),
    ),
    "delete_selected": Asked(
        gettext_lazy("Delete"), gettext_lazy("Delete “%(name)s”"), gettext_lazy("Delete %(count)d schedules"),
        gettext_lazy(
            "They are gone; their runs stay in the history. What the code declares comes back with the next sync."
        ),
        lambda schedules, by, reason: schedules.delete(),
        ngettext_lazy("“%(name)s” is deleted.", "%(count)d schedules are deleted.", "count"),
    ),
}  # fmt: skip
#: Permission for each action. `change_schedule` includes all of them, but not deletion.
PERMISSIONS = {
    "run_now": "run_schedule", "backfill": "run_schedule", "pause": "pause_schedule", "resume": "pause_schedule",
}  # fmt: skip


class ScheduleActions(BaseAdmin):
    """The list's actions, also available as buttons on the form."""

    actions = ("run_now", "pause", "resume", "delete_selected")

    def may(self, request: HttpRequest, name: str, schedule: Schedule | None = None) -> bool:
        """Return whether the user may change schedules, or may view them and has the action's permission."""
        own = PERMISSIONS.get(name)
        if self.has_change_permission(request, schedule):
            return True
        return (
            bool(own) and self.has_view_permission(request, schedule) and request.user.has_perm(f"django_delayq.{own}")
        )

    def has_run_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "run_now")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "pause")

    @admin.action(permissions=["run"], description=gettext_lazy("Run selected schedules now…"))
    def run_now(self, request: HttpRequest, schedules: QuerySet[Schedule]) -> HttpResponse | None:
        return self._confirmed(request, schedules, "run_now")

    @admin.action(permissions=["pause"], description=gettext_lazy("Pause selected schedules…"))
    def pause(self, request: HttpRequest, schedules: QuerySet[Schedule]) -> HttpResponse | None:
        return self._confirmed(request, schedules, "pause")

    @admin.action(permissions=["pause"], description=gettext_lazy("Resume selected schedules…"))
    def resume(self, request: HttpRequest, schedules: QuerySet[Schedule]) -> HttpResponse | None:
        return self._confirmed(request, schedules, "resume")

    @admin.action(permissions=["delete"], description=delete_selected.short_description)  # type: ignore[attr-defined]
    def delete_selected(self, request: HttpRequest, schedules: QuerySet[Schedule]) -> HttpResponse | None:
        """Delete up to MOST_AT_ONCE as Django does, listing related objects; more in slices."""
        if "apply" in request.POST or is_long(schedules, MOST_AT_ONCE):
            return self._confirmed(request, schedules, "delete_selected")
        response: HttpResponse | None = delete_selected(self, request, schedules)
        return response

    def _confirmed(self, request: HttpRequest, schedules: QuerySet[Schedule], name: str) -> HttpResponse | None:
        """Ask, or act once confirmed: Django calls actions by POST only. `after`: the last primary key already done."""
        after = read_key(request.POST.get("after", ""))
        schedules = schedules if after is None else schedules.filter(pk__gt=after)
        return self.act(request, schedules, name) if "apply" in request.POST else self._ask(request, schedules, name)

    def button(self, name: str) -> View:
        """Return a view that asks (GET), or acts on one schedule and redirects to it (POST)."""

        def view(request: HttpRequest, pk: int) -> HttpResponse:
            self.one(request, pk, name)
            schedules = self.get_queryset(request).filter(pk=pk)
            if request.method != "POST":
                return self._ask(request, schedules, name)
            if (response := self.act(request, schedules, name)) is not None:
                return response
            return HttpResponseRedirect(self.address("change", pk))

        return view

    def _ask(
        self,
        request: HttpRequest,
        schedules: QuerySet[Schedule],
        name: str,
        form: PauseForm | None = None,
        after: int | None = None,
    ) -> HttpResponse:
        action, chosen = ASKED[name], request.POST.getlist(ACTION_CHECKBOX_NAME)
        across, back = request.POST.get("select_across", "0"), request.get_full_path()
        if across == "1":  # Django needs one selected key, and rejects a form with thousands of fields
            chosen = chosen[:1]
        hidden = [("action", name), ("select_across", across), *((ACTION_CHECKBOX_NAME, pk) for pk in chosen)]
        hidden += [] if after is None else [("after", str(after))]
        names, count = [schedule.name for schedule in schedules[:NAMES_SHOWN]], schedules.order_by().count()
        if not chosen:  # called from the page of one schedule
            hidden, back = [], self.address("change", schedules[0].pk)
        title = action.one % {"name": names[0]} if count == 1 else action.several % {"count": count}
        return self.page(
            request, "confirm.html", title,
            note=action.note, form=form or (PauseForm() if name == "pause" else None),
            names=names if count > 1 else [], more=count - NAMES_SHOWN, hidden=hidden, back=back,
            button=action.label, grave=name == "delete_selected",
        )  # fmt: skip

    def act(self, request: HttpRequest, schedules: QuerySet[Schedule], name: str) -> HttpResponse | None:
        """Act slice by slice, each in a transaction; after SECONDS or a database error, ask again about the rest."""
        form = PauseForm(request.POST) if name == "pause" else None
        if form is not None and not form.is_valid():
            return self._ask(request, schedules, name, form)
        reason, end = form.cleaned_data["reason"] if form else "", time.monotonic() + SECONDS
        pks, at, done, why = list(schedules.order_by("pk").values_list("pk", flat=True)), 0, 0, ""
        while at < len(pks) and not why:
            try:
                rows, result = self._act_on_slice(request, pks[at : at + MOST_AT_ONCE], name, reason)
            except Error as error:
                why = plain(str(error))
                break
            at, done = at + MOST_AT_ONCE, done + len(rows)
            if time.monotonic() >= end:
                why = _("it takes longer than %(seconds)d seconds") % {"seconds": SECONDS}
        if done:
            text = ASKED[name].done % {"count": done, "name": rows[0].name if rows else ""}
            if done == 1 and name == "run_now":
                link = self.address("change", result[0].pk, model="run")
                link = format_html('<a href="{}">{}</a>', link, _("see the run"))
                text = format_html(_("A run of “{}” is ordered: {}"), rows[0].name, link)
            self.message_user(request, text, messages.SUCCESS)
        if at >= len(pks):
            return None
        text = _("%(left)d of %(total)d schedules are left as they were: %(why)s. Repeat it for the rest.")
        text %= {"left": len(pks) - at, "total": len(pks), "why": why}
        self.message_user(request, text, messages.WARNING)
        last = pks[at - 1] if at else None
        return self._ask(request, schedules if last is None else schedules.filter(pk__gt=last), name, form, last)

    def _act_on_slice(
        self, request: HttpRequest, pks: Sequence[int], name: str, reason: str
    ) -> tuple[list[Schedule], Any]:
        """Act on one slice and log it; return the schedules that still existed, and the result of the action."""
        with transaction.atomic(using=ledger.database()):
            schedules = self.get_queryset(request).filter(pk__in=pks)
            rows, user = list(schedules), cast(int, request.user.pk)
            if name == "delete_selected":
                self.log_deletions(request, schedules)
            result = ASKED[name].do(schedules, request.user.get_username(), reason)
            if name != "delete_selected":
                LogEntry.objects.log_actions(user, rows, CHANGE, change_message=_logged(name, reason))
            return rows, result

    def backfill_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a period and show its due points (GET), or create their runs (POST)."""
        schedule, posted = self.one(request, pk, "backfill"), request.method == "POST"
        form = BackfillForm(request.POST if posted else request.GET if INPUTS[0] in request.GET else None)
        plan: list[Candidate] | None = None
        if form.is_valid():
            span = form.cleaned_data["start"], form.cleaned_data["end"]
            try:
                if posted:
                    self._tell_backfilled(request, schedule, actions.backfill(schedule, *span))
                    return HttpResponseRedirect(self.address("change", pk))
                plan = actions.plan_backfill(schedule, *span)
            except (InvalidArguments, InvalidRecurrence) as error:
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
        """Return the schedule that a page changes, or does `name` to. Raises PermissionDenied or Http404 instead."""
        schedule: Schedule | None = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.may(request, name, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("There is no such schedule; it may have been deleted."))
        return schedule

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


def _logged(name: str, reason: str) -> str:
    if name == "pause":
        return _("Paused: %(reason)s") % {"reason": reason} if reason else _("Paused.")
    return _("Run now.") if name == "run_now" else _("Resumed.")


def _points(schedule: Schedule, points: list[Candidate]) -> dict[str, Any]:
    zone = zone_of(schedule)
    shown = [(item.due_at.astimezone(zone), item) for item in points[:POINTS_SHOWN]]
    rows = [(f"{local:%a %Y-%m-%d %H:%M:%S %Z}", _utc(item.due_at), _why(item)) for local, item in shown]
    has_utc = any(local.utcoffset() for local, _item in shown)
    return {"rows": rows, "has_utc": has_utc, "count": len(points), "more": len(points) - POINTS_SHOWN}


def _utc(point: datetime) -> str:
    return f"{point.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _why(item: Candidate) -> Html:
    if item.left_out == BACKFILLED:
        return format_html("{} {}", _("backfilled before"), status_badge(item.known))
    if item.left_out == UNDECIDED:
        return _("the schedule has still to decide it")
    if item.left_out == PRUNED:
        return format_html("{} {}", _("its history is pruned"), status_badge(item.known) if item.known else "")
    return status_badge(item.known) if item.known else _("nothing recorded")
