"""The filters of the admin's lists."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import ledger
from ..calls.validators import read_key
from ..models import Origin, Run, Schedule, Status
from ..monitoring.database_side import MOST_UNKNOWN

#: Maximum queues, tasks or tags offered.
MOST_OFFERED = 50


def _filter_status(status: Status, rows: Any) -> Any:
    return rows.filter(state__last_status=status)


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with fixed answers, each with a label and a function that narrows the list. Ignores other values."""

    answers: dict[str, tuple[Any, Callable[[Any], Any]]]

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> list[tuple[str, Any]]:
        return [(value, label) for value, (label, _narrow) in self.answers.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        _label, narrow = self.answers.get(self.value() or "", ("", None))
        return queryset if narrow is None else narrow(queryset)


class StateFilter(ChoiceFilter):
    title = _("state")
    parameter_name = "state"
    answers = {
        "enabled": (_("enabled"), lambda rows: rows.enabled()),
        "paused": (_("paused"), lambda rows: rows.paused()),
        "failing": (_("failing"), lambda rows: rows.failing()),
        "finished": (_("finished"), lambda rows: rows.finished()),
        "broken": (_("broken"), lambda rows: rows.broken()),
    }


class OutcomeFilter(ChoiceFilter):
    title = _("last outcome")
    parameter_name = "outcome"
    answers = {
        **{end.value: (end.label, partial(_filter_status, end)) for end in Status if not end.is_open},
    }


class OriginFilter(ChoiceFilter):
    title = _("origin")
    parameter_name = "origin"
    answers = {
        "hand": (_("made by hand"), lambda rows: rows.filter(declared_key=None)),
        "code": (_("in the code"), lambda rows: rows.filter(declared_key__isnull=False, declaration_gone_at=None)),
        "gone": (_("gone from the code"), lambda rows: rows.filter(declaration_gone_at__isnull=False)),
    }


def read_used_names(request: Any) -> dict[str, list[str]]:
    """Return the queues, tasks and tags that schedules have, queried once per request."""
    if not hasattr(request, "delayq_used"):
        request.delayq_used = Schedule.objects.read_used_names(MOST_UNKNOWN)
    used: dict[str, list[str]] = request.delayq_used
    return used


class UsedFilter(admin.SimpleListFilter):
    parameter_name: str

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> list[tuple[str, Any]]:
        names = {*read_used_names(request)[self.parameter_name][:MOST_OFFERED], *filter(None, [self.value()])}
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(**{self.parameter_name: self.value()})


class UsedQueueFilter(UsedFilter):
    title = _("queue")
    parameter_name = "queue"


class UsedTaskFilter(UsedFilter):
    title = _("task")
    parameter_name = "task"


class TagFilter(UsedFilter):
    title = _("tag")
    parameter_name = "tag"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.tagged(self.value())  # type: ignore[attr-defined]


class IndexedFilter(admin.ChoicesFieldListFilter):
    """A filter by a column with a partial index. Repeats the condition of the index, so that SQLite uses it."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run] | None:
        found: Any = super().queryset(request, queryset)
        value = request.GET.get(self.lookup_kwarg)
        if value == Origin.JOB:
            found = found.filter(schedule=None)  # uses the index of schedules
        elif value in (Origin.MANUAL, Origin.BACKFILL):
            ordered = f"{Run._meta.db_table}.origin IN ('manual', 'backfill')"
            found = found.filter(RawSQL(ordered, [], output_field=BooleanField()))  # noqa: S611 - the text is constant
        elif value in Status.values and value != Status.SUCCEEDED:
            found &= ledger.query_status(str(value))
        return found  # type: ignore[no-any-return]


class ScheduleFilter(admin.SimpleListFilter):
    """The runs of one schedule, which may be deleted. Shown only if the address contains it."""

    title = _("schedule")
    parameter_name = "schedule__id__exact"

    def lookups(self, request: HttpRequest, model_admin: "ModelAdmin[Any]") -> list[tuple[str, Any]]:
        if (value := self.value()) is None:
            return []
        key = read_key(value) or 0
        present = Schedule.objects.filter(pk=key).values_list("name", flat=True)
        former = Run.objects.filter(schedule_id=key).values_list("schedule_name", flat=True)
        return [(value, present.first() or former.first() or value)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(schedule_id=read_key(value) or 0)
