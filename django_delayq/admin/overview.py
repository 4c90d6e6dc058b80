"""At a glance: a snapshot of problems, recent outcomes, queues, workers and servers; and the list of alerts."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import conf
from ..index.counters import LATENCY, Tally, compute_percentile, select_outcomes
from ..models import Alert, Control, Overview
from ..monitoring.minutes import read_rows, sum_steps
from ..monitoring.observing import take_snapshot
from ..monitoring.problems import format_count, list_remarks, simplify
from ..monitoring.redis_side import QueueView, RedisView
from ..monitoring.snapshot import Problem, Snapshot
from ..recurrence.point import utcnow
from . import charts, display, glance
from .asking import AskPage
from .base import ReadOnlyAdmin, ScheduleViewerAdmin, column
from .coming_page import ComingPage
from .now import NowPage

#: Minutes over which rates are averaged.
RATE_MINUTES = 5


class ChartSpan(NamedTuple):
    """A period of `number` steps of `minutes` each; `written` is the time format of a step."""

    label: Any
    minutes: int
    number: int
    written: str


SPANS = {
    "1h": ChartSpan(gettext_lazy("1 hour"), 1, 60, "%H:%M"),
    "24h": ChartSpan(gettext_lazy("24 hours"), 30, 48, "%H:%M"),
    "7d": ChartSpan(gettext_lazy("7 days"), 240, 42, "%a %H:%M"),
}
KINDS = {"points": gettext_lazy("Scheduled runs"), "jobs": gettext_lazy("Jobs")}
#: Series of a chart, from the bottom: tone and label.
SERIES = {
    "succeeded": ("good", gettext_lazy("succeeded")),
    "retried": ("busy", gettext_lazy("retried")),
    "skipped": ("warn", gettext_lazy("skipped")),
    "failed": ("bad", gettext_lazy("failed")),
}
#: The page of each remark: model, view and query.
LINKS = {
    "restarted": ("overview", "now", ""),
    "failing": ("schedule", "changelist", "?state=failing"),
    "broken": ("schedule", "changelist", "?state=broken"),
    "paused": ("schedule", "changelist", "?state=paused"),
    "failed_jobs": ("run", "failures", ""),
}
SHARES = (0.5, 0.95, 0.99)


@admin.register(Overview)
class OverviewAdmin(ScheduleViewerAdmin, ComingPage, NowPage, AskPage):
    """The overview and its subpages, for users who may view schedules."""

    class Media:
        js = ("django_delayq/live.js",)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.build_route("", self.changelist_view, "changelist"),
            self.build_route("now/", self.now_view, "now"),
            self.build_route("ask/", self.ask_view, "ask"),
            self.build_route("coming/", self.coming_view, "coming"),
        ]

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Warn of problems on the admin's index, which calls this, so that no theme has to adapt its template."""
        index = reverse("admin:index", current_app=self.admin_site.name)
        if request.path == index and self.has_view_permission(request) and not hasattr(request, "delayq_snapshot"):
            request.delayq_snapshot = True  # type: ignore[attr-defined]
            found = len(glance.read_health(details=False).problems)
            if found:
                text = ngettext("Schedules: %(count)d problem.", "Schedules: %(count)d problems.", found)
                link = format_html('<a href="{}">{}</a>', self.get_url("changelist"), _("At a glance"))
                messages.warning(request, format_html("{} {}", text % {"count": found}, link))
        return super().get_model_perms(request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the page. The refreshing script loads the same address and replaces parts of the page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        span = SPANS.get(request.GET.get("span", ""), SPANS["1h"])
        details = request.user.has_perm("django_delayq.change_schedule")
        snapshot, mirrors = take_snapshot(), conf.get_config().mirror
        unknown = mirrors and snapshot.redis is None
        remarks = [each for each in snapshot.problems if not each.is_wrong and each.code != "idle"]
        return self.render_page(
            request, "overview/overview.html", _("At a glance"),
            spans=[(f"?span={name}", each.label, each is span) for name, each in SPANS.items()],
            problems=simplify(snapshot.problems, snapshot.redis, details=details),
            facts=[(each.tone, self._format_link(request, each, snapshot)) for each in remarks],
            headline=_format_headline(snapshot), charts=list(_build_charts(span, snapshot, complete=not unknown)),
            queues=_list_queues(snapshot, partial(self._name_queue, request, snapshot)), unknown=unknown,
            workers=_list_workers(snapshot.redis), at=display.format_instant(utcnow()), mirrors=mirrors,
            places=self.list_places(request, "changelist"),
        )  # fmt: skip

    def _format_link(self, request: HttpRequest, problem: Problem, snapshot: Snapshot) -> SafeString:
        for row in snapshot.held_back or ():
            if problem.code == "held_back" and problem.subject == str(row.pk):
                return glance.format_held(self, request, row)
        model, view, query = LINKS[problem.code]
        return format_html('<a href="{}{}">{}</a>', self.get_url(view, model=model), query, problem.message)

    def _name_queue(self, request: HttpRequest, snapshot: Snapshot, queue: QueueView) -> SafeString:
        rows = (row for row in snapshot.held_back or () if (row.kind, row.name) == (Control.Target.QUEUE, queue.queue))
        row = next(rows, None)
        text = "" if row is None else _("paused") if row.is_paused() else row.restrictions
        state = display.format_badge("warn", text) if text else ""
        if not queue.served:
            state = format_html("{} {}", state, display.format_badge("quiet", _("no worker")))
        if not request.user.has_perm("django_delayq.add_control"):
            return format_html("{} {}", queue.queue, state)
        address = f"{self.get_url('add', model='control')}?{urlencode({'name': queue.queue, 'paused': 'on'})}"
        change = _("Change") if row is not None else _("Pause or limit")
        return format_html('{} {} <a class="delayq-note" href="{}">{}</a>', queue.queue, state, address, change)


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    """Sent and pending alerts. Workers keep the rows up to date."""

    list_display = ("kind", "name", "text", "queue", "since_column", "reported_column", "recovered_column")
    list_filter = ("kind",)
    search_fields = ("name", "text")
    since_column = column(gettext_lazy("since"), lambda row: display.format_instant(row.since))
    reported_column = column(gettext_lazy("notified"), lambda row: display.format_instant(row.reported_at))
    recovered_column = column(gettext_lazy("recovered"), lambda row: display.format_instant(row.recovered_at))

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return super().get_model_perms(request) if conf.get_config().alerts else {}


def _format_headline(snapshot: Snapshot) -> tuple[str, str]:
    """Return (tone, words) for a page without problems, consistent with its remarks; the words may be empty."""
    for each in snapshot.problems:
        if each.code == "idle":
            return each.tone, each.message
    if not snapshot.problems:
        return "good", _("all is well")
    return ("", "") if list_remarks(snapshot.problems) else ("quiet", _("the workers keep up"))


def _build_charts(span: ChartSpan, snapshot: Snapshot, *, complete: bool) -> Iterator[dict[str, Any]]:
    """Yield each chart's data and table, newest first. Not `complete`: the newest counts are in Redis, which does not
    answer, so a sum of 0 is shown as "?".
    """
    step = timedelta(minutes=span.minutes)
    start = timezone.localtime(utcnow()).replace(hour=0, minute=0, second=0, microsecond=0)
    since = start + ((utcnow() - start) // step + 1 - span.number) * step
    rows = (snapshot.rows or ()) if span is SPANS["1h"] else read_rows(since)
    series = sum_steps(rows, since, step, span.number)
    times = [f"{timezone.localtime(since + number * step):{span.written}}" for number in range(span.number)]
    for kind, label in KINDS.items():
        tallies = [each.get(kind, {}) for each in series]
        if not any(tallies) and kind == "jobs":
            continue
        columns = [_sum_series(tally) if tally else {} for tally in tallies]
        table = [
            [time, *column.values(), *(_format_latency(compute_percentile(tally, LATENCY, share)) for share in SHARES)]
            for time, column, tally in zip(times, columns, tallies, strict=True)
            if column
        ]
        sums = {name: sum(column.get(name, 0) for column in columns) for name in SERIES}
        yield {
            "label": label,
            "bars": charts.render_bars(columns, SERIES, times) if table else "",
            "sums": [(name, tone, sums[key] or (0 if complete else "?")) for key, (tone, name) in SERIES.items()],
            "rows": table[::-1],
        }


def _sum_series(tally: Tally) -> dict[str, int]:
    found = dict.fromkeys(SERIES, 0)
    for name, number in select_outcomes(tally).items():
        key = name.partition(":")[0]
        found[key if key in SERIES else "failed"] += number
    return found


def _format_latency(seconds: float | None) -> display.Html:
    return display.format_span(None if seconds is None else timedelta(seconds=seconds))


def _list_queues(
    snapshot: Snapshot, name_queue: Callable[[QueueView], SafeString]
) -> list[tuple[SafeString, list[tuple[str, Any]]]]:
    """Return a row for each queue. "jobs" counts jobs and backfilled points, "jobs due" those of them that are due."""
    since, failed = utcnow() - timedelta(minutes=RATE_MINUTES), snapshot.failed_jobs or {}
    ended = Counter[str]()
    for at, (_kind, queue, _task), tally in snapshot.rows or ():
        if at >= since:
            ended[queue] += sum(n for name, n in select_outcomes(tally).items() if not name.startswith("skipped"))
    return [
        (name_queue(each), [
            (_("waiting"), each.members - each.due - each.leased), (_("due"), each.due), (_("running"), each.leased),
            (_("jobs"), each.jobs), (_("jobs due"), each.jobs_due),
            (_("failed jobs"), format_count(failed.get(each.queue, 0))),
            (_("oldest"), display.format_span(timedelta(seconds=each.oldest_due)) if each.oldest_due else "–"),
            (_("a minute"), f"{ended[each.queue] / RATE_MINUTES:,.1f}"),
        ])
        for each in (snapshot.redis.queues if snapshot.redis is not None else ())
    ]  # fmt: skip


def _list_workers(redis: RedisView | None) -> list[list[tuple[str, Any]]]:
    rows = []
    for worker in redis.workers if redis else ():
        beat = display.format_span(timedelta(seconds=worker.heartbeat_age))
        busy = "–" if worker.running is None else f"{worker.running} / {worker.threads or '?'}"
        memory = "–" if worker.memory_mb is None else f"{worker.memory_mb} MiB"
        since = "–" if worker.uptime is None else display.format_instant(utcnow() - timedelta(seconds=worker.uptime))
        mark = "" if worker.live else display.format_badge("bad", _("silent"))
        rows.append([
            ("", worker.name), (_("queues"), ", ".join(worker.queues)), (_("threads busy"), busy),
            (_("memory"), memory), (_("since"), since), (_("last sign of life"), format_html("{} {}", beat, mark)),
        ])  # fmt: skip
    return rows
