"""Pauses and limits of queues and tasks in the admin, for all workers at once."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import actions, conf
from ..calls import registry
from ..models import Control
from ..recurrence.point import utcnow
from . import display
from .base import BaseAdmin, column


def _format_state(row: Control) -> Any:
    if row.is_paused():
        return display.format_badge("warn", _("paused"))
    tone, text = ("quiet", _("continues")) if row.most is None else ("busy", _("limited"))
    return display.format_badge(tone, text)


def _format_action(row: Control) -> Any:
    when = display.format_instant(row.changed_at)
    return format_html('{}<div class="delayq-note">{}</div>', row.changed_by or "–", when)


@admin.register(Control)
class ControlAdmin(BaseAdmin):
    list_display = ("kind", "name", "state_column", "reason", "until_column", "most", "action_column")
    list_display_links = ("name",)
    list_filter = ("kind", "paused")
    search_fields = ("name", "reason")
    ordering = ("kind", "name")
    sortable_by = ()  # the list is short, and sort marks are as wide as a column
    actions = ("resume",)
    change_form_template = "admin/django_delayq/control/change_form.html"
    state_column = column(gettext_lazy("state"), _format_state)
    until_column = column(gettext_lazy("until"), lambda row: display.format_instant(row.until))
    changed_column = column(gettext_lazy("changed"), lambda row: display.format_instant(row.changed_at))
    action_column = column(gettext_lazy("changed"), _format_action)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Redirect to the existing row of the name in the address."""
        named = {"kind": request.GET.get("kind", Control.Target.QUEUE), "name": request.GET.get("name", "")}
        row = Control.objects.filter(**named).first() if request.method == "GET" and named["name"] else None
        if row is not None and self.has_view_permission(request, row):
            return HttpResponseRedirect(self.get_url("change", row.pk))
        return super().add_view(request, form_url, extra_context)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("kind", "name", "changed_by", "changed_column") if obj is not None else ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        changed = [("changed_by", "changed_column")] if obj is not None else []
        return ("kind", "name"), *changed, "paused", "until", "reason", "most"

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        widgets = {"name": forms.TextInput(attrs={"list": "delayq-held-names", "size": 60})}
        return super().get_form(request, obj, change, widgets=widgets, **kwargs)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        context["names"] = [*conf.get_config().queues, *sorted(registry.get_tasks())]
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Control, form: Any, change: bool) -> None:
        obj.changed_at, obj.changed_by = utcnow(), request.user.get_username()[:200]
        if not obj.paused:
            obj.until = None
            obj.reason = obj.reason if obj.most is not None else ""
        super().save_model(request, obj, form, change)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Log what applies from then on, not only the changed fields."""
        return form.instance.restrictions or _("no pauses and no limits")

    @admin.action(description=gettext_lazy("Resume and remove limit"), permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Control]) -> None:
        by, rows = request.user.get_username(), list(queryset)
        for row in rows:
            actions.resume(**{row.kind: row.name}, by=by)
            if row.most is not None:
                actions.limit(row.name, None, by=by)
            self.log_change(request, row, _("no pauses and no limits"))
        text = ngettext("%(count)d continues.", "%(count)d continue.", len(rows))
        self.message_user(request, text % {"count": len(rows)})
