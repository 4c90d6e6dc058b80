"""The filters beside the list of schedules. Each is a question an operator asks."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import Status


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with fixed `answers`; any other value in the address leaves the list as it is."""

    answers: tuple[tuple[str, Any], ...]

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> list[tuple[str, Any]]:
        return list(self.answers)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        answer = self.value()
        found: QuerySet[Any] = self.narrow(queryset, answer) if answer in dict(self.answers) else queryset
        return found

    def narrow(self, rows: Any, answer: str) -> Any:
        """Return the rows that have this answer."""
        raise NotImplementedError


class StateFilter(ChoiceFilter):
    """What state a schedule is in: the verbs of ScheduleQuerySet."""

    title = _("state")
    parameter_name = "state"
    answers = (
        ("enabled", _("enabled")),
        ("paused", _("paused")),
        ("failing", _("failing")),
        ("exhausted", _("exhausted")),
        ("parked", _("parked")),
        ("unmirrored", _("not yet mirrored")),
    )

    def narrow(self, rows: Any, answer: str) -> Any:
        return getattr(rows, answer)()


class OutcomeFilter(ChoiceFilter):
    title = _("last outcome")
    parameter_name = "outcome"
    answers = (*((status.value, status.label) for status in Status if not status.is_open), ("none", _("none yet")))

    def narrow(self, rows: Any, answer: str) -> Any:
        return rows.exclude(state__last_status__gt="") if answer == "none" else rows.filter(state__last_status=answer)


class OriginFilter(ChoiceFilter):
    title = _("origin")
    parameter_name = "origin"
    answers = (("hand", _("made by hand")), ("code", _("in the code")), ("gone", _("gone from the code")))

    def narrow(self, rows: Any, answer: str) -> Any:
        wanted = {
            "hand": Q(declaration=None),
            "code": Q(declaration__isnull=False, declaration__gone_at=None),
            "gone": Q(declaration__gone_at__isnull=False),
        }
        return rows.filter(wanted[answer])
