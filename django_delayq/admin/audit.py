"""Actions of users in the admin: Django's admin log, limited to models of this app. Read-only."""

from typing import Any, NamedTuple

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
from ..models.primary import heirs
from ..text import plain
from . import display
from .base import ScheduleViewerAdmin, column, may_view
from .events import instant_of, message_of
from .paging import CappedPaginator


class Kind(NamedTuple):
    """A kind of object: its model, the name in permissions, and the page (view, model) that an entry links to."""

    model: type[Model]
    name: str
    page: tuple[str, str]


KINDS = {
    "schedule": Kind(Schedule, "schedule", ("history", "schedule")),
    "run": Kind(Run, "run", ("change", "run")),
    "control": Kind(Control, "control", ("history", "control")),
}


def _visible(request: HttpRequest) -> dict[str, Kind]:
    return {name: kind for name, kind in KINDS.items() if may_view(request, kind.name)}


def _types(*kinds: Kind) -> list[int]:
    models: list[Any] = [model for kind in kinds for model in heirs(kind.model)]
    return [found.pk for found in ContentType.objects.get_for_models(*models, for_concrete_models=False).values()]


class KindFilter(admin.SimpleListFilter):
    title = gettext_lazy("object")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: "admin.ModelAdmin[Any]") -> list[tuple[str, str]]:
        return [(name, capfirst(str(kind.model._meta.verbose_name))) for name, kind in _visible(request).items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        kind = KINDS.get(self.value() or "")
        return queryset if kind is None else queryset.filter(content_type__in=_types(kind))


@admin.register(AuditEntry)
class AuditAdmin(ScheduleViewerAdmin):
    """The list, for users who may view schedules; it includes only kinds that the user may view."""

    list_display = ("shown_time", "shown_user", "shown_object", "shown_message")
    list_display_links = None
    list_filter = ("action_time", KindFilter)
    list_per_page = 50
    list_select_related = ("user", "content_type")
    ordering = ("-pk",)
    paginator = CappedPaginator
    search_help_text = gettext_lazy("User, or name of the object")
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    sortable_by = ()

    def get_urls(self) -> list[URLPattern]:
        """Leave out pages of single entries, because the list shows everything."""
        return [self.route("", self.changelist_view, "changelist")]

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        return super().get_queryset(request).filter(content_type__in=_types(*_visible(request).values()))

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        return (f"user__{get_user_model().USERNAME_FIELD}", "object_repr")

    shown_time = column(gettext_lazy("time"), lambda entry: display.instant(instant_of(entry)))
    shown_user = column(gettext_lazy("user"), lambda entry: plain(entry.user.get_username()))
    shown_message = column(gettext_lazy("action"), message_of)

    @admin.display(description=gettext_lazy("object"))
    def shown_object(self, entry: AuditEntry) -> SafeString:
        """Format the object, with a link unless it was deleted."""
        model: Any = entry.content_type.model_class() if entry.content_type else None
        kind = next(kind for kind in KINDS.values() if issubclass(model, kind.model))
        name: display.Html = plain(entry.object_repr)
        if not entry.is_deletion():
            view, about = kind.page
            name = format_html('<a href="{}">{}</a>', self.address(view, entry.object_id, model=about), name)
        return format_html('{}<div class="delayq-note">{}</div>', name, kind.model._meta.verbose_name)
