"""At a glance: problems, recent outcomes, queues, workers and servers. Only queries and shows."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import conf, ledger
from ..index.counters import LAG, Tally, by_queue, outcomes, percentile
from ..models import Control, Overview
from ..monitoring import minutes, status
from ..monitoring.status.snapshot import MOST_READ, RedisView, Snapshot
from ..recurrence.point import utcnow
from ..text import plain
from . import charts, display, facts, glance
from .asking import AskPage
from .base import ReadOnlyAdmin, may_view
from .coming import ComingPage
from .now import NowPage

#: Minutes over which rates are averaged.
RATE_MINUTES = 5


class Span(NamedTuple):
    """A period of `number` steps of `minutes` each; `written` is the time format of a step."""

    label: Any
    minutes: int
    number: int
    written: str


SPANS = {
    "1h": Span(gettext_lazy("1 hour"), 1, 60, "%H:%M"),
    "24h": Span(gettext_lazy("24 hours"), 30, 48, "%H:%M"),
    "7d": Span(gettext_lazy("7 days"), 240, 42, "%a %H:%M"),
}
KINDS = {"points": gettext_lazy("Scheduled runs"), "jobs": gettext_lazy("Jobs")}
#: Tones of a chart's series, from the bottom; below, their labels.
TONES = {"succeeded": "good", "retried": "busy", "skipped": "warn", "failed": "bad"}
NAMES = {
    "succeeded": gettext_lazy("succeeded"),
    "retried": gettext_lazy("retried"),
    "skipped": gettext_lazy("skipped"),
    "failed": gettext_lazy("failed"),
}
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin, ComingPage, NowPage, AskPage):
    """The overview and its subpages, for users who may view schedules."""

    class Media:
        js = ("django_delayq/live.js",)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.route("", self.changelist_view, "changelist"),
            self.route("now/", self.now_view, "now"),
            self.route("ask/", self.ask_view, "ask"),
            self.route("coming/", self.coming_view, "coming"),
        ]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_view(request, "schedule")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def may_see_details(self, request: HttpRequest) -> bool:
        """Return whether the user may see the address of Redis and why it does not answer."""
        return request.user.has_perm("django_delayq.change_schedule")

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Warn of problems on the admin's index, which calls this, so that no theme has to adapt its template."""
        index = reverse("admin:index", current_app=self.admin_site.name)
        if request.path == index and self.has_view_permission(request) and not hasattr(request, "delayq_told"):
            request.delayq_told = True  # type: ignore[attr-defined]
            found = len(_problems(_look(server=False), details=False)) if conf.get_config().mirror else 0
            if found:
                text = ngettext("Schedules: %(count)d problem.", "Schedules: %(count)d problems.", found)
                link = format_html('<a href="{}">{}</a>', self.address("changelist"), _("At a glance"))
                messages.warning(request, format_html("{} {}", text % {"count": found}, link))
        return super().get_model_perms(request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the page. The refreshing script loads the same address and replaces parts of the page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        span = SPANS.get(request.GET.get("span", ""), SPANS["1h"])
        details = self.may_see_details(request)
        snapshot = _look(server=details)
        redis = None if snapshot is None else snapshot.redis
        held = ledger.held_back() if snapshot is None or snapshot.held_back is None else snapshot.held_back
        failed = ledger.count_failed_jobs(MOST_READ)
        unknown = snapshot is not None and redis is None
        told = list(facts.told(self, request, held, sum(failed.values())))
        return self.page(
            request, "overview/overview.html", _("At a glance"),
            spans=[(f"?span={name}", each.label, each is span) for name, each in SPANS.items()],
            problems=_problems(snapshot, details=details), facts=told, headline=_headline(snapshot, told),
            charts=list(_charts(span, complete=not unknown)), unknown=unknown,
            queues=_queues(redis, failed, self._named_queue(request, held, redis)), workers=_workers(redis),
            servers=_servers(snapshot, details), at=display.instant(utcnow()), mirrors=conf.get_config().mirror,
            places=self.places(request, "changelist"),
        )  # fmt: skip

    def _named_queue(
        self, request: HttpRequest, held: Sequence[Control], redis: RedisView | None
    ) -> Callable[[str], SafeString]:
        """Return a function that formats a queue: its name, its state, and a link to pause or limit it."""
        rows = {row.name: row for row in held if row.kind == Control.Kind.QUEUE}

        def shown(queue: str) -> SafeString:
            row = rows.get(queue)
            told = "" if row is None else display.badge("warn", _("paused") if row.is_paused() else row.standing)
            if redis is not None and not redis.serves(queue):
                told = format_html("{} {}", told, display.badge("quiet", _("no worker")))
            if not request.user.has_perm("django_delayq.add_control"):
                return format_html("{} {}", queue, told)
            address = f"{self.address('add', model='control')}?{urlencode({'name': queue, 'paused': 'on'})}"
            change = _("Change") if row is not None else _("Pause or limit")
            return format_html('{} {} <a class="delayq-note" href="{}">{}</a>', queue, told, address, change)

        return shown


def _look(*, server: bool) -> Snapshot | None:
    return status.look_quickly(server=server) if conf.get_config().mirror else None


def _problems(snapshot: Snapshot | None, *, details: bool) -> list[status.Problem]:
    return [] if snapshot is None else glance.problems_of(snapshot, details=details)


def _headline(snapshot: Snapshot | None, told: Sequence[tuple[str, SafeString]]) -> tuple[str, str]:
    """Return (tone, words) for a page without problems, consistent with the facts `told`; the words may be empty."""
    tones = {tone for tone, _words in told}
    if snapshot is not None and snapshot.redis is not None and not any(each.live for each in snapshot.redis.workers):
        return "warn", _("No worker runs.")
    if not told:
        return "good", _("all is well")
    return ("", "") if tones & {"bad", "warn"} else ("quiet", _("the workers keep up"))


def _charts(span: Span, *, complete: bool) -> Iterator[dict[str, Any]]:
    """Yield each chart's data and table, newest first. Unless `complete`, Redis has later counts: zero is unknown."""
    step = timedelta(minutes=span.minutes)
    start = timezone.localtime(utcnow()).replace(hour=0, minute=0, second=0, microsecond=0)
    since = start + ((utcnow() - start) // step + 1 - span.number) * step
    series = minutes.read_series(since, step, span.number)
    times = [f"{timezone.localtime(since + number * step):{span.written}}" for number in range(span.number)]
    for kind, label in KINDS.items():
        tallies = [each.get(kind, {}) for each in series]
        if not any(tallies) and kind == "jobs":
            continue
        columns = [_by_tone(tally) for tally in tallies]
        waits = {name: [percentile(tally, LAG, share) for tally in tallies] for name, share in SHARES.items()}
        rows = [
            [time, *(column.get(name, 0) for name in TONES), *(_seconds(waits[name][at]) for name in SHARES)]
            for at, (time, column) in enumerate(zip(times, columns, strict=True))
            if column
        ]
        yield {
            "label": label,
            "bars": charts.bars(columns, TONES, NAMES, times, lambda number: f"{number:,.0f}"),
            "lines": charts.lines(waits, times, _seconds),
            "sums": [(NAMES[name], TONES[name], _sum(columns, name) or (0 if complete else "?")) for name in TONES],
            "rows": rows[::-1],
        }  # fmt: skip


def _sum(columns: Sequence[dict[str, int]], name: str) -> int:
    return sum(column.get(name, 0) for column in columns)


def _by_tone(tally: Tally) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, number in outcomes(tally).items():
        kept = name.partition(":")[0]
        kept = kept if kept in TONES else "failed"
        found[kept] = found.get(kept, 0) + number
    return found


def _seconds(value: float | None) -> str:
    """Return "1.5 ms", "100 ms", "4.2 s", "100 s", "17 min" or "3 h": about two digits, to fit an axis."""
    if value is None:
        return "–"
    if value >= 10:
        return status.format_span(value)
    number, unit = (value * 1000, "ms") if value < 1 else (value, "s")
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def _queues(
    redis: RedisView | None, failed: dict[str, int], shown: Callable[[str], SafeString]
) -> list[tuple[Any, list[tuple[str, Any]]]]:
    """Return a row for each queue. "jobs" and "jobs due" are jobs and backfilled points, of all and of due members."""
    if redis is None:
        return []
    done = by_queue(minutes.read_counts(utcnow() - timedelta(minutes=RATE_MINUTES)))
    rows = []
    for each in redis.queues:
        ended = sum(
            number for kind in KINDS for name, number in outcomes(done.get((each.queue, kind), {})).items()
            if not name.startswith("skipped")
        )  # fmt: skip
        rows.append((shown(each.queue), [
            (_("waiting"), each.members - each.due - each.leased), (_("due"), each.due), (_("running"), each.leased),
            (_("jobs"), each.jobs), (_("jobs due"), each.jobs_due),
            (_("failed jobs"), facts.limited(failed[each.queue])),
            (_("oldest"), display.milliseconds(timedelta(seconds=each.oldest_due)) if each.oldest_due else "–"),
            (_("a minute"), f"{ended / RATE_MINUTES:,.1f}"),
        ]))  # fmt: skip
    return rows


def _workers(redis: RedisView | None) -> list[list[tuple[str, Any]]]:
    rows = []
    for worker in redis.workers if redis else ():
        beat = display.milliseconds(timedelta(seconds=worker.heartbeat_age))
        busy = "–" if worker.running is None else f"{worker.running} / {worker.threads or '?'}"
        memory = "–" if worker.memory_mb is None else f"{worker.memory_mb} MiB"
        since = "–" if worker.uptime is None else display.instant(utcnow() - timedelta(seconds=worker.uptime))
        mark = "" if worker.live else display.badge("bad", _("silent"))
        rows.append([
            ("", plain(worker.name)), (_("queues"), ", ".join(map(plain, worker.queues))), (_("threads busy"), busy),
            (_("memory"), memory), (_("since"), since), (_("last sign of life"), format_html("{} {}", beat, mark)),
        ])  # fmt: skip
    return rows


def _servers(snapshot: Snapshot | None, details: bool) -> list[tuple[str, str]]:
    if snapshot is None:
        return []
    lines = []
    drift = None if snapshot.comparison is None else snapshot.comparison.drift
    if drift is not None:
        swept = _("compared in full {}").format(display.relative(drift.swept_at, utcnow())) if drift.swept_at else ""
        lines.append((_("Mirror"), ", ".join(filter(None, [_("drift %(count)d") % {"count": drift.total}, swept]))))
    for server in (snapshot.redis and snapshot.redis.servers) or ():
        used = "" if server.used_bytes is None else f"{server.used_bytes / 2**20:,.0f} MiB"
        lines.append(
            (
                f"{server.name} {server.version}".strip().capitalize(),
                ", ".join(filter(None, [used, server.memory_policy])),
            )
        )
    if details:
        using = ledger.database()
        lines.append((_("Database"), f"{connections[using].display_name}, {using}"))
    return lines
