"""Shared by all pages of the admin: addresses, the frame, and the validation of requests."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ERROR_FLAG
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import DataError, models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from ..calls.validators import is_storable
from .formfields import DurationField, InstantField, WholeNumberField

#: Maximum rows counted; a list with more is long.
MOST_COUNTED = 10_000
View = Callable[..., HttpResponse]
Column = Callable[[Any, Any], Any]
#: The label of this app; a project's subclass of a model has another.
APP = "django_delayq"


def can_view(request: HttpRequest, model: str) -> bool:
    """Return whether the user may view a model of this app; the permission to change it suffices."""
    return any(request.user.has_perm(f"{APP}.{verb}_{model}") for verb in ("view", "change"))


def is_long(rows: QuerySet[Any], most: int | None = None) -> bool:
    """Return whether there are more than `most` rows, by default MOST_COUNTED."""
    most = MOST_COUNTED if most is None else most
    return rows.order_by().values("pk")[most : most + 1].exists()


def find_key_before_newest(rows: QuerySet[Any]) -> int:
    """Return the key of the first row older than the MOST_COUNTED newest ones, 0 if there is none."""
    return rows.order_by("-pk").values_list("pk", flat=True)[MOST_COUNTED : MOST_COUNTED + 1].first() or 0


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts and shows up to MOST_COUNTED rows; `is_capped` is True if there are more."""

    is_capped = False

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        found: int = rows.order_by().values("pk")[: MOST_COUNTED + 1].count()
        self.is_capped = found > MOST_COUNTED
        return min(found, MOST_COUNTED)


class BaseAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rejects text that no database stores, and lookups on columns that may hold secrets.

    Django filters by any lookup in the address. PostgreSQL raises an error for NUL, and redacted values could be
    guessed letter by letter with `?kwargs__password__startswith=a`.
    """

    formfield_overrides = {
        models.DurationField: {"form_class": DurationField},
        models.DateTimeField: {"form_class": InstantField},
    }
    list_per_page = 50
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    #: Columns whose values are shown with secrets redacted.
    hidden_columns: tuple[str, ...] = ()

    class Media:
        css = {"all": ("django_delayq/admin.css",)}

    @property
    def urls(self) -> list[URLPattern]:
        found = super().urls
        for pattern in found:
            pattern.callback = self._wrap_view(pattern.callback)
        return found

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        column, *others = lookup.split("__")
        refused = column in self.hidden_columns or not {"regex", "iregex", "range"}.isdisjoint(others)
        return not refused and super().lookup_allowed(lookup, value, request)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Treat values that fail only in the query as wrong lookups: dates before year 1, large numbers."""
        try:
            return super().get_changelist_instance(request)
        except (ArithmeticError, AttributeError, DataError, TypeError, ValueError, ValidationError) as error:
            if request.GET.keys() <= {ERROR_FLAG}:
                raise
            raise IncorrectLookupParameters from error

    def formfield_for_dbfield(self, db_field: "models.Field[Any, Any]", request: HttpRequest, **kwargs: Any) -> Any:
        if isinstance(db_field, models.IntegerField):
            kwargs["form_class"] = WholeNumberField
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def build_route(self, route: str, view: View, name: str) -> URLPattern:
        return path(route, self.admin_site.admin_view(view), name=self._get_url_name(None, name))

    def get_url(self, view: str, *keys: Any, model: str | None = None) -> str:
        """Return the address of a page of this model, or of another one of the app."""
        name = f"admin:{self._get_url_name(model, view)}"
        return reverse(name, args=[quote(key) for key in keys], current_app=self.admin_site.name)

    def list_places(self, request: HttpRequest, here: str) -> list[tuple[str, Any, bool]]:
        """Return the operator's pages that the user may view: address, label, and whether it is the view `here`."""
        found = [
            ("overview", "changelist", _("At a glance")), ("overview", "now", _("Now")),
            ("run", "failures", _("Failures")), ("overview", "coming", _("Coming up")),
            ("overview", "ask", _("Why not?")), ("auditentry", "changelist", _("Audit")),
        ]  # fmt: skip
        return [
            (self.get_url(view, model=model), label, view == here and model != "auditentry")
            for model, view, label in found
            if can_view(request, "run" if model == "run" else "schedule")
        ]

    def render_page(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        """Return a page of this app in the frame of the admin."""
        frame = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/django_delayq/{template}", {**frame, **context})

    def _get_url_name(self, model: str | None, view: str) -> str:
        app, model = (APP, model) if model else (self.opts.app_label, self.opts.model_name)
        return f"{app}_{model}_{view.replace('-', '_')}"

    def _wrap_view(self, view: View) -> View:
        @wraps(view)
        def check_and_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            texts = [text for name, values in request.GET.lists() for text in (name, *values)]
            texts += request.POST.getlist(ACTION_CHECKBOX_NAME)
            if self.admin_site.has_permission(request) and not all(map(is_storable, texts)):
                text = _("A text must not contain NUL or half of a surrogate pair. Nothing was changed.")
                self.message_user(request, text, messages.WARNING)
                return HttpResponseRedirect(request.path)
            return view(request, *args, **kwargs)

        return check_and_view


class ReadOnlyAdmin(BaseAdmin):
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


class ScheduleViewerAdmin(ReadOnlyAdmin):
    """A read-only model for users who may view schedules."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return can_view(request, "schedule")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return can_view(request, "schedule")


def column(label: Any, show: Callable[[Any], Any], **options: Any) -> Column:
    """Return a ModelAdmin method that formats a row with `show`; `options` are those of `admin.display`."""

    def format_cell(self: Any, row: Any) -> Any:
        return show(row)

    described: Column = admin.display(description=label, **options)(format_cell)
    return described
