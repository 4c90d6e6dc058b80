"""Groups of recent failures. Viewing requires the permission to view runs; dismissing requires the permission to run
schedules now, or to retry jobs.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.db.models.functions import Right
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from .. import ledger
from ..calls.validators import read_key
from ..models import Run, Schedule, Status
from ..monitoring import failures
from ..monitoring.failures import Failures, RunGroup
from ..recurrence.point import utcnow
from ..text import escape_text, redact_text
from . import charts, display
from .base import View
from .run_actions import RunActions
from .schedule_actions import ScheduleActions

#: Maximum groups per page, and maximum schedules named per group.
GROUPS_SHOWN, SCHEDULES_SHOWN = 25, 5
#: Maximum characters shown and read of a traceback's end. More are read, because it is redacted before it is cut.
TRACE_SHOWN, TRACE_READ = 3_000, 6_000


class Span(NamedTuple):
    label: Any
    step: timedelta
    number: int


SPANS = {
    "24h": Span(gettext_lazy("24 hours"), timedelta(hours=1), 24),
    "7d": Span(gettext_lazy("7 days"), timedelta(hours=6), 28),
}


def read_groups(name: str) -> tuple[Failures, list[RunGroup]]:
    found, span = failures.read_failures(utcnow()), SPANS[name]
    return found, failures.group_failures(found, found.now - span.step * span.number)


def find_group(name: str, digest: str) -> RunGroup | None:
    return next((group for group in read_groups(name)[1] if group.digest == digest), None)


class ErrorFilter(admin.SimpleListFilter):
    """The runs of a group of failures, or their schedules. Shown only if the address contains it."""

    title = gettext_lazy("error")
    parameter_name = "error"

    def lookups(self, request: HttpRequest, model_admin: "admin.ModelAdmin[Any]") -> list[tuple[str, str]]:
        value, self._group = self.value(), None
        if value is None:
            return []
        if model_admin.admin_site.get_model_admin(Run).has_view_permission(request):
            name, _dot, digest = value.partition(".")
            self._group = find_group(name, digest) if name in SPANS else None
        if (group := self._group) is None:
            return [(value, _("These failures no longer exist."))]
        last = _load_last_runs([group]).get(group.last.pk)
        return [(value, f"{escape_text(group.task)}: {_redact(last, group.text)}")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        if self._group is None:
            return queryset.none()
        return queryset.filter(pk__in=self._group.runs if queryset.model is Run else list(self._group.schedules))


class FailuresPage(RunActions):
    def get_urls(self) -> list[URLPattern]:
        acts: dict[str, View] = {"dismiss": self.dismiss_view, "take-back": partial(self.dismiss_view, back=True)}
        own = [
            self.build_route(f"failures/<str:digest>/{name}/", require_POST(act), name) for name, act in acts.items()
        ]
        return [self.build_route("failures/", self.failures_view, "failures"), *own, *super().get_urls()]

    def failures_view(self, request: HttpRequest) -> HttpResponse:
        """Show the groups, new ones first, then by last failure."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        name, dismissed = _read_span(request), "dismissed" in request.GET
        found, groups = read_groups(name)
        listed = [group for group in groups if dismissed or not group.is_dismissed]
        page = Paginator(listed, GROUPS_SHOWN).get_page(request.GET.get("page"))
        return self.render_page(
            request, "run/failures.html", _("Failures"), listed=page, query=_build_query(name, dismissed=dismissed),
            rows=self._build_rows(request, name, found.now, list(page)), may_dismiss=self._can_dismiss(request),
            cut=len(found.rows) if found.cut else 0, hidden=len(groups) - len(listed),
            unknown_whether_new=not found.has_all_since(found.now - failures.NEW),
            total=sum(len(group.times) for group in listed),
            new=sum(group.is_new for group in listed), places=self.list_places(request, "failures"),
            shows_dismissed=dismissed, other=_build_query(name, dismissed=not dismissed),
            spans=[(_build_query(key, dismissed=dismissed), span.label, key == name) for key, span in SPANS.items()],
        )  # fmt: skip

    def _build_rows(
        self, request: HttpRequest, name: str, now: datetime, groups: list[RunGroup]
    ) -> list[dict[str, Any]]:
        linked, last, rows = self.schedules.has_view_permission(request), _load_last_runs(groups), []
        for group in groups:
            run = last.get(group.last.pk)
            query = f"?{urlencode({ErrorFilter.parameter_name: f'{name}.{group.digest}'})}"
            schedules = self.get_url("changelist", model="schedule") + query
            rows.append({
                "group": group,
                "task": display.format_breakable(escape_text(group.task)),
                "said": _redact(run, group.last.reason),
                "lost": display.format_status(Status.LOST) if group.last.status == Status.LOST else "",
                "count": len(group.times),
                "spark": _render_spark(group.times, now, SPANS[name]),
                "first": display.format_instant(group.first),
                "since": display.format_relative(group.first, now),
                "last": display.format_instant(group.last.at),
                "run": self.get_url("change", group.last.pk, model="run"),
                "schedules": [
                    (escape_text(title), self.get_url("change", pk, model="schedule") if linked else "")
                    for pk, title in list(group.schedules.items())[:SCHEDULES_SHOWN]
                ],
                "more": len(group.schedules) - SCHEDULES_SHOWN,
                "trace": "" if run is None else _format_trace(run),
                "runs": self.get_url("changelist") + query,
                "list": schedules if linked and group.schedules else "",
                "act": self.get_url("take-back" if group.is_dismissed else "dismiss", group.digest),
            })  # fmt: skip
        return rows

    def dismiss_view(self, request: HttpRequest, digest: str, *, back: bool = False) -> HttpResponse:
        """Dismiss the failures of a group up to the run that was shown, or take that back."""
        if not (self.has_view_permission(request) and self._can_dismiss(request)):
            raise PermissionDenied
        name = _read_span(request)
        group, shown = find_group(name, digest), read_key(request.POST.get("last", ""))
        until = None if group is None else next((at for pk, at in group.rows if pk == shown), None)
        if group is None:
            self.message_user(request, _("These failures no longer exist."), messages.WARNING)
        elif back and failures.take_back(group):
            self._report(request, group, _("The dismissal was undone."), _("It is no longer dismissed."))
        elif until is not None and not back:
            failures.dismiss(group, until)
            self._report(request, group, _("Dismissed."), _("It is dismissed until it fails again."))
        query = _build_query(name, dismissed="dismissed" in request.GET)
        return HttpResponseRedirect(f"{self.get_url('failures')}{query}")

    def _report(self, request: HttpRequest, group: RunGroup, logged: str, message: str) -> None:
        run = self.get_queryset(request).filter(pk=group.last.pk).first()
        if run is not None:
            self.log_change(request, run, logged)
        self.message_user(request, message, messages.SUCCESS)

    @property
    def schedules(self) -> ScheduleActions:
        found = self.admin_site.get_model_admin(Schedule)
        assert isinstance(found, ScheduleActions)  # noqa: S101 - for mypy
        return found

    def _can_dismiss(self, request: HttpRequest) -> bool:
        return self.schedules.can_act(request, "run_now") or self.can_act(request, "retry")


