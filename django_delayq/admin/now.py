"""Running work, stuck runs first, and waiting work: since when, the time left, and a button to stop it."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import ledger
from ..calls import build_call
from ..calls.registry import get_task
from ..exceptions import BrokerError, UnknownTask
from ..index.web import ask
from ..models import Control, Run, Schedule, Status
from ..monitoring.database_side import OFTEN
from ..monitoring.redis_side import WAITING_SECONDS, RedisView, read_redis
from ..recurrence.point import utcnow
from ..text import escape_text
from . import display
from .base import BaseAdmin
from .glance import format_held

#: Maximum runs shown, the oldest first.
MOST_SHOWN = 100
#: A run that is still running this long after a stop was requested seems stuck; normally it takes seconds.
DEAF = timedelta(seconds=30)


class NowPage(BaseAdmin):
    """A page for users who may view the overview; listing runs requires `view_run`."""

    def now_view(self, request: HttpRequest) -> HttpResponse:
        """Show the stored state. Work that started less than a second ago is not stored as running yet."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        now, redis = utcnow(), None
        with suppress(BrokerError):  # other pages report it
            redis = ask(read_redis)
        runs = self._list_runs(request, now, redis) if request.user.has_perm("django_delayq.view_run") else []
        return self.render_page(
            request, "overview/now.html", _("Now"), runs=runs, most=MOST_SHOWN,
            at=display.format_instant(now), places=self.list_places(request, "now"),
            waits=[] if redis is None else self._list_waiting(request, redis),
            stuck=sum(bool(row["stuck"]) for row in runs), count=len(runs),
        )  # fmt: skip

    def _list_runs(self, request: HttpRequest, now: datetime, redis: RedisView | None) -> list[dict[str, Any]]:
        found = list(ledger.query_status(Status.RUNNING).order_by("pk")[:MOST_SHOWN])
        limits = dict(Schedule.objects.filter(pk__in=[run.schedule_id for run in found]).values_list("pk", "timeout"))
        may_stop = request.user.has_perm("django_delayq.stop_run")
        live = None if redis is None else {worker.name for worker in redis.live}
        rows = []
        for run in found:
            since, stop = run.started_at or run.claimed_at, run.stop_requested_at
            limit = _get_limit(run) if run.schedule_id is None else limits.get(run.schedule_id)
            left = None if limit is None or since is None else since + limit - now
            ago = "" if stop is None else _("stop requested %(ago)s") % {"ago": display.format_relative(stop, now)}
            rows.append({
                "name": run.title, "address": self.get_url("change", run.pk, model="run"),
                "task": run.result_id or run.task, "queue": run.queue, "worker": escape_text(run.worker),
                "attempt": run.attempt + 1, "stuck": list(_explain_stuck(run, left, live, now)),
                "due": display.format_instant(run.due_at), "since": display.format_instant(since),
                "lasts": display.format_span(None if since is None else now - since),
                "left": _("no limit") if left is None else display.format_span(max(left, timedelta(0))),
                "asked": "" if stop is None else display.format_badge("warn", ago, run.stop_requested_by),
                "stop": self.get_url("stop", run.pk, model="run") if may_stop else "",
            })  # fmt: skip
        return sorted(rows, key=lambda row: not row["stuck"])

    def _list_waiting(self, request: HttpRequest, redis: RedisView) -> list[dict[str, Any]]:
        rows = []
        controls = {row.name: row for row in ledger.load_controls() if row.kind == Control.Target.QUEUE}
        for each in redis.queues:
            if not each.due or each.oldest_due < WAITING_SECONDS:
                continue
            control = controls.get(each.queue)
            if control is not None and (each.served or control.is_paused()):
                why: display.Html = format_held(self, request, control)
                tone = "warn" if control.is_paused() else "quiet"
            elif each.served:
                tone, why = "quiet", _("Its workers are busy.")
            else:
                tone, why = "bad", _("No live worker serves it. Start one: manage.py delayq_worker")
            rows.append({
                "queue": each.queue, "due": each.due - each.jobs_due, "jobs": each.jobs_due, "tone": tone, "why": why,
                "oldest": display.format_span(timedelta(seconds=each.oldest_due)),
            })  # fmt: skip
        return rows


def _get_limit(job: Run) -> timedelta | None:
    try:
        return build_call(job, get_task(job.task)).timeout
    except UnknownTask:
        return None


def _explain_stuck(run: Run, left: timedelta | None, live: Collection[str] | None, now: datetime) -> Iterator[str]:
    """Yield the reasons why a run seems stuck; `live`: names of the live workers, None if unknown."""
    if run.stop_requested_at is not None and now - run.stop_requested_at > DEAF:
        yield _("does not stop")
    if left is not None and left <= timedelta(0):
        yield _("over its time limit")
    if run.reclaims >= OFTEN:
        text = ngettext("lost its worker %(count)d time", "lost its worker %(count)d times", run.reclaims)
        yield text % {"count": run.reclaims}
    if live is not None and run.worker not in live:
        yield _("its worker is silent")
