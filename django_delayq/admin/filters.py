"""The filters beside the lists. Each is a question an operator asks; the answers are QuerySet verbs of the models."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters, ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import Run, Schedule, Status
from .display import utcnow

Lookups = list[tuple[str, Any]]


class StateFilter(admin.SimpleListFilter):
    """What state a schedule is in."""

    title = _("state")
    parameter_name = "state"
    #: The names are ScheduleQuerySet's verbs.
    choices_of = (
        ("enabled", _("enabled")),
        ("paused", _("paused")),
        ("failing", _("failing")),
        ("exhausted", _("exhausted")),
        ("parked", _("parked")),
        ("unmirrored", _("not yet mirrored")),
    )

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Lookups:
        """Return every state."""
        return list(self.choices_of)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Ask the verb of that name."""
        if self.value() not in dict(self.choices_of):
            return queryset
        verb: Callable[[], QuerySet[Any]] = getattr(queryset, str(self.value()))
        return verb()


class OutcomeFilter(admin.SimpleListFilter):
    """How a schedule's last run ended."""

    title = _("last outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Lookups:
        """Return every outcome, and that there is none."""
        ends = [(status.value, status.label) for status in Status if not status.is_open]
        return [*ends, ("none", _("none yet"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Compare what the states noted."""
        if self.value() is None:
            return queryset
        if self.value() == "none":
            return queryset.exclude(state__last_status__gt="")
        return queryset.filter(state__last_status=self.value())


class RecentFilter(admin.SimpleListFilter):
    """How long ago a run was due."""

    title = _("due")
    parameter_name = "due"
    spans = {
        "hour": (_("in the past hour"), timedelta(hours=1)),
        "day": (_("in the past 24 hours"), timedelta(days=1)),
        "week": (_("in the past 7 days"), timedelta(days=7)),
        "month": (_("in the past 30 days"), timedelta(days=30)),
    }

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Lookups:
        """Return the spans."""
        return [(name, label) for name, (label, _span) in self.spans.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Bound the due point, which has an index."""
        chosen = self.spans.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(due_at__gte=utcnow() - chosen[1])


class ScheduleFilter(admin.SimpleListFilter):
    """The runs of one schedule, also of a deleted one. Shown only where a link brought one here."""

    title = _("schedule")
    parameter_name = "schedule__id__exact"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> Lookups:
        """Return the one schedule that is asked for, by its name."""
        value = self.value()
        if value is None:
            return []
        pk = _number(value)
        name = Schedule.objects.filter(pk=pk).values_list("name", flat=True).first()
        return [
            (value, name or Run.objects.filter(schedule_id=pk).values_list("schedule_name", flat=True).first() or pk)
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Compare the number; the schedule itself may be gone."""
        value = self.value()
        return queryset if value is None else queryset.filter(schedule_id=_number(value))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise IncorrectLookupParameters
    return int(text)
