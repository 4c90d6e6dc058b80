"""What a person can do to schedules: run now, pause, resume. Each is a POST with a permission, one call per schedule
and one message; what it means is for the models and the mirror to say.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import orders
from ..models import Run, Schedule
from .forms import PauseForm

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Schedule]
else:
    Base = object

#: So many names are shown on the page that asks for a reason.
NAMES_SHOWN = 20


class ScheduleActions(Base):
    """The actions of the list, and the same as buttons of the form."""

    actions = ("run_now", "pause", "resume")

    @admin.action(permissions=["change"], description=gettext_lazy("Run selected schedules now"))
    def run_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Order one run of each."""
        self._order_runs(request, queryset)

    @admin.action(permissions=["change"], description=gettext_lazy("Pause selected schedules…"))
    def pause(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> HttpResponse | None:
        """Ask for a reason, then pause each."""
        form = PauseForm(request.POST if "apply" in request.POST else None)
        if form.is_valid():
            self._pause(request, queryset, form.cleaned_data["reason"])
            return None
        across, chosen = request.POST.get("select_across", "0"), request.POST.getlist(ACTION_CHECKBOX_NAME)
        if across == "1":  # Django wants to see one of them; a form with thousands is refused
            chosen = chosen[:1]
        hidden = [("action", "pause"), ("select_across", across), *((ACTION_CHECKBOX_NAME, pk) for pk in chosen)]
        return self._pause_page(request, form, queryset, hidden=hidden, back=request.get_full_path())

    @admin.action(permissions=["change"], description=gettext_lazy("Resume selected schedules"))
    def resume(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Let each go on."""
        self._resume(request, queryset)

    def get_urls(self) -> list[URLPattern]:
        """Add the buttons' addresses."""
        views = {"run-now": self.run_now_view, "pause": self.pause_view, "resume": self.resume_view}
        return [
            *(
                path(f"<int:pk>/{name}/", self.admin_site.admin_view(view), name=self._url_name(name))
                for name, view in views.items()
            ),
            *super().get_urls(),
        ]

    def run_now_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Order a run of one schedule."""
        schedule = self._changeable(request, pk)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._order_runs(request, [schedule])
        return self._back_to(schedule)

    def resume_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Let one schedule go on."""
        schedule = self._changeable(request, pk)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._resume(request, [schedule])
        return self._back_to(schedule)

    def pause_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Ask for a reason (GET), pause one schedule (POST)."""
        schedule = self._changeable(request, pk)
        form = PauseForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            self._pause(request, [schedule], form.cleaned_data["reason"])
            return self._back_to(schedule)
        return self._pause_page(request, form, [schedule], hidden=[], back=self._url_of(schedule))

    def _order_runs(self, request: HttpRequest, schedules: Iterable[Schedule]) -> None:
        runs = []
        for schedule in schedules:
            runs.append(orders.run_now(schedule))
            self.log_change(request, schedule, _("Run now."))
        if len(runs) == 1:
            message: Any = format_html(
                _("A run of “{}” is ordered: {}"), runs[0].schedule_name, self._run_link(runs[0])
            )
        else:
            message = ngettext("%(count)d run is ordered.", "%(count)d runs are ordered.", len(runs)) % {
                "count": len(runs)
            }
        self.message_user(request, message, messages.SUCCESS)

    def _pause(self, request: HttpRequest, schedules: Iterable[Schedule], reason: str) -> None:
        names = []
        for schedule in schedules:
            schedule.pause(reason)
            self.log_change(request, schedule, _("Paused: %(reason)s") % {"reason": reason} if reason else _("Paused."))
            names.append(schedule.name)
        message = ngettext("“%(name)s” is paused.", "%(count)d schedules are paused.", len(names))
        self._say(request, message, names)

    def _resume(self, request: HttpRequest, schedules: Iterable[Schedule]) -> None:
        names = []
        for schedule in schedules:
            schedule.resume()
            self.log_change(request, schedule, _("Resumed."))
            names.append(schedule.name)
        message = ngettext("“%(name)s” goes on with its next due point.", "%(count)d schedules go on.", len(names))
        self._say(request, message, names)

    def _say(self, request: HttpRequest, message: str, names: list[str]) -> None:
        values = {"count": len(names), "name": names[0] if names else ""}
        self.message_user(request, message % values, messages.SUCCESS)

    def _pause_page(
        self,
        request: HttpRequest,
        form: PauseForm,
        schedules: QuerySet[Schedule] | list[Schedule],
        **context: Any,
    ) -> HttpResponse:
        names = [schedule.name for schedule in schedules[:NAMES_SHOWN]]
        count = schedules.count() if isinstance(schedules, QuerySet) else len(schedules)
        title = (
            _("Pause “%(name)s”") % {"name": names[0]}
            if count == 1
            else _("Pause %(count)d schedules") % {"count": count}
        )
        page = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "names": names if count > 1 else [],
            "more": count - len(names),
            **context,
        }
        return TemplateResponse(request, "admin/django_delayq/schedule/pause.html", page)

    def _changeable(self, request: HttpRequest, pk: int) -> Schedule:
        schedule = self.get_queryset(request).filter(pk=pk).first() if pk < 2**63 else None
        if not self.has_change_permission(request, schedule):
            raise PermissionDenied
        if schedule is None:
            raise Http404(_("There is no such schedule; it may have been deleted."))
        return schedule

    def _url_name(self, view: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{view.replace('-', '_')}"

    def _url_of(self, schedule: Schedule, view: str = "change") -> str:
        return reverse(f"admin:{self._url_name(view)}", args=[quote(schedule.pk)], current_app=self.admin_site.name)

    def _back_to(self, schedule: Schedule) -> HttpResponse:
        return HttpResponseRedirect(self._url_of(schedule))

    def _run_link(self, run: Run) -> str:
        url = reverse("admin:django_delayq_run_change", args=[run.pk], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, _("see the run"))
