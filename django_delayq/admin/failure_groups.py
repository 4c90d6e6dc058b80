"""Groups of recent failures. Viewing requires the permission for runs, dismissing that to run again or to retry."""

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
from ..text import plain, redact_text
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
        last = _last_runs([group]).get(group.last.pk)
        return [(value, f"{plain(group.task)}: {_redacted(last, group.text)}")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        if self._group is None:
            return queryset.none()
        return queryset.filter(pk__in=self._group.runs if queryset.model is Run else list(self._group.schedules))


class FailuresPage(RunActions):
    def get_urls(self) -> list[URLPattern]:
        acts: dict[str, View] = {"dismiss": self.dismiss_view, "take-back": partial(self.dismiss_view, back=True)}
        own = [self.route(f"failures/<str:digest>/{name}/", require_POST(act), name) for name, act in acts.items()]
        return [self.route("failures/", self.failures_view, "failures"), *own, *super().get_urls()]

    def failures_view(self, request: HttpRequest) -> HttpResponse:
        """Show the groups, new ones first, then by last failure."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        name, dismissed = _span_of(request), "dismissed" in request.GET
        found, groups = read_groups(name)
        listed = [group for group in groups if dismissed or not group.is_dismissed]
        page = Paginator(listed, GROUPS_SHOWN).get_page(request.GET.get("page"))
        return self.page(
            request, "run/failures.html", _("Failures"), listed=page, query=_query(name, dismissed=dismissed),
            rows=self._rows(request, name, found.now, list(page)), may_dismiss=self._may_dismiss(request),
            cut=len(found.rows) if found.cut else 0, unknown_whether_new=not found.reaches(found.now - failures.NEW),
            total=sum(len(group.times) for group in listed), hidden=len(groups) - len(listed),
            new=sum(group.is_new for group in listed), places=self.places(request, "failures"),
            shows_dismissed=dismissed, other=_query(name, dismissed=not dismissed),
            spans=[(_query(key, dismissed=dismissed), span.label, key == name) for key, span in SPANS.items()],
        )  # fmt: skip

    def _rows(self, request: HttpRequest, name: str, now: datetime, groups: list[RunGroup]) -> list[dict[str, Any]]:
        linked, last, rows = self.schedules.has_view_permission(request), _last_runs(groups), []
        for group in groups:
            run = last.get(group.last.pk)
            query = f"?{urlencode({ErrorFilter.parameter_name: f'{name}.{group.digest}'})}"
            schedules = self.address("changelist", model="schedule") + query
            rows.append({
                "group": group,
                "task": display.breakable(plain(group.task)),
                "said": _redacted(run, group.last.reason),
                "lost": display.status_badge(Status.LOST) if group.last.status == Status.LOST else "",
                "count": len(group.times),
                "spark": _spark(group.times, now, SPANS[name]),
                "first": display.instant(group.first),
                "since": display.relative(group.first, now),
                "last": display.instant(group.last.at),
                "run": self.address("change", group.last.pk, model="run"),
                "schedules": [
                    (plain(title), self.address("change", pk, model="schedule") if linked else "")
                    for pk, title in list(group.schedules.items())[:SCHEDULES_SHOWN]
                ],
                "more": len(group.schedules) - SCHEDULES_SHOWN,
                "trace": "" if run is None else _trace(run),
                "runs": self.address("changelist") + query,
                "list": schedules if linked and group.schedules else "",
                "act": self.address("take-back" if group.is_dismissed else "dismiss", group.digest),
            })  # fmt: skip
        return rows

    def dismiss_view(self, request: HttpRequest, digest: str, *, back: bool = False) -> HttpResponse:
        """Dismiss the failures of a group up to the run that was shown, or take that back."""
        if not (self.has_view_permission(request) and self._may_dismiss(request)):
            raise PermissionDenied
        name = _span_of(request)
        group, shown = find_group(name, digest), read_key(request.POST.get("last", ""))
        until = None if group is None else next((at for pk, at in group.rows if pk == shown), None)
        if group is None:
            self.message_user(request, _("These failures no longer exist."), messages.WARNING)
        elif back and failures.take_back(group):
            self._report(request, group, _("The dismissal was undone."), _("It is no longer dismissed."))
        elif until is not None and not back:
            failures.dismiss(group, until)
            self._report(request, group, _("Dismissed."), _("It is dismissed until it fails again."))
        query = _query(name, dismissed="dismissed" in request.GET)
        return HttpResponseRedirect(f"{self.address('failures')}{query}")

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

    def _may_dismiss(self, request: HttpRequest) -> bool:
        return self.schedules.may(request, "run_now") or self.may(request, "retry")


def _span_of(request: HttpRequest) -> str:
    name = request.GET.get("span", "")
    return name if name in SPANS else "24h"


def _query(span: str, *, dismissed: bool) -> str:
    return f"?{urlencode({'span': span, **({'dismissed': '1'} if dismissed else {})})}"


def _redacted(run: Run | None, text: str) -> str:
    return plain(redact_text(text) if run is None else display.redacted(run, text))


def _last_runs(groups: Sequence[RunGroup]) -> dict[int, Run]:
    rows = Run._base_manager.using(ledger.database()).filter(pk__in=[group.last.pk for group in groups])
    return {run.pk: run for run in rows.annotate(ending=Right("error", TRACE_READ)).only("task", "call")}


def _spark(times: Sequence[datetime], now: datetime, span: Span) -> Any:
    counts = [0] * span.number
    for at in times:
        counts[min((at - (now - span.step * span.number)) // span.step, span.number - 1)] += 1
    title = _("at most %(count)d in %(span)s") % {"count": max(counts), "span": display.format_duration(span.step)}
    return charts.spark(counts, "bad", title)


def _trace(run: Any) -> Any:
    text = display.redacted(run, run.ending).strip()
    if len(text) > TRACE_SHOWN:
        text = "…\n" + text[-TRACE_SHOWN:].partition("\n")[2]
    return display.traceback(text) if text else ""
