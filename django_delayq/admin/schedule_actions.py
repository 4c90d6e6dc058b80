"""Actions on schedules, each a POST that checks a permission. The logic is in `actions`, the models and `sync`."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import Error, transaction
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from .. import actions, ledger
from ..actions import BACKFILLED, PRUNED, UNDECIDED, Candidate
from ..exceptions import InvalidArguments, InvalidRecurrence
from ..ledger import chain
from ..models import Definition, Origin, Run, Schedule, ScheduleQuerySet
from ..models.kept import MOST_AT_ONCE
from ..text import escape_text
from .confirming import Action, ConfirmingAdmin, list_actions
from .display import Html, find_zone, format_status
from .formfields import InstantField

#: Maximum seconds of an action on many schedules.
MOST_SECONDS = 10
#: Maximum points listed of those that a backfill runs, and of those that it leaves out.
POINTS_SHOWN = 10
#: Input names of the backfill form.
INPUTS = ("start_0", "start_1", "end_0", "end_1")


class PauseForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autofocus": True}),
        help_text=gettext_lazy("Shown in the list as the reason. Optional."),
    )


def _build_instant_widget() -> forms.SplitDateTimeWidget:
    date: dict[str, Any] = {"type": "date", "aria-label": gettext_lazy("Date")}
    time: dict[str, Any] = {"type": "time", "step": "1", "aria-label": gettext_lazy("Time")}
    return forms.SplitDateTimeWidget(date_format="%Y-%m-%d", time_format="%H:%M:%S", date_attrs=date, time_attrs=time)


class BackfillForm(forms.Form):
    start = InstantField(label=gettext_lazy("From"), widget=_build_instant_widget())
    end = InstantField(
        label=gettext_lazy("To"), widget=_build_instant_widget(), help_text=gettext_lazy("Both ends are included.")
    )


def _switch(schedules: ScheduleQuerySet, by: str, **values: Any) -> None:
    """Update schedules, and store the user in the definitions that this edit replaced."""
    schedules.update(**values)
    kept = Definition.objects.using(schedules.db).filter(schedule__in=schedules.values("pk"), by="")
    kept.filter(followed_by=F("schedule__generation")).update(by=by)


ACTIONS = {
    "run_now": Action(
        permission="run_schedule", do=lambda schedules, by, reason: actions.run_each_now(schedules),
        label=gettext_lazy("Run now"), label_in_list=gettext_lazy("Run selected schedules now…"),
        note=gettext_lazy("A run starts, even if the schedule is paused or busy. No due time changes."),
        logged=gettext_lazy("Run now."),
        done=ngettext_lazy("%(count)d run is queued.", "%(count)d runs are queued.", "count"),
    ),
    "pause": Action(
        permission="pause_schedule", form=PauseForm,
        do=lambda schedules, by, reason: _switch(schedules, by, enabled=False, pause_reason=reason),
        label=gettext_lazy("Pause"), label_in_list=gettext_lazy("Pause selected schedules…"),
        note=gettext_lazy(
            "No run starts until the schedule is resumed. A run that has started finishes and is "
            "recorded. Due times during the pause are not caught up."
        ),
        logged=gettext_lazy("Paused."),
        done=ngettext_lazy("“%(name)s” is paused.", "%(count)d schedules are paused.", "count"),
    ),
    "resume": Action(
        permission="pause_schedule",
        do=lambda schedules, by, reason: _switch(schedules, by, enabled=True, pause_reason=""),
        label=gettext_lazy("Resume"), label_in_list=gettext_lazy("Resume selected schedules…"),
        note=gettext_lazy("It continues with the next due time. Due times during the pause are not caught up."),
        logged=gettext_lazy("Resumed."),
        done=ngettext_lazy(
            "“%(name)s” continues with its next due time.", "%(count)d schedules continue with their next due times.",
            "count",
        ),
    ),
}  # fmt: skip


class ScheduleActions(ConfirmingAdmin):
    confirmed_actions: Mapping[str, Action] = ACTIONS
    actions: tuple[Callable[..., Any], ...] = list_actions(ACTIONS)

    def can_act(self, request: HttpRequest, name: str, row: Any = None) -> bool:
        """Return whether the user may change schedules, or may view them and has the action's permission."""
        return self.has_change_permission(request, row) or (name in ACTIONS and super().can_act(request, name, row))

    def act(self, request: HttpRequest, rows: QuerySet[Any], name: str, **values: Any) -> None:
        """Act on slices of the rows, one transaction each, until MOST_SECONDS or a database error; report it."""
        action, reason, by = ACTIONS[name], values.get("reason", ""), request.user.get_username()
        message = _("Paused: %(reason)s") % {"reason": reason} if reason else str(action.logged)
        pks, acted, results, why = list(rows.order_by("pk").values_list("pk", flat=True)), list[Schedule](), [], ""
        end = time.monotonic() + MOST_SECONDS
        for first in range(0, len(pks), MOST_AT_ONCE):
            slice_ = self.get_queryset(request).filter(pk__in=pks[first : first + MOST_AT_ONCE])
            if first and time.monotonic() >= end:
                why = _("it takes longer than %(seconds)d seconds") % {"seconds": MOST_SECONDS}
                break
            try:
                with transaction.atomic(using=ledger.get_database()):
                    found = list(slice_)
                    results.append(action.do(slice_, by, reason))
                    LogEntry.objects.log_actions(request.user.pk, found, CHANGE, change_message=message)  # type: ignore[arg-type]
            except Error as error:
                why = escape_text(str(error))
                break
            acted += found
        if acted:
            text = action.done % {"count": len(acted), "name": acted[0].name}
            if name == "run_now" and len(acted) == 1:
                link = self.get_url("change", results[0][0].pk, model="run")
                link = format_html('<a href="{}">{}</a>', link, _("see the run"))
                text = format_html(_("“{}” runs once more: {}"), acted[0].name, link)
            self.message_user(request, text, messages.SUCCESS)
        if why:
            text = _("%(left)d of %(total)d schedules were not changed: %(why)s. Filter the list, or use code.")
            text %= {"left": len(pks) - len(acted), "total": len(pks), "why": why}
            self.message_user(request, text, messages.WARNING)

    def backfill_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a period and show its due points (GET), or create their runs (POST)."""
        schedule, posted = self.find(request, pk, "run_now"), request.method == "POST"
        form = BackfillForm(request.POST if posted else request.GET if INPUTS[0] in request.GET else None)
        plan: list[Candidate] | None = None
        if form.is_valid():
            span = form.cleaned_data["start"], form.cleaned_data["end"]
            try:
                if posted:
                    self._report_backfill(request, schedule, actions.backfill(schedule, *span))
                    return HttpResponseRedirect(self.get_url("change", pk))
                plan = actions.plan_backfill(schedule, *span)
            except (InvalidArguments, InvalidRecurrence) as error:
                form.add_error(None, str(error))
        return self.render_page(
            request, "schedule/backfill.html", _("Backfill “%(name)s”") % {"name": schedule.name}, form=form,
            timezone=schedule.timezone, zone=timezone.get_current_timezone_name(), shown=plan is not None,
            hidden=[(name, form.data.get(name, "")) for name in INPUTS], back=self.get_url("change", pk),
            pruned=(until := chain.get_state(schedule).pruned_until) and _format_utc(until),
            wanted=_build_points(schedule, [item for item in plan or () if not item.left_out]),
            left_out=_build_points(schedule, [item for item in plan or () if item.left_out]),
        )  # fmt: skip

    def _report_backfill(self, request: HttpRequest, schedule: Schedule, runs: list[Run]) -> None:
        if not runs:
            self.message_user(request, _("No due time in this range is left to run."), messages.WARNING)
            return
        note = ngettext("Backfill: %(count)d run.", "Backfill: %(count)d runs.", len(runs)) % {"count": len(runs)}
        self.log_change(request, schedule, f"{note} {_format_utc(runs[0].due_at)} – {_format_utc(runs[-1].due_at)} UTC")
        text = ngettext("{} run of “{}” is queued: {}", "{} runs of “{}” are queued: {}", len(runs))
        query = f"?schedule__id__exact={schedule.pk}&origin__exact={Origin.BACKFILL.value}"
        link = format_html('<a href="{}{}">{}</a>', self.get_url("changelist", model="run"), query, _("see the runs"))
        self.message_user(request, format_html(text, len(runs), schedule.name, link), messages.SUCCESS)


def _build_points(schedule: Schedule, points: list[Candidate]) -> dict[str, Any]:
    zone = find_zone(schedule)
    shown = [(item.due_at.astimezone(zone), item) for item in points[:POINTS_SHOWN]]
    rows = [
        (f"{local:%a %Y-%m-%d %H:%M:%S %Z}", _format_utc(item.due_at), _explain_left_out(item)) for local, item in shown
    ]
    has_utc = any(local.utcoffset() for local, _item in shown)
    return {"rows": rows, "has_utc": has_utc, "count": len(points), "more": len(points) - POINTS_SHOWN}


def _format_utc(point: datetime) -> str:
    return f"{point.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _explain_left_out(item: Candidate) -> Html:
    if item.left_out == UNDECIDED:
        return _("still to be decided by the schedule")
    words = {BACKFILLED: _("backfilled before"), PRUNED: _("its history is pruned")}.get(item.left_out, "")
    status = format_status(item.known) if item.known else ""
    return format_html("{} {}", words, status) if words or status else _("nothing recorded")
