"""Recent failures, grouped by task and error, with actions on a whole group. Each action asks first.

Viewing requires the permission for the list of runs, running again that of "Run now"; jobs are retried and deleted as
in that list. Dismissing requires the permission to run again or to retry.
"""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from ..models import Run, Schedule
from ..models.kept import MOST_AT_ONCE
from ..monitoring import failures
from ..monitoring.failures import Failures, RunGroup
from ..recurrence.point import utcnow
from . import failure_rows as shown
from . import paging
from .actions import ASKED, NAMES_SHOWN, ScheduleActions
from .base import View
from .failure_rows import title_of
from .run_actions import ORDERS, Order, RunActions, posted

#: Maximum groups per page.
GROUPS_SHOWN = 25
#: Actions on the jobs of a group, with the labels of their buttons.
LABELS = {"retry": gettext_lazy("Retry all"), "delete": gettext_lazy("Delete all")}


class Span(NamedTuple):
    """A period of `number` steps."""

    label: Any
    step: timedelta
    number: int


SPANS = {
    "24h": Span(gettext_lazy("24 hours"), timedelta(hours=1), 24),
    "7d": Span(gettext_lazy("7 days"), timedelta(hours=6), 28),
}


class Asked(NamedTuple):
    """The query of an address: a period, and whether dismissed groups are shown."""

    span: str
    dismissed: bool

    @classmethod
    def of(cls, request: HttpRequest) -> "Asked":
        span = request.GET.get("span", "")
        return cls(span if span in SPANS else "24h", "dismissed" in request.GET)

    @property
    def query(self) -> str:
        return f"?{urlencode({'span': self.span, **({'dismissed': '1'} if self.dismissed else {})})}"

    def groups(self) -> tuple[Failures, list[RunGroup]]:
        found, span = failures.read_failures(utcnow()), SPANS[self.span]
        return found, failures.group_failures(found, found.now - span.step * span.number)


