"""Actions that ask first, as buttons on the page of a row and in the list. Each acts on a POST only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.views.decorators.http import require_http_methods

from ..text import escape_text
from .base import APP, BaseAdmin

#: Maximum names listed on a confirmation page.
NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action for users with the permission: its labels, what it asks, does, reports and logs."""

    permission: str
    label: Any
    label_in_list: Any
    note: Any
    do: Callable[..., Any]
    done: Any
    logged: Any
    #: Statuses of the runs that it applies to.
    statuses: tuple[str, ...] = ()
    form: type[forms.Form] | None = None
    is_grave: bool = False


def list_actions(confirmed: Mapping[str, Action]) -> tuple[Callable[..., Any], ...]:
    """Return the actions as `ModelAdmin.actions` wants them."""

    def make(name: str, action: Action) -> Callable[..., Any]:
        def act(page: "ConfirmingAdmin", request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
            return page.confirm(request, rows, name, confirmed="apply" in request.POST)

        act.__name__ = name
        described: Callable[..., Any] = admin.action(description=action.label_in_list)(act)
        return described

    return tuple(starmap(make, confirmed.items()))


class ConfirmingAdmin(BaseAdmin):
    """A model with confirmed actions. A subclass sets `confirmed_actions` and `actions`, and implements `act`."""

    confirmed_actions: Mapping[str, Action]

    def act(self, request: HttpRequest, rows: QuerySet[Any], name: str, **values: Any) -> None:
        raise NotImplementedError

    def name_row(self, row: Any) -> str:
        return str(row)

    def can_act(self, request: HttpRequest, name: str, row: Any = None) -> bool:
        """Return whether the user may view the row and has the action's permission."""
        permission = self.confirmed_actions[name].permission
        return self.has_view_permission(request, row) and request.user.has_perm(f"{APP}.{permission}")

    def find(self, request: HttpRequest, pk: int, name: str) -> Any:
        """Return the row on which the action `name` is to act. Raises PermissionDenied or Http404."""
        row = self.get_queryset(request).filter(pk=pk).first()
        if not self.can_act(request, name, row):
            raise PermissionDenied
        if row is None:
            raise Http404
        return row

    def get_urls(self) -> list[URLPattern]:
        take = require_http_methods(["GET", "HEAD", "POST"])
        own = [
            self.build_route(f"<int:pk>/{name.replace('_', '-')}/", take(partial(self.action_view, name=name)), name)
            for name in self.confirmed_actions
        ]
        return [*own, *super().get_urls()]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions that the user may perform. Django passes the location since 6.1."""
        given = {} if action_location is None else {"action_location": action_location}
        found = super().get_actions(request, **given)
        own = self.confirmed_actions.keys()
        return {name: act for name, act in found.items() if name not in own or self.can_act(request, name)}

    def action_view(self, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        """Ask (GET), or act on one row (POST)."""
        self.find(request, pk, name)
        rows = self.get_queryset(request).filter(pk=pk)
        if response := self.confirm(request, rows, name, confirmed=request.method == "POST"):
            return response
        return HttpResponseRedirect(self.get_url("change", pk) if rows.exists() else self.get_url("changelist"))

    def confirm(self, request: HttpRequest, rows: QuerySet[Any], name: str, *, confirmed: bool) -> HttpResponse | None:
        """Return the page that asks. If the action is confirmed and its form is valid, act and return None."""
        action = self.confirmed_actions[name]
        form = action.form(request.POST if confirmed else None) if action.form else None
        if confirmed and (form is None or form.is_valid()):
            self.act(request, rows, name, **(form.cleaned_data if form else {}))
            return None
        chosen, across = request.POST.getlist(ACTION_CHECKBOX_NAME), request.POST.get("select_across", "0")
        if across == "1":  # Django needs one selected key, and rejects a form with thousands of fields
            chosen = chosen[:1]
        hidden = [("action", name), ("select_across", across), *((ACTION_CHECKBOX_NAME, pk) for pk in chosen)]
        return self.render_page(
            request, "confirm.html", action.label, note=action.note, form=form, grave=action.is_grave,
            names=[escape_text(self.name_row(row)) for row in rows[:NAMES_SHOWN]], more=rows.count() - NAMES_SHOWN,
            hidden=hidden if chosen else [],
            back=request.get_full_path() if chosen else self.get_url("change", rows[0].pk),
        )  # fmt: skip
