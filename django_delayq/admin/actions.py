"""What a person can do to schedules: run now, pause, resume, reset to the code. Each is a POST with a permission, one
call per schedule and one message; what it means is for the models and the mirror to say.
"""

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from .. import declared, orders
from ..models import Schedule
from .base import BaseAdmin, View

#: So many names are shown on the page that asks for a reason.
NAMES_SHOWN = 20
Schedules = Iterable[Schedule]


class PauseForm(forms.Form):
    """Why schedules are paused."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autofocus": True}),
        help_text=gettext_lazy("Shown in the list, for whoever wonders. May be left empty."),
    )


class ScheduleActions(BaseAdmin):
    """The actions of the list, and the same as buttons of the form."""

    actions = ("run_now", "pause", "resume")

    @admin.action(permissions=["change"], description=gettext_lazy("Run selected schedules now"))
    def run_now(self, request: HttpRequest, schedules: Schedules) -> None:
        """Order one run of each."""
        runs = []
        for schedule in schedules:
            runs.append(orders.run_now(schedule))
            self.log_change(request, schedule, _("Run now."))
        if len(runs) == 1:
            link = format_html('<a href="{}">{}</a>', self.address("change", runs[0].pk, model="run"), _("see the run"))
            message: Any = format_html(_("A run of “{}” is ordered: {}"), runs[0].schedule_name, link)
        else:
            message = ngettext("%(count)d run is ordered.", "%(count)d runs are ordered.", len(runs)) % {
                "count": len(runs)
            }
        self.message_user(request, message, messages.SUCCESS)

    @admin.action(permissions=["change"], description=gettext_lazy("Pause selected schedules…"))
    def pause(self, request: HttpRequest, schedules: Schedules) -> HttpResponse | None:
        """Ask for a reason, then pause each."""
        across, chosen = request.POST.get("select_across", "0"), request.POST.getlist(ACTION_CHECKBOX_NAME)
        if across == "1":  # Django wants to see one of them; a form with thousands is refused
            chosen = chosen[:1]
        hidden = [("action", "pause"), ("select_across", across), *((ACTION_CHECKBOX_NAME, pk) for pk in chosen)]
        form = PauseForm(request.POST if "apply" in request.POST else None)
        return self._pause(request, schedules, form, hidden=hidden, back=request.get_full_path())

    @admin.action(permissions=["change"], description=gettext_lazy("Resume selected schedules"))
    def resume(self, request: HttpRequest, schedules: Schedules) -> None:
        """Let each go on."""
        names = []
        for schedule in schedules:
            schedule.resume()
            self.log_change(request, schedule, _("Resumed."))
            names.append(schedule.name)
        text = ngettext("“%(name)s” goes on with its next due point.", "%(count)d schedules go on.", len(names))
        self._say(request, text, names)

    def reset(self, request: HttpRequest, schedules: Schedules) -> None:
        """Set every field of each to what the code says. Whoever may change a schedule may reset it."""
        for schedule in schedules:
            try:
                if declared.reset(schedule):
                    self.log_change(request, schedule, _("Reset to the code."))
                    message = _("“%(name)s” is as the code declares it.") % {"name": schedule.name}
                    self.message_user(request, message, messages.SUCCESS)
                else:
                    self.message_user(request, _("There is nothing to reset."), messages.INFO)
            except ValidationError as error:
                message = _("It cannot be reset: %(reason)s") % {"reason": " ".join(error.messages)}
                self.message_user(request, message, messages.ERROR)

    def pause_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a reason (GET), pause one schedule (POST)."""
        form = PauseForm(request.POST if request.method == "POST" else None)
        back = self.address("change", pk)
        return self._pause(request, [self.one(request, pk)], form, hidden=[], back=back) or HttpResponseRedirect(back)

    def button(self, act: Callable[[HttpRequest, Schedules], object]) -> View:
        """Return the view of a button that does this to one schedule."""

        def view(request: HttpRequest, pk: int) -> HttpResponse:
            act(request, [self.one(request, pk)])
            return HttpResponseRedirect(self.address("change", pk))

        return require_POST(view)

    def one(self, request: HttpRequest, pk: int) -> Schedule:
        """Return the schedule of a page that changes it.

        Raises:
            PermissionDenied, Http404: It may not be changed, or is not there.
        """
        schedule: Schedule | None = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.has_change_permission(request, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("There is no such schedule; it may have been deleted."))
        return schedule

    def _pause(
        self, request: HttpRequest, schedules: Schedules, form: PauseForm, *, hidden: list[tuple[str, str]], back: str
    ) -> HttpResponse | None:
        names = [schedule.name for schedule in schedules]
        if form.is_valid():
            reason = form.cleaned_data["reason"]
            for schedule in schedules:
                schedule.pause(reason)
                logged = _("Paused: %(reason)s") % {"reason": reason} if reason else _("Paused.")
                self.log_change(request, schedule, logged)
            text = ngettext("“%(name)s” is paused.", "%(count)d schedules are paused.", len(names))
            self._say(request, text, names)
            return None
        if len(names) == 1:
            title, listed = _("Pause “%(name)s”") % {"name": names[0]}, []
        else:
            title, listed = _("Pause %(count)d schedules") % {"count": len(names)}, names[:NAMES_SHOWN]
        return self.page(
            request, "schedule/pause.html", title, form=form, names=listed, more=len(names) - NAMES_SHOWN,
            hidden=hidden, back=back,
        )  # fmt: skip

    def _say(self, request: HttpRequest, text: str, names: list[str]) -> None:
        values = {"count": len(names), "name": names[0] if names else ""}
        self.message_user(request, text % values, messages.SUCCESS)
