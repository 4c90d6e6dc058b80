"""Groups of failures as a template shows them, without what is secret. Reads schedules and errors; decides nothing."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models.functions import Right
from django.utils.translation import gettext as _

from .. import ledger
from ..failures import RunGroup
from ..models import Run, Schedule, Status
from ..plain import plain
from ..redaction import redact_text
from . import charts, display
from .base import BaseAdmin
from .durations import format_duration

#: So many schedules of a group are named.
SCHEDULES_SHOWN = 5
#: So much of the end of a traceback is shown; the rest is on the run's own page. More is read, as it is redacted first.
TRACE_SHOWN, TRACE_READ = 3_000, 6_000


def words(text: str) -> str:
    """Return a fingerprint as it may be shown."""
    return plain(redact_text(text)) or "–"


def run_rows(
    page: BaseAdmin, groups: Sequence[RunGroup], now: datetime, step: timedelta, number: int, *, linked: bool
) -> list[dict[str, Any]]:
    """Return a row for each group, in two queries. `linked`: schedules that are there are links."""
    named = {group.digest: list(group.schedules.items())[:SCHEDULES_SHOWN] for group in groups}
    using = ledger.database()
    wanted = {pk for schedules in named.values() for pk, _name in schedules} if linked else set[int]()
    there = set(Schedule.objects.using(using).filter(pk__in=wanted).values_list("pk", flat=True)) if wanted else set()
    ends = Run._base_manager.using(using).filter(pk__in=[group.last.pk for group in groups])
    traces = dict(ends.values_list("pk", Right("error", TRACE_READ))) if groups else {}

    def link(pk: int) -> str:
        return page.address("change", pk, model="schedule") if pk in there else ""

    return [
        {
            "task": display.breakable(plain(group.task)),
            "text": words(group.text),
            "said": words(group.last.reason),
            "lost": display.status_badge(Status.LOST) if group.last.status == Status.LOST else "",
            "is_new": group.is_new,
            "count": len(group.times),
            "spark": _spark(group.times, now - step * number, step, number),
            "first": display.instant(group.first),
            "since": display.relative(group.first, now),
            "last": display.instant(group.last.at),
            "run": page.address("change", group.last.pk, model="run"),
            "schedules": [(plain(name), link(pk)) for pk, name in named[group.digest]],
            "more": len(group.schedules) - SCHEDULES_SHOWN,
            "trace": _trace(traces.get(group.last.pk, "")),
        }
        for group in groups
    ]


def _spark(times: Sequence[datetime], since: datetime, step: timedelta, number: int) -> Any:
    counts = [0] * number
    for at in times:
        counts[min((at - since) // step, number - 1)] += 1
    title = _("at most %(count)d in %(span)s") % {"count": max(counts), "span": format_duration(step)}
    return charts.spark(counts, "bad", title)


def _trace(text: str) -> Any:
    """Return the end of a traceback, from the beginning of a line on."""
    text = redact_text(text).strip()
    if len(text) > TRACE_SHOWN:
        text = "…\n" + text[-TRACE_SHOWN:].partition("\n")[2]
    return display.traceback(text) if text else ""
