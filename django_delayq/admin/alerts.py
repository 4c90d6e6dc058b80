"""Sent and pending alerts. Read-only, because workers keep the rows up to date."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..models import Alert
from . import display
from .base import ReadOnlyAdmin, column


def _state(row: Alert) -> Any:
    if row.recovered_at is not None:
        return display.badge("good", _("recovered"))
    return display.badge("bad", _("told")) if row.told_at is not None else display.badge("quiet", _("not told yet"))


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = ("kind", "name", "shown_state", "text", "queue", "shown_since", "shown_recovered")
    list_filter = ("kind",)
    search_fields = ("name", "text")
    shown_state = column(gettext_lazy("state"), _state)
    shown_since = column(gettext_lazy("since"), lambda row: display.instant(row.since))
    shown_recovered = column(gettext_lazy("recovered"), lambda row: display.instant(row.recovered_at))

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Leave alerts out of the admin's index if none are configured."""
        return super().get_model_perms(request) if conf.get_config().alerts else {}
