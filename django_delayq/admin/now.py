"""Running work, stuck runs first, and waiting work: since when, the time left, and a button to stop it."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf, ledger
from ..calls import call_of
from ..calls.registry import get_task
from ..exceptions import BrokerError, UnknownTask
from ..index.web import ask
from ..models import Cancellation, Run, Schedule, Status
from ..monitoring.status.redis_side import read_redis
from ..monitoring.status.snapshot import RedisView
from ..recurrence.point import utcnow
from ..text import plain
from . import display, facts
from .base import BaseAdmin

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
        now, may = utcnow(), request.user.has_perm
        redis = _ask_redis()
        runs = self._runs(request, now, redis) if may("django_delayq.view_run") else []
        return self.page(
            request, "overview/now.html", _("Now"), runs=runs, most=MOST_SHOWN,
            at=display.instant(now), places=self.places(request, "now"),
            waits=[] if redis is None else facts.waiting(self, request, redis, ledger.held_back()),
            stuck=sum(bool(row["stuck"]) for row in runs), count=len(runs),
        )  # fmt: skip

    def _runs(self, request: HttpRequest, now: datetime, redis: RedisView | None) -> list[dict[str, Any]]:
        found = list(ledger.with_status(Status.RUNNING).order_by("pk")[:MOST_SHOWN])
        limits = dict(Schedule.objects.filter(pk__in=[run.schedule_id for run in found]).values_list("pk", "timeout"))
        asked = _asked([run.pk for run in found])
        may_stop = request.user.has_perm("django_delayq.add_cancellation")
        live = None if redis is None else {worker.name for worker in redis.workers if worker.live}
        rows = []
        for run in found:
            since, stop = run.started_at or run.claimed_at, asked.get(run.pk)
            limit = _limit_of(run) if run.schedule_id is None else limits.get(run.schedule_id)
            left = None if limit is None or since is None else since + limit - now
            stuck = [*_deaf(stop, now), *_stuck(run, left, live)]
            rows.append({
                "name": run.title, "address": self.address("change", run.pk, model="run"),
                "task": run.result_id or run.task,
                "queue": run.queue, "worker": plain(run.worker), "attempt": run.attempt + 1, "stuck": stuck,
                "due": display.instant(run.due_at),
                "left": _("no limit") if left is None else display.milliseconds(max(left, timedelta(0))),
                "stop": self.address("stop", run.pk, model="run") if may_stop else "", **_common(since, stop, now),
            })  # fmt: skip
        return sorted(rows, key=lambda row: not row["stuck"])


def _limit_of(job: Run) -> timedelta | None:
    try:
        return call_of(job, get_task(job.task)).timeout
    except UnknownTask:
        return None


def _ask_redis() -> RedisView | None:
    """Return the state of Redis; None if it does not answer (other pages report it) or the project does not mirror."""
    try:
        return ask(partial(read_redis, server=False)) if conf.get_config().mirror else None
    except BrokerError:
        return None


def _common(since: datetime | None, asked: Cancellation | None, now: datetime) -> dict[str, Any]:
    text = "" if asked is None else _("stop asked for %(ago)s") % {"ago": display.relative(asked.asked_at, now)}
    return {
        "since": display.instant(since),
        "lasts": display.milliseconds(None if since is None else now - since),
        "asked": "" if asked is None else display.badge("warn", text, asked.asked_by),
    }


def _stuck(run: Run, left: timedelta | None, live: Collection[str] | None) -> Iterator[str]:
    """Yield the reasons why a run seems stuck; `live`: names of the live workers, None if unknown."""
    if left is not None and left <= timedelta(0):
        yield _("over its time limit")
    if run.reclaims >= facts.OFTEN:
        text = ngettext("lost its worker %(count)d time", "lost its worker %(count)d times", run.reclaims)
        yield text % {"count": run.reclaims}
    if live is not None and run.worker not in live:
        yield _("its worker is silent")


def _deaf(asked: Cancellation | None, now: datetime) -> list[str]:
    return [_("does not stop")] if asked is not None and now - asked.asked_at > DEAF else []


def _asked(runs: list[int]) -> dict[int, Cancellation]:
    return {row.run: row for row in Cancellation.objects.filter(run__in=runs)}
