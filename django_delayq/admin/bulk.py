"""What is done to all schedules that match, where they are too many for one request: asked, ordered, watched."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from .. import bulk_actions, ledger
from ..fields import utcnow
from ..models import BulkAction, Schedule
from . import display, paging
from .base import BaseAdmin
from .durations import format_duration
from .forms import PauseForm

#: So many are done in the request; more are ordered.
MOST_AT_ONCE = 100
Name = BulkAction.Name
#: What Django calls them in its list of actions, and what is asked before.
ACTIONS: dict[str, tuple[Name, Any]] = {
    "run_now": (
        Name.RUN_NOW,
        gettext_lazy("A run is ordered, also of what is paused. It ignores overlap and moves no due point."),
    ),
    "pause": (
        Name.PAUSE,
        gettext_lazy(
            "No further run starts until somebody resumes. A run that is going on finishes and is recorded; due points "
            "that pass meanwhile are not made up for."
        ),
    ),
    "resume": (
        Name.RESUME,
        gettext_lazy("It goes on with the first due point from now on. What passed meanwhile is not made up for."),
    ),
    "delete_selected": (
        Name.DELETE,
        gettext_lazy(
            "They are gone; their runs stay in the history. What the code declares comes back with the next sync."
        ),
    ),
}
LOGGED = {Name.RUN_NOW: gettext_lazy("Run now."), Name.RESUME: gettext_lazy("Resumed.")}


#: What permits it beside `change_schedule`, which permits everything but deletion.
PERMISSIONS = {
    "run_now": "run_schedule", "backfill": "run_schedule", "pause": "pause_schedule", "resume": "pause_schedule",
}  # fmt: skip


class BulkActions(BaseAdmin):
    """The actions of the list, where they are for more schedules than one request can see to."""

    def may(self, request: HttpRequest, name: str, schedule: Schedule | None = None) -> bool:
        """Say whether somebody may do this to schedules: change them, or see them and do this."""
        own = PERMISSIONS.get(name)
        if self.has_change_permission(request, schedule):
            return True
        return (
            bool(own) and self.has_view_permission(request, schedule) and request.user.has_perm(f"django_delayq.{own}")
        )

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Schedule], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Do what was chosen; for all of many schedules: ask first, then order it. See `bulk_actions`."""
        action = request.POST.get("action", "")
        if (
            request.POST.get("select_across") == "1"
            and action in ACTIONS
            and action in self.get_actions(request)
            and paging.is_long(queryset, MOST_AT_ONCE)
        ):
            return self._ordered(request, queryset, action)
        response: HttpResponse | None = super().response_action(request, queryset, *args, **kwargs)
        return response

    def _ordered(self, request: HttpRequest, queryset: QuerySet[Schedule], action: str) -> HttpResponse:
        name, note = ACTIONS[action]
        form = PauseForm(request.POST if "apply" in request.POST else None) if name == Name.PAUSE else None
        if "apply" in request.POST and (form is None or form.is_valid()):
            reason = form.cleaned_data["reason"] if form else ""
            bulk = bulk_actions.order(
                name, queryset.order_by().values_list("pk", flat=True), reason=reason, logged=logged(name, reason),
                user=request.user,
            )  # fmt: skip
            said = _("Ordered for %(count)s schedules: %(what)s") % {"count": _number(bulk.total), "what": bulk.logged}
            self.log_addition(request, bulk, said)
            return HttpResponseRedirect(self.address("bulk", bulk.pk))
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]  # Django wants to see one of them
        hidden = [("action", action), ("select_across", "1"), *((ACTION_CHECKBOX_NAME, pk) for pk in chosen)]
        counted = _("This is for all %(count)s schedules that match. Workers do it, one part after the other.")
        return self.page(
            request, "confirm.html", str(name.label), note=note, form=form, hidden=hidden, back=request.get_full_path(),
            counted=counted % {"count": _number(queryset.order_by().values("pk").count())}, grave=name == Name.DELETE,
        )  # fmt: skip

    def bulk_urls(self) -> list[URLPattern]:
        return [
            self.route("bulk/<int:pk>/", self.bulk_view, "bulk"),
            self.route("bulk/<int:pk>/cancel/", require_POST(self.cancel_view), "bulk-cancel"),
        ]

    def bulk_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show how far it is; the page loads itself again until it has ended."""
        bulk, left = self._one(request, pk), None
        if bulk.finished_at is None and bulk.started_at is not None and bulk.done:
            seconds = (utcnow() - bulk.started_at).total_seconds() * (bulk.total - bulk.done) / bulk.done
            left = format_duration(timedelta(seconds=round(seconds)))
        missing = bulk.done - bulk.changed
        gone = ngettext("%(count)s of them was gone already.", "%(count)s of them were gone already.", missing)
        return self.page(
            request, "schedule/bulk.html", bulk.get_name_display(), bulk=bulk, state=_state(bulk), left=left,
            at=display.instant(bulk.created_at),
            done=_number(bulk.done), total=_number(bulk.total), percent=100 * bulk.done // max(1, bulk.total),
            gone=gone % {"count": _number(missing)} if missing else "",
            cancel=self.address("bulk-cancel", pk), back=self.address("changelist"),
        )  # fmt: skip

    def cancel_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Let it end where it is."""
        bulk = self._one(request, pk)
        if bulk_actions.cancel(pk):
            self.log_change(request, bulk, _("The rest was cancelled."))
        else:
            self.message_user(request, _("It had ended already."), messages.INFO)
        return HttpResponseRedirect(self.address("bulk", pk))

    def _one(self, request: HttpRequest, pk: int) -> BulkAction:
        bulk = BulkAction.objects.using(ledger.database()).defer("chosen").filter(pk=pk).first() if pk < 2**63 else None
        name = None if bulk is None else bulk.name
        if not (self.has_delete_permission(request) if name == Name.DELETE else self.may(request, str(name))):
            raise PermissionDenied
        if bulk is None:
            raise Http404(_("There is no such order; what ended is forgotten after a month."))
        return bulk


def logged(name: str, reason: str = "") -> str:
    """Return what the history of a schedule says of this."""
    if name == Name.PAUSE:
        return _("Paused: %(reason)s") % {"reason": reason} if reason else _("Paused.")
    return str(LOGGED.get(Name(name), ""))


def _state(bulk: BulkAction) -> str:
    if bulk.error:
        return _("It was given up after an error.")
    if bulk.cancelled:
        return _("It was cancelled; what was done stays done.")
    if bulk.finished_at is not None:
        return _("It is done.")
    return _("The workers are at it.") if bulk.done else _("It waits for a worker, which takes some seconds.")


def _number(count: int) -> str:
    return number_format(count, use_l10n=True, force_grouping=True)