def _read_span(request: HttpRequest) -> str:
    name = request.GET.get("span", "")
    return name if name in SPANS else "24h"


def _build_query(span: str, *, dismissed: bool) -> str:
    return f"?{urlencode({'span': span, **({'dismissed': '1'} if dismissed else {})})}"


def _redact(run: Run | None, text: str) -> str:
    return escape_text(redact_text(text) if run is None else display.redact_run_text(run, text))


def _load_last_runs(groups: Sequence[RunGroup]) -> dict[int, Run]:
    rows = Run._base_manager.using(ledger.get_database()).filter(pk__in=[group.last.pk for group in groups])
    return {run.pk: run for run in rows.annotate(ending=Right("error", TRACE_READ)).only("task", "call")}


def _render_spark(times: Sequence[datetime], now: datetime, span: Span) -> Any:
    counts = [0] * span.number
    for at in times:
        counts[min((at - (now - span.step * span.number)) // span.step, span.number - 1)] += 1
    title = _("at most %(count)d in %(span)s") % {"count": max(counts), "span": display.format_duration(span.step)}
    return charts.render_spark(counts, "bad", title)


def _format_trace(run: Any) -> Any:
    text = display.redact_run_text(run, run.ending).strip()
    if len(text) > TRACE_SHOWN:
        text = "…\n" + text[-TRACE_SHOWN:].partition("\n")[2]
    return display.format_traceback(text) if text else ""
