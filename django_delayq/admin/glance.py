"""A schedule's state, next due point and last outcome, and the overall health. Reads a page's entries in one query."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin.views.main import ChangeList
from django.db.models import F, OrderBy, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import conf, ledger, sync
from ..calls import handover, registry
from ..exceptions import BrokerError, InvalidRecurrence
from ..index.keys import grouped
from ..ledger import chain
from ..models import Condition, Control, Schedule, ScheduleState, Tag, explain_wait
from ..monitoring import status
from ..recurrence.point import known_ms, utcnow
from ..recurrence.words import describe
from .display import Html, badge, instant, milliseconds, relative, sentence, status_badge, zone_of
from .facts import dots, recent
from .filters import used_by

if TYPE_CHECKING:
    from ..index import EntryView

#: A sleeping worker claims a due point within this time; until then the point is not late.
SLACK = timedelta(seconds=1)
#: Maximum failing schedules counted for the line above the list.
MOST_FAILING = 1000


@dataclass(frozen=True, slots=True)
class Redis:
    """What Redis holds; `entries` is None without an answer. `error` has its address: show it with `details` only."""

    entries: "dict[int, EntryView] | None" = None
    error: str = ""


def ask_redis(schedules: list[Schedule]) -> Redis:
    """Read the entries of these schedules in one round trip; an unreachable Redis is returned as `error`."""
    if not conf.get_config().mirror or not schedules:
        return Redis()
    try:
        return Redis(sync.read_entries(schedules))
    except BrokerError as error:
        return Redis(error=str(error))


def problems_of(snapshot: status.Snapshot, *, details: bool) -> list[status.Problem]:
    """Return the problems, each cause once. Only with `details` do they contain the address of Redis."""
    found = status.judge(snapshot)
    unserved = {each.queue for each in found if each.code == "no_worker"}
    found = [each for each in found if each.code != "overdue" or each.queue not in unserved]
    if len(unserved) > 1 and snapshot.redis is not None and not any(each.live for each in snapshot.redis.workers):
        text = _("No worker runs, so nothing starts. Start one: manage.py delayq_worker")
        found = [each for each in found if each.code not in ("no_worker", "overdue")]
        found = [status.Problem("no_worker", text), *found]
    if not details:
        hidden = _("Redis does not answer.")
        found = [replace(each, message=hidden) if each.code == "redis_unreachable" else each for each in found]
    return found


class Notes(NamedTuple):
    """From the database: the number of failing schedules, and the pauses and limits in force."""

    failing: int
    held: Sequence[Control]


def read_notes() -> Notes:
    """Read them in one query, or in two if a pause or limit is in force."""
    states = ScheduleState.objects.filter(schedule__enabled=True)
    counts = ledger.count_up_to(MOST_FAILING, states.filter(failing_streak__gt=0), Control.objects.in_force())
    failing, held = counts
    return Notes(failing, ledger.held_back() if held else ())


def ask_health(
    notes: Notes, *, details: bool, used: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any] | None:
    """Return the overall health for about one round trip to Redis; None if the project does not mirror.

    If Redis does not answer, `known` is False and there are no numbers. `used`: the result of `used_by`, if known.
    """
    if not conf.get_config().mirror:
        return None
    snapshot = status.look_quickly(used=used)
    problems = problems_of(snapshot, details=details)
    redis, drift = snapshot.redis, None if snapshot.comparison is None else snapshot.comparison.drift
    told = {"problems": problems, "remarks": list(status.find_remarks(redis, notes.held, notes.failing))}
    if redis is None:
        return {**told, "known": False}
    return {
        **told,
        "known": True,
        "drift": None if drift is None else drift.total,
        "uncompared": drift is not None and drift.capped,
        "workers": sum(worker.live for worker in redis.workers),
        "entries": sum(shard.members for shard in redis.shards),
        "due": sum(shard.due for shard in redis.shards),
        "running": sum(shard.leased for shard in redis.shards),
    }


class ScheduleChangeList(ChangeList):
    """A page of schedules, with their entries in Redis and the overall health. `details`: see `problems_of`."""

    redis = Redis()
    details = False
    health: dict[str, Any] | None = None

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> list[Any]:
        """Put rows without a value last, in both directions and on every database."""
        return [
            OrderBy(F(name.lstrip("-")), descending=name.startswith("-"), nulls_last=True) if "__" in name else name
            for name in map(str, super().get_ordering(request, queryset))
        ]

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then query Redis once for all its rows. A POST shows no rows and queries nothing."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        if request.method != "POST":
            self.redis = ask_redis(self.result_list)
            newest = recent([row.pk for row in self.result_list])
            tagged = Tag.objects.filter(schedule__in=self.result_list) if used_by(request)["tag"] else ()
            tags = grouped(tagged, lambda tag: tag.schedule_id)
            self.details = self.model_admin.has_change_permission(request)
            notes = read_notes()
            self.health = ask_health(notes, details=self.details, used=used_by(request))
            for row in self.result_list:
                row.redis, row.recent, row.shown_tags = self.redis, newest.get(row.pk, ()), tags.get(row.pk, ())
                row.waits = explain_wait(notes.held, (row.queue, row.task))


def is_task_missing(path: str) -> bool:
    """Return whether no installed app has this task."""
    return registry.find_task(path) is None


def state_badge(schedule: Schedule, waits: str = "") -> SafeString:
    """Format the state; empty for a missing task, which `marks` shows. `waits`: the result of `explain_wait`."""
    state = chain.state_of(schedule)
    if not schedule.enabled:
        return badge("quiet", _("paused"))
    if is_task_missing(schedule.task):
        return SafeString()
    if state.condition == Condition.PARKED:
        return badge("bad", _("parked"), state.condition_reason)
    if state.condition == Condition.EXHAUSTED:
        return badge("quiet", _("exhausted"), state.condition_reason)
    if state.failing_streak:
        failing = badge("bad", _("failing, %(count)d in a row") % {"count": state.failing_streak})
        return format_html("{}{}", failing, sentence("warn", waits)) if waits else failing
    return sentence("warn", waits) if waits else badge("good", _("enabled"))


def state_reason(schedule: Schedule) -> str:
    if not schedule.enabled:
        return schedule.pause_reason
    state = chain.state_of(schedule)
    return "" if state.condition == Condition.ACTIVE else state.condition_reason


def marks(schedule: Schedule) -> SafeString:
    """Format unusual conditions: an edit not yet in Redis, a missing or renamed task, another backend."""
    found = []
    if is_unmirrored(schedule):
        title = _("Saved in the database, but Redis has not seen it. The workers will make up for it.")
        found.append(badge("warn", _("not yet mirrored"), title))
    task = None
    with suppress(Exception):  # code that cannot be imported; the checks report it
        task = registry.find_task(schedule.task)
    if task is not None and task.module_path != schedule.task:
        title = _("The task is called %(task)s now: DELAYQ['TASK_ALIASES'] says so.") % {"task": task.module_path}
        found.append(badge("quiet", _("alias"), title))
    elif is_task_missing(schedule.task):
        found.append(sentence("bad", _("task missing: will not run")))
    if schedule.backend:
        refusal = task and handover.find_refusal(task, schedule.backend, schedule.priority)
        title = _("Each due point is handed over to the TASKS backend %(backend)s.") % {"backend": schedule.backend}
        mark = badge("bad", _("backend refuses"), str(refusal)) if refusal else None
        found.append(mark or badge("quiet", f"→ {schedule.backend}", title))
    return format_html_join(" ", "{}", ((mark,) for mark in found))


def origin_marks(schedule: Schedule) -> SafeString:
    """Format whether the code declares the schedule, or no longer does."""
    if schedule.declared_key is None:
        return SafeString()
    if not schedule.is_declared:
        title = _("The code declared this schedule as “%(key)s” and no longer does.") % {"key": schedule.declared_key}
        return badge("warn", _("gone from the code"), title)
    return badge("quiet", _("in the code"), _("Declared as “%(key)s”.") % {"key": schedule.declared_key})


def is_unmirrored(schedule: Schedule) -> bool:
    """Return whether the last edit has not reached Redis; False if the project does not mirror."""
    return conf.get_config().mirror and schedule.generation != schedule.synced_generation


def recurrence_words(schedule: Schedule) -> Html:
    """Return the recurrence in words, or its error."""
    if schedule.kind == Schedule.Kind.ONCE:
        at = format_html(_("once at {}"), instant(schedule.at, zone_of(schedule)))
        return format_html("{}, {}", at, schedule.timezone)
    try:
        words = describe(schedule.recurrence)
    except InvalidRecurrence as error:
        return str(error)
    if schedule.kind == Schedule.Kind.EVERY and schedule.every_from == Schedule.EveryFrom.FINISH:
        words += _(", from the end of the last run")
    return words


def next_due(schedule: Schedule, redis: Redis, waits: str = "") -> Html:
    """Format the next due point, and whether it is running, waiting or late. `waits`: as in `state_badge`."""
    state = chain.state_of(schedule)
    now = utcnow()
    entry = None if redis.entries is None else redis.entries.get(schedule.pk)
    if entry is not None and entry.leased:
        return badge("busy", _("running now"))
    if not schedule.enabled or (state.condition != Condition.ACTIVE and not is_unmirrored(schedule)):
        return "–"
    if is_task_missing(schedule.task):
        return "–"
    if redis.entries is None:
        note = badge("warn", _("Redis does not answer")) if redis.error else ""
        return _due(state.next_due_at, now, note)
    point = None if entry is None else known_ms(entry.point_ms)
    if entry is None or point is None:
        return _due(state.next_due_at, now, badge("warn", _("not in Redis")))
    wake = known_ms(entry.score_ms) or point
    return _due(point, now, badge("warn", _("waits"), waits) if waits and wake <= now else _lateness(point, wake, now))


def last_outcome(schedule: Schedule) -> Html:
    """Format the last outcome, its time and its lag."""
    state = chain.state_of(schedule)
    if not state.last_status:
        return "–"
    when = state.last_outcome_at
    notes = []
    if when is not None:
        notes.append(format_html('<span title="{}">{}</span>', when.isoformat(), relative(when, utcnow())))
    if state.last_lag_ms is not None:
        notes.append(format_html(_("lag {}"), milliseconds(timedelta(milliseconds=state.last_lag_ms))))
    text = format_html_join(", ", '<span class="delayq-whole">{}</span>', ((note,) for note in notes))
    picture = dots(getattr(schedule, "recent", ()))
    return format_html('{}<div class="delayq-note">{}</div>{}', status_badge(state.last_status), text, picture)


def _due(point: datetime | None, now: datetime, mark: Html) -> Html:
    if point is None:
        return mark or "–"
    return format_html('{}<div class="delayq-note">{} {}</div>', instant(point), relative(point, now), mark)


def _lateness(point: datetime, wake: datetime, now: datetime) -> Html:
    if now - wake > SLACK:
        return badge("warn", _("overdue"))
    if point <= now < wake:  # jitter, or a retry
        return badge("busy", _("starts %(when)s") % {"when": relative(wake, now)})
    return ""
