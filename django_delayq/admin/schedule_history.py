"""The history of one schedule: who did what, what each edit changed, and restoring an earlier definition."""

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..calls.validators import read_key
from ..models import Definition, Schedule
from ..models.differences import SWITCH, from_json, values_of
from . import definitions
from .events import read
from .schedule_actions import ScheduleActions

#: Events per page.
PAGE = 50
NOTE = gettext_lazy(
    "The schedule becomes what it was before that edit. Its tags, its runs and whether it is paused stay as they are. "
    "What it is now is kept in turn."
)


class HistoryPage(ScheduleActions):
    """The history, for users who may view the schedule, and restoring, for users who may change it."""

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Show a page of the history."""
        pk = unquote(object_id)
        schedule: Schedule | None = self.get_object(request, pk)
        if schedule is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, pk)  # type: ignore[attr-defined,no-any-return]
        if not self.has_view_or_change_permission(request, schedule):
            raise PermissionDenied
        events = Paginator(read(schedule), PAGE).get_page(request.GET.get("page"))
        may = self.has_change_permission(request, schedule)
        for event in events:
            if may and not schedule.is_declared and event.restorable and event.definition is not None:
                event.address = f"{self.address('restore', schedule.pk)}?definition={event.definition.pk}"
        return self.page(
            request, "schedule/history.html", _("History of “%(name)s”") % {"name": schedule.name}, events=events,
            of_one=True, back=self.address("change", schedule.pk),
        )  # fmt: skip

    def restore_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show the changes and ask (GET), or restore a definition (POST)."""
        schedule = self.find(request, pk, "change")
        if schedule.is_declared:
            raise PermissionDenied
        given = request.POST if request.method == "POST" else request.GET
        rows, key = Definition.objects.using(schedule._state.db), read_key(given.get("definition", ""))
        kept = None if key is None else rows.filter(schedule=schedule, pk=key).first()
        back = HttpResponseRedirect(self.address("history", pk))
        if kept is None:
            text = _("That definition is not kept any more; of each schedule the newest fifty are.")
            self.message_user(request, text, messages.WARNING)
            return back
        if request.method == "POST":
            if given.get("seen") != str(schedule.generation):
                text = _("Somebody changed this schedule meanwhile; nothing was restored yet. Look again.")
                self.message_user(request, text, messages.WARNING)
            elif self._restore(request, schedule, kept):
                return back
        current, wanted = values_of(schedule), from_json(kept.values)
        wanted |= {name: current[name] for name in SWITCH.fields}
        return self.page(
            request, "confirm.html", _("Restore “%(name)s”") % {"name": schedule.name}, note=NOTE,
            changes=definitions.changes(current, wanted), before=_("Now"), after=_("Restored"),
            hidden=[("definition", kept.pk), ("seen", schedule.generation)], button=_("Restore"), back=back.url,
        )  # fmt: skip

    def _restore(self, request: HttpRequest, schedule: Schedule, kept: Definition) -> bool:
        try:
            done = kept.restore(by=request.user.get_username())
        except ValidationError as error:
            text = _("It cannot be restored: %(reason)s") % {"reason": " ".join(error.messages)}
            self.message_user(request, text, messages.ERROR)
            return False
        if done:
            said = _("Restored what it was until %(time)s UTC.") % {"time": f"{kept.replaced_at:%Y-%m-%d %H:%M:%S}"}
            self.log_change(request, schedule, said)
            text = _("“%(name)s” is again as it was.") % {"name": from_json(kept.values)["name"]}
            self.message_user(request, text, messages.SUCCESS)
        else:
            self.message_user(request, _("There is nothing to restore."), messages.INFO)
        return True
