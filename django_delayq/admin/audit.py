"""Actions of users in the admin: Django's admin log, limited to models of this app. Read-only."""

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy

from ..models import Control, Run, Schedule
from ..models.audit_entry import AuditEntry
from ..models.primary import list_heirs
from ..text import escape_text
from . import display
from .base import ScheduleViewerAdmin, can_view, column
from .schedule_history import format_message, get_instant

#: Models whose entries are listed, by their names in permissions, and the view that an entry links to.
MODELS: dict[str, type[Model]] = {"schedule": Schedule, "run": Run, "control": Control}
VIEWS = {"schedule": "history", "run": "change", "control": "history"}


def _list_visible_names(request: HttpRequest) -> list[str]:
    return [name for name in MODELS if can_view(request, name)]


def _list_type_keys(*names: str) -> list[int]:
    models: list[Any] = [model for name in names for model in list_heirs(MODELS[name])]
    return [found.pk for found in ContentType.objects.get_for_models(*models, for_concrete_models=False).values()]


class KindFilter(admin.SimpleListFilter):
    title = gettext_lazy("object")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: "admin.ModelAdmin[Any]") -> list[tuple[str, str]]:
        return [(name, capfirst(str(MODELS[name]._meta.verbose_name))) for name in _list_visible_names(request)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        return queryset.filter(content_type__in=_list_type_keys(name)) if name in MODELS else queryset


@admin.register(AuditEntry)
class AuditAdmin(ScheduleViewerAdmin):
    """The list, for users who may view schedules; it includes only kinds that the user may view."""

    list_display = ("time_column", "user_column", "object_column", "message_column")
    list_display_links = None
    list_filter = ("action_time", KindFilter)
    list_select_related = ("user", "content_type")
    ordering = ("-pk",)
    search_help_text = gettext_lazy("User, or name of the object")
    sortable_by = ()

    def get_urls(self) -> list[URLPattern]:
        return [self.build_route("", self.changelist_view, "changelist")]  # which shows everything

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        return super().get_queryset(request).filter(content_type__in=_list_type_keys(*_list_visible_names(request)))

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return (f"user__{get_user_model().USERNAME_FIELD}", "object_repr")

    time_column = column(gettext_lazy("time"), lambda entry: display.format_instant(get_instant(entry)))
    user_column = column(gettext_lazy("user"), lambda entry: escape_text(entry.user.get_username()))
    message_column = column(gettext_lazy("action"), format_message)

    @admin.display(description=gettext_lazy("object"))
    def object_column(self, entry: AuditEntry) -> SafeString:
        model: Any = entry.content_type.model_class() if entry.content_type else None
        name = next(name for name, each in MODELS.items() if issubclass(model, each))
        shown: display.Html = escape_text(entry.object_repr)
        if not entry.is_deletion():
            shown = format_html('<a href="{}">{}</a>', self.get_url(VIEWS[name], entry.object_id, model=name), shown)
        return format_html('{}<div class="delayq-note">{}</div>', shown, MODELS[name]._meta.verbose_name)
