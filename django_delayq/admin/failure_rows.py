"""Groups of failures as rows for a template, with secrets redacted. Reads schedules and runs; contains no logic."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models.functions import Right
from django.utils.translation import gettext as _

from .. import ledger
from ..models import Run, Schedule, Status
from ..monitoring.failures import RunGroup
from ..text import plain, redact_text
from . import charts, display
from .base import BaseAdmin
from .durations import format_duration

#: Maximum schedules named per group.
SCHEDULES_SHOWN = 5
#: Maximum characters shown and read of a traceback's end. More are read, because it is redacted before it is cut.
TRACE_SHOWN, TRACE_READ = 3_000, 6_000


def title_of(group: RunGroup) -> str:
    """Return a group as one line; queries its last run."""
    return f"{plain(group.task)}: {_words(group, _last([group]).get(group.last.pk))}"


def _words(group: RunGroup, last: Run | None) -> str:
    """Return the fingerprint without the secrets of the run `last`."""
    return plain(redact_text(group.text) if last is None else display.redacted(last, group.text)) or "–"


def _last(groups: Sequence[RunGroup]) -> dict[int, Run]:
    rows = Run._base_manager.using(ledger.database()).filter(pk__in=[group.last.pk for group in groups])
    read = rows.annotate(ending=Right("error", TRACE_READ)).only("task", "call")
    return {run.pk: run for run in read} if groups else {}


def run_rows(
    page: BaseAdmin, groups: Sequence[RunGroup], now: datetime, step: timedelta, number: int, *, linked: bool
) -> list[dict[str, Any]]:
    """Return a row for each group, in two queries. `linked`: whether existing schedules are links."""
    named = {group.digest: list(group.schedules.items())[:SCHEDULES_SHOWN] for group in groups}
    using = ledger.database()
    wanted = {pk for schedules in named.values() for pk, _name in schedules} if linked else set[int]()
    there = set(Schedule.objects.using(using).filter(pk__in=wanted).values_list("pk", flat=True)) if wanted else set()
    last = _last(groups)

    def link(pk: int) -> str:
        return page.address("change", pk, model="schedule") if pk in there else ""

    def shown(group: RunGroup) -> dict[str, Any]:
        run = last.get(group.last.pk)
        return {
            "task": display.breakable(plain(group.task)),
            "text": _words(group, run),
            "said": plain(redact_text(group.last.reason) if run is None else display.redacted(run, group.last.reason)),
            "lost": display.status_badge(Status.LOST) if group.last.status == Status.LOST else "",
            "is_new": group.is_new,
            "of_jobs": group.of_jobs,
            "count": len(group.times),
            "spark": _spark(group.times, now - step * number, step, number),
            "first": display.instant(group.first),
            "since": display.relative(group.first, now),
            "last": display.instant(group.last.at),
            "run": page.address("change", group.last.pk, model="run"),
            "schedules": [(plain(name), link(pk)) for pk, name in named[group.digest]],
            "more": len(group.schedules) - SCHEDULES_SHOWN,
            "trace": "" if run is None else _trace(run),
        }

    return [shown(group) for group in groups]


def _spark(times: Sequence[datetime], since: datetime, step: timedelta, number: int) -> Any:
    counts = [0] * number
    for at in times:
        counts[min((at - since) // step, number - 1)] += 1
    title = _("at most %(count)d in %(span)s") % {"count": max(counts), "span": format_duration(step)}
    return charts.spark(counts, "bad", title)


def _trace(run: Any) -> Any:
    text = display.redacted(run, run.ending).strip()
    if len(text) > TRACE_SHOWN:
        text = "…\n" + text[-TRACE_SHOWN:].partition("\n")[2]
    return display.traceback(text) if text else ""