class ErrorFilter(admin.SimpleListFilter):
    """The runs of a group of failures, or their schedules. Shown only if the address contains it."""

    title = gettext_lazy("error")
    parameter_name = "error"

    @staticmethod
    def address_of(span: str, digest: str) -> str:
        """Return the query string of a list that shows this group."""
        return f"?{urlencode({ErrorFilter.parameter_name: f'{span}.{digest}'})}"

    def lookups(self, request: HttpRequest, model_admin: "admin.ModelAdmin[Any]") -> list[tuple[str, str]]:
        """Offer the chosen group. Reads it once, also for `queryset`."""
        value, self._group = self.value(), None
        if value is None:
            return []
        if model_admin.admin_site.get_model_admin(Run).has_view_permission(request):
            span, _dot, digest = value.partition(".")
            _found, groups = Asked(span if span in SPANS else "24h", False).groups()
            self._group = next((group for group in groups if group.digest == digest), None)
            if self._group and model_admin.model is Schedule and len(self._group.schedules) > paging.MOST_FOUND:
                said = _("More than %(count)d schedules have this error. Those that had it last are listed.")
                model_admin.message_user(request, said % {"count": paging.MOST_FOUND}, messages.WARNING)
        return [(value, title_of(self._group) if self._group else _("There are no such failures any more."))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        if self._group is None:
            return queryset.none()
        is_of_runs, schedules = queryset.model is Run, list(self._group.schedules)[: paging.MOST_FOUND]
        return queryset.filter(pk__in=self._group.runs if is_of_runs else schedules)


class FailuresPage(RunActions):
    """The page, and the actions on a group."""

    def failures_urls(self) -> list[URLPattern]:
        take = require_http_methods(["GET", "HEAD", "POST"])
        views: dict[str, View] = {
            "run-again": self.again_view, "dismiss": self.dismiss_view, "take-back": self.take_back_view,
            **{f"group-{name}": partial(self.group_view, order=ORDERS[name]) for name in LABELS},
        }  # fmt: skip
        return [
            self.route("failures/", self.failures_view, "failures"),
            *(self.route(f"failures/<str:digest>/{name}/", take(view), name) for name, view in views.items()),
        ]

    def failures_view(self, request: HttpRequest) -> HttpResponse:
        """Show the groups, new ones first, then by last failure."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = Asked.of(request)
        found, groups = asked.groups()
        listed = [group for group in groups if asked.dismissed or not group.is_dismissed]
        page = Paginator(listed, GROUPS_SHOWN).get_page(request.GET.get("page"))
        return self.page(
            request, "run/failures.html", _("Failures"), listed=page, query=asked.query,
            rows=self._rows(request, asked, found.now, list(page)),
            cut=len(found.rows) if found.cut else 0, unknown_whether_new=not found.reaches(found.now - failures.NEW),
            total=sum(len(group.times) for group in listed), hidden=len(groups) - len(listed),
            new=sum(group.is_new for group in listed), places=self.places(request, "failures"),
            shows_dismissed=asked.dismissed, other=asked._replace(dismissed=not asked.dismissed).query,
            spans=[(asked._replace(span=name).query, each.label, name == asked.span) for name, each in SPANS.items()],
        )  # fmt: skip

    def _rows(self, request: HttpRequest, asked: Asked, now: datetime, groups: list[RunGroup]) -> list[dict[str, Any]]:
        schedules, span = self._schedules, SPANS[asked.span]
        linked, may_run = schedules.has_view_permission(request), schedules.may(request, "run_now")
        may_dismiss = self._may_dismiss(request)
        rows = shown.run_rows(self, groups, now, span.step, span.number, linked=linked)
        for group, row in zip(groups, rows, strict=True):
            row["dismissed"] = group.is_dismissed
            listed = ErrorFilter.address_of(asked.span, group.digest)
            row["runs"] = f"{self.address('changelist')}{listed}"
            row["list"] = (
                f"{self.address('changelist', model='schedule')}{listed}" if linked and group.schedules else ""
            )
            acts: list[tuple[str, Any]] = []
            if group.of_jobs:
                acts += [(f"group-{name}", text) for name, text in LABELS.items() if self.may(request, ORDERS[name])]
            elif may_run:
                acts.append(("run-again", _("Run again")))
            if may_dismiss and row["dismissed"]:
                acts.append(("take-back", _("Take the dismissal back")))
            elif may_dismiss:
                acts.append(("dismiss", _("Dismiss")))
            row["acts"] = [(f"{self.address(act, group.digest)}{asked.query}", text) for act, text in acts]
        return rows

    def group_view(self, request: HttpRequest, digest: str, order: Order) -> HttpResponse:
        """Ask about the newest jobs of a group (GET), or act on the jobs that were listed (POST)."""
        back = self._back(request, allowed=self.may(request, order))
        if request.method == "POST":
            self.do_order(request, order, posted(request, MOST_AT_ONCE))
            return back
        group = self._find(request, digest)
        if group is None:
            return back
        there = self.get_queryset(request).in_bulk(group.runs[:MOST_AT_ONCE])
        jobs = [there[pk] for pk in group.runs if pk in there and order.fits(there[pk])]
        counted = _("The newest %(count)d of %(total)d jobs:") % {"count": len(jobs), "total": len(group.runs)}
        return self.ask_order(
            request, order, jobs, back.url, counted=counted if len(group.runs) > MOST_AT_ONCE else ""
        )  # fmt: skip

    def again_view(self, request: HttpRequest, digest: str) -> HttpResponse:
        """Ask (GET), or run each schedule that was listed once (POST)."""
        schedules = self._schedules
        back = self._back(request, allowed=schedules.may(request, "run_now"))
        if request.method == "POST":
            wanted = set(posted(request, MOST_AT_ONCE + 1))
        else:
            group = self._find(request, digest)
            if group is None:
                return back
            wanted = set(group.schedules)
        rows = list(schedules.get_queryset(request).filter(pk__in=wanted)[: MOST_AT_ONCE + 1])
        if len(rows) > MOST_AT_ONCE:
            text = _(
                "At most %(most)d schedules are run again at once, and these are more. Nothing was ordered. Choose "
                "them in the list of schedules."
            )
            self.message_user(request, text % {"most": MOST_AT_ONCE}, messages.ERROR)
        elif not rows:
            self.message_user(request, _("None of its schedules is there any more."), messages.WARNING)
        elif request.method == "POST":
            return schedules.act(request, schedules.get_queryset(request).filter(pk__in=wanted), "run_now") or back
        else:
            names = [row.name for row in rows]
            return self.page(
                request, "confirm.html", _("Run again"), note=ASKED["run_now"].note, names=names[:NAMES_SHOWN],
                more=len(names) - NAMES_SHOWN, hidden=[(ACTION_CHECKBOX_NAME, row.pk) for row in rows], back=back.url,
            )  # fmt: skip
        return back

    def dismiss_view(self, request: HttpRequest, digest: str) -> HttpResponse:
        """Ask (GET), or dismiss the failures of a group up to the last one that was shown (POST)."""
        back, group = self._back(request, allowed=self._may_dismiss(request)), self._find(request, digest)
        if group is None:
            return back
        if request.method == "POST":
            until = _instant(request.POST.get("until", ""))
            if until is not None:
                failures.dismiss(group, min(until, group.last.at))
                self._log_about(request, group, _("Dismissed."))
                self.message_user(request, _("It is dismissed until it fails again."), messages.SUCCESS)
            return back
        return self.page(
            request, "confirm.html", _("Dismiss"), names=[title_of(group)],
            note=_("It is hidden from everybody until it fails again. Its runs stay in the history."),
            hidden=[("until", group.last.at.isoformat())], back=back.url,
        )  # fmt: skip

    def take_back_view(self, request: HttpRequest, digest: str) -> HttpResponse:
        """Ask (GET), or show a dismissed group to all users again (POST)."""
        back, group = self._back(request, allowed=self._may_dismiss(request)), self._find(request, digest)
        if group is None:
            return back
        if request.method == "POST":
            if failures.take_back(group):
                self._log_about(request, group, _("The dismissal was taken back."))
                self.message_user(request, _("It is shown again."), messages.SUCCESS)
            return back
        return self.page(
            request, "confirm.html", _("Take the dismissal back"), names=[title_of(group)],
            note=_("It is shown to everybody again."), back=back.url,
        )  # fmt: skip

    def _log_about(self, request: HttpRequest, group: RunGroup, message: str) -> None:
        """Log the action for the audit, on the last run of the group."""
        run = self.get_queryset(request).filter(pk=group.last.pk).first()
        if run is not None:
            self.log_change(request, run, message)

    @property
    def _schedules(self) -> ScheduleActions:
        found = self.admin_site.get_model_admin(Schedule)
        assert isinstance(found, ScheduleActions)  # noqa: S101 - for mypy
        return found

    def _may_dismiss(self, request: HttpRequest) -> bool:
        return self._schedules.may(request, "run_now") or self.may(request, ORDERS["retry"])

    def _back(self, request: HttpRequest, *, allowed: bool) -> HttpResponseRedirect:
        """Return a redirect to the page. Raises PermissionDenied if not `allowed`, or if the user may not view runs."""
        if not (allowed and self.has_view_permission(request)):
            raise PermissionDenied
        return HttpResponseRedirect(f"{self.address('failures')}{Asked.of(request).query}")

    def _find(self, request: HttpRequest, digest: str) -> RunGroup | None:
        """Return the current group; if it no longer exists, warn the user and return None."""
        _found, groups = Asked.of(request).groups()
        group = next((group for group in groups if group.digest == digest), None)
        if group is None:
            self.message_user(request, _("There are no such failures any more."), messages.WARNING)
        return group


def _instant(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
