"""What the admin shows of schedules that the code declares, and the button back to it. Decides nothing itself."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern, path
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import declared
from ..models import Schedule
from .actions import ScheduleActions
from .display import badge
from .durations import format_duration


def marks(schedule: Schedule) -> SafeString:
    """Return that the code declares a schedule, that it no longer does, and how many fields a person changed."""
    declaration = declared.declaration_of(schedule)
    if declaration is None:
        return SafeString()
    if declaration.gone_at is not None:
        title = _("The code declared this schedule as “%(key)s” and no longer does.") % {"key": declaration.key}
        return badge("warn", _("gone from the code"), title)
    found = [(badge("quiet", _("in the code"), _("Declared as “%(key)s”.") % {"key": declaration.key}),)]
    changed = declared.overrides(schedule)
    if changed:
        text = ngettext("%(count)d field overridden", "%(count)d fields overridden", len(changed))
        labels = ", ".join(each.label for each in changed)
        found.append((badge("warn", text % {"count": len(changed)}, labels),))
    return format_html_join(" ", "{}", found)


def panel(schedule: Schedule) -> dict[str, Any]:
    """Return what stands above the form of a declared schedule."""
    return {
        "declaration": declared.declaration_of(schedule),
        "overrides": declared.overrides(schedule, duration=format_duration),
    }


class OriginFilter(admin.SimpleListFilter):
    """Where a schedule comes from."""

    title = gettext_lazy("origin")
    parameter_name = "origin"

    def lookups(self, request: HttpRequest, model_admin: "admin.ModelAdmin[Any]") -> list[tuple[str, Any]]:
        """Return the three."""
        return [("hand", _("made by hand")), ("code", _("in the code")), ("gone", _("gone from the code"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Ask for the declaration."""
        lookup: dict[str, dict[str, Any]] = {
            "hand": {"declaration": None},
            "code": {"declaration__isnull": False, "declaration__gone_at": None},
            "gone": {"declaration__gone_at__isnull": False},
        }
        return queryset.filter(**lookup.get(self.value() or "", {}))


class ScheduleReset(ScheduleActions):
    """The button “Reset to the code”. Whoever may change a schedule may reset it."""

    def get_urls(self) -> list[URLPattern]:
        """Add the button's address."""
        view = self.admin_site.admin_view(self.reset_view)
        return [path("<int:pk>/reset/", view, name=self._url_name("reset")), *super().get_urls()]

    def reset_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Set every field of one schedule to what the code says."""
        schedule = self._changeable(request, pk)
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
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
        return self._back_to(schedule)
