"""Facts worth attention that are not errors: failing schedules, failed jobs, pauses, limits. Counts and links only."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import ledger
from ..models import Condition, Control, Run, Schedule, ScheduleState, Status, explain_wait
from ..monitoring.status.snapshot import WAITING_SECONDS, RedisView
from ..recurrence.point import utcnow
from . import display
from .base import BaseAdmin
from .display import tone_of

#: Maximum rows counted for each fact.
MOST_COUNTED = 1000
#: Lost workers after which a run is suspected of killing workers, or of hanging.
OFTEN = 2


def restarted() -> QuerySet[Run]:
    """Return running runs that have lost their worker at least OFTEN times."""
    return ledger.with_status(Status.RUNNING).filter(reclaims__gte=OFTEN)


def told(
    page: BaseAdmin, request: HttpRequest, held: Sequence[Control], failed: int
) -> Iterator[tuple[str, SafeString]]:
    """Yield (tone, linked words), most serious first, in one query. `failed`: the number of stored failed jobs."""
    states = ScheduleState.objects.filter(schedule__enabled=True)
    failing, parked, paused, often = ledger.count_up_to(
        MOST_COUNTED, states.filter(failing_streak__gt=0), states.filter(condition=Condition.PARKED),
        Schedule.objects.paused(), restarted(),
    )  # fmt: skip
    schedules = page.address("changelist", model="schedule")
    found = (
        (often, "bad",
         ngettext("%(count)s run keeps losing its worker", "%(count)s runs keep losing their workers", often),
         page.address("now", model="overview")),
        (failing, "bad", ngettext("%(count)s schedule fails", "%(count)s schedules fail", failing),
         f"{schedules}?state=failing"),
        (parked, "bad", ngettext("%(count)s is parked", "%(count)s are parked", parked), f"{schedules}?state=parked"),
        (failed, "bad", ngettext("%(count)s failed job", "%(count)s failed jobs", failed),
         page.address("failures", model="run")),
    )  # fmt: skip
    for number, tone, words, address in found:
        if number:
            yield tone, _counted(number, words, address)
    for row in held:
        yield "warn" if row.is_paused() else "quiet", held_back(page, request, row)
    if paused:
        words = ngettext("%(count)s schedule is paused", "%(count)s schedules are paused", paused)
        yield "quiet", _counted(paused, words, f"{schedules}?state=paused")


def limited(number: int) -> str:
    """Format a number that was counted up to MOST_COUNTED + 1."""
    return f"> {MOST_COUNTED}" if number > MOST_COUNTED else str(number)


def _counted(number: int, words: str, address: str) -> SafeString:
    return format_html('<a href="{}">{}</a>', address, words % {"count": limited(number)})


def held_back(page: BaseAdmin, request: HttpRequest, row: Control) -> SafeString:
    """Format a pause or limit and its age, with a link for users who may view controls."""
    words: Any = explain_wait([row]) or f"{row}: {row.standing}"
    if request.user.has_perm("django_delayq.view_control"):
        words = format_html('<a href="{}">{}</a>', page.address("change", row.pk, model="control"), words)
    return format_html("{}, {}", words, display.relative(row.changed_at, utcnow()))


def _why_waiting(
    page: BaseAdmin, request: HttpRequest, row: Control | None, *, served: bool
) -> tuple[str, display.Html]:
    if row is not None and (served or row.is_paused()):
        return "warn" if row.is_paused() else "quiet", held_back(page, request, row)
    if served:
        return "quiet", _("Its workers are busy.")
    return "bad", _("No live worker serves it. Start one: manage.py delayq_worker")


def waiting(page: BaseAdmin, request: HttpRequest, redis: RedisView, held: Sequence[Control]) -> list[dict[str, Any]]:
    """Return a row for each queue whose due work waits for a worker: how much, how long, and why."""
    rows = []
    controls = {row.name: row for row in held if row.kind == Control.Kind.QUEUE}
    for each in redis.queues:
        if not each.due or each.oldest_due < WAITING_SECONDS:
            continue
        tone, why = _why_waiting(page, request, controls.get(each.queue), served=each.served)
        rows.append({"queue": each.queue, "due": each.due - each.jobs_due, "jobs": each.jobs_due, "tone": tone,
                     "why": why, "oldest": display.milliseconds(timedelta(seconds=each.oldest_due))})  # fmt: skip
    return rows


#: Maximum outcomes shown per schedule.
MOST_SHOWN = 20
#: Schedules per query; SQLite joins at most 500 SELECTs.
AT_ONCE = 200
DOT, HIGH = 6, 14


def recent(schedules: Sequence[int]) -> dict[int, list[str]]:
    """Return the outcomes of each schedule's newest runs, oldest first."""
    using, found = ledger.database(), dict[int, list[str]]()
    table = connections[using].ops.quote_name(Run._meta.db_table)
    one = (
        f"SELECT * FROM (SELECT schedule_id, status FROM {table} WHERE schedule_id = %s "  # noqa: S608 - ours
        f"ORDER BY due_at DESC LIMIT {MOST_SHOWN}) AS newest"
    )
    for at in range(0, len(schedules), AT_ONCE):
        part = schedules[at : at + AT_ONCE]
        with connections[using].cursor() as cursor:
            cursor.execute(" UNION ALL ".join([one] * len(part)), list(part))
            for pk, status in cursor.fetchall():
                found.setdefault(pk, []).insert(0, status)
    return found


@lru_cache(maxsize=500)
def _bar(status: str, at: int) -> SafeString:
    """Return one bar. Cached, because a page of a hundred schedules has two thousand, of few kinds."""
    tone = tone_of(status)
    values = tone, at * DOT, 0 if tone == "bad" else HIGH // 3, DOT - 2, HIGH
    return format_html('<rect class="delayq-fill-{}" x="{}" y="{}" width="{}" height="{}"/>', *values)


def dots(statuses: Sequence[str]) -> SafeString:
    """Return a picture of these outcomes, newest at the right, with a description as its title."""
    if not statuses:
        return SafeString()
    counts = Counter(statuses)
    told = ", ".join(f"{count} {Status(name).label}" for name, count in counts.most_common() if name in Status.values)
    title = _("The last %(count)d runs: %(told)s") % {"count": len(statuses), "told": told}
    bars = SafeString("".join(_bar(status, at) for at, status in enumerate(statuses)))
    width = MOST_SHOWN * DOT
    picture = (
        '<svg class="delayq-recent" viewBox="0 0 {} {}" width="{}" height="{}" role="img"><title>{}</title>{}</svg>'
    )
    return format_html(picture, width, HIGH, width, HIGH, title, bars)
