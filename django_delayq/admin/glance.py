"""A schedule's state, next due point and last outcomes, and the overall health. Reads a page's entries in one query."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import F, OrderBy, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import conf, ledger, sync
from ..calls import handover, registry
from ..exceptions import BrokerError
from ..index.keys import group_by
from ..ledger import chain
from ..models import Condition, Control, Run, Schedule, Status, Tag, explain_wait
from ..monitoring.explain import describe_recurrence
from ..monitoring.observing import take_snapshot
from ..monitoring.problems import list_remarks, simplify
from ..monitoring.snapshot import Problem, Snapshot
from ..recurrence.point import try_from_ms, utcnow
from . import charts, display
from .base import BaseAdmin
from .display import Html, find_zone, format_badge, format_instant, format_relative, format_span, format_status
from .filters import read_used_names

if TYPE_CHECKING:
    from ..index import EntryView

#: A sleeping worker claims a due point within this time; until then the point is not late.
SLACK = timedelta(seconds=1)


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


class Health(NamedTuple):
    """A snapshot, its problems, and its remarks: other facts that contradict “the workers keep up”."""

    snapshot: Snapshot
    problems: Sequence[Problem]
    remarks: Sequence[Problem]


def read_health(*, details: bool, used: Mapping[str, Sequence[str]] | None = None) -> Health:
    """Take a brief snapshot; `details` as in `simplify`, `used` as in `take_snapshot`."""
    snapshot = take_snapshot(used=used, briefly=True)
    problems = simplify(snapshot.problems, snapshot.redis, details=details)
    return Health(snapshot, problems, list_remarks(snapshot.problems))


def format_held(page: BaseAdmin, request: HttpRequest, row: Control) -> SafeString:
    """Format a pause or limit and its age, with a link for users who may view controls."""
    words: Any = explain_wait([row]) or f"{row}: {row.restrictions}"
    if request.user.has_perm("django_delayq.view_control"):
        words = format_html('<a href="{}">{}</a>', page.get_url("change", row.pk, model="control"), words)
    return format_html("{}, {}", words, format_relative(row.changed_at, utcnow()))


class ScheduleChangeList(ChangeList):
    """A page of schedules, with their entries in Redis and the overall health. `details`: see `simplify`."""

    redis = Redis()
    details = False
    health: Health | None = None

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> list[Any]:
        """Put rows without a value last, in both directions and on every database."""
        return [
            OrderBy(F(name.lstrip("-")), descending=name.startswith("-"), nulls_last=True) if "__" in name else name
            for name in map(str, super().get_ordering(request, queryset))
        ]

    def get_ordering_field(self, field_name: Any) -> Any:
        """Ignore an order by a column that the list does not offer, as in the address of a list that is long now."""
        return super().get_ordering_field(field_name) if field_name in (self.sortable_by or ()) else None

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then query Redis once for all its rows. A POST shows no rows and queries nothing."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        if request.method != "POST":
            self.redis = ask_redis(self.result_list)
            newest = read_recent_outcomes([row.pk for row in self.result_list])
            tagged = Tag.objects.filter(schedule__in=self.result_list) if read_used_names(request)["tag"] else ()
            tags = group_by(tagged, lambda tag: tag.schedule_id)
            self.details = self.model_admin.has_change_permission(request)
            self.health = read_health(details=self.details, used=read_used_names(request))
            for row in self.result_list:
                row.redis, row.recent, row.tag_rows = self.redis, newest.get(row.pk, ()), tags.get(row.pk, ())
                row.waits = explain_wait(self.health.snapshot.held_back or (), (row.queue, row.task))


def is_task_missing(path: str) -> bool:
    return registry.find_task(path) is None


def format_state(schedule: Schedule, waits: str = "") -> SafeString:
    """Format the state; empty for a missing task, which `format_marks` shows. `waits`: the result of `explain_wait`."""
    state = chain.get_state(schedule)
    if not schedule.enabled:
        return format_badge("quiet", _("paused"))
    if is_task_missing(schedule.task):
        return SafeString()
    if state.condition == Condition.BROKEN:
        return format_badge("bad", _("broken"), state.condition_reason)
    if state.condition == Condition.FINISHED:
        return format_badge("quiet", _("finished"), state.condition_reason)
    if state.failing_streak:
        failing = format_badge("bad", _("failing, %(count)d in a row") % {"count": state.failing_streak})
        return format_html("{}{}", failing, display.format_sentence("warn", waits)) if waits else failing
    return display.format_sentence("warn", waits) if waits else format_badge("good", _("enabled"))


def get_state_reason(schedule: Schedule) -> str:
    return chain.get_state(schedule).condition_reason if schedule.enabled else schedule.pause_reason


def format_marks(schedule: Schedule) -> SafeString:
    """Format unusual conditions: an edit not yet in Redis, a missing or renamed task, another backend."""
    found = []
    if is_unmirrored(schedule):
        title = _("Saved in the database, but not in Redis yet. A worker adds it within seconds.")
        found.append(format_badge("warn", _("not in Redis yet"), title))
    task = registry.find_task(schedule.task)
    if task is None:
        found.append(display.format_sentence("bad", _("task missing: does not run")))
    elif task.module_path != schedule.task:
        title = _("The task is now called %(task)s, according to DELAYQ['TASK_ALIASES'].") % {"task": task.module_path}
        found.append(format_badge("quiet", _("alias"), title))
    if schedule.backend:
        refusal = task and handover.find_refusal(task, schedule.backend, schedule.priority)
        title = _("Each due time is handed over to the TASKS backend %(backend)s.") % {"backend": schedule.backend}
        mark = format_badge("bad", _("backend refuses"), str(refusal)) if refusal else None
        found.append(mark or format_badge("quiet", f"→ {schedule.backend}", title))
    return format_html_join(" ", "{}", ((mark,) for mark in found))


def format_origin_marks(schedule: Schedule) -> SafeString:
    """Format whether the code declares the schedule, or no longer does."""
    if schedule.declared_key is None:
        return SafeString()
    if not schedule.is_declared:
        title = _("The code declared this schedule as “%(key)s” and no longer does.") % {"key": schedule.declared_key}
        return format_badge("warn", _("gone from the code"), title)
    return format_badge("quiet", _("in the code"), _("Declared as “%(key)s”.") % {"key": schedule.declared_key})


def is_unmirrored(schedule: Schedule) -> bool:
    """Return whether the last edit has not reached Redis; False if the project does not mirror."""
    return conf.get_config().mirror and schedule.generation != schedule.synced_generation


def format_recurrence(schedule: Schedule) -> Html:
    if schedule.kind == Schedule.Kind.ONCE:
        at = format_html(_("once at {}"), format_instant(schedule.at, find_zone(schedule)))
        return format_html("{}, {}", at, schedule.timezone)
    return describe_recurrence(schedule)


def format_next_due(schedule: Schedule, redis: Redis, waits: str = "") -> Html:
    """Format the next due point, and whether it is running, waiting or late. `waits`: as in `format_state`."""
    state = chain.get_state(schedule)
    now = utcnow()
    entry = None if redis.entries is None else redis.entries.get(schedule.pk)
    if entry is not None and entry.leased:
        return format_badge("busy", _("running now"))
    if not schedule.enabled or (state.condition != Condition.ACTIVE and not is_unmirrored(schedule)):
        return "–"
    if is_task_missing(schedule.task):
        return "–"
    if redis.entries is None:
        note = format_badge("warn", _("Redis does not answer")) if redis.error else ""
        return _format_due(state.next_due_at, now, note)
    point = None if entry is None else try_from_ms(entry.point_ms)
    if entry is None or point is None:
        return _format_due(state.next_due_at, now, format_badge("warn", _("not in Redis")))
    wake = try_from_ms(entry.score_ms) or point
    waiting = waits and wake <= now
    mark = format_badge("warn", _("waits"), waits) if waiting else _format_lateness(point, wake, now)
    return _format_due(point, now, mark)


def format_last_outcome(schedule: Schedule) -> Html:
    state = chain.get_state(schedule)
    if not state.last_status:
        return "–"
    when = state.last_outcome_at
    notes = []
    if when is not None:
        notes.append(format_html('<span title="{}">{}</span>', when.isoformat(), format_relative(when, utcnow())))
    if state.last_latency_ms is not None:
        notes.append(format_html(_("latency {}"), format_span(timedelta(milliseconds=state.last_latency_ms))))
    text = format_html_join(", ", '<span class="delayq-whole">{}</span>', ((note,) for note in notes))
    picture = render_dots(getattr(schedule, "recent", ()))
    return format_html('{}<div class="delayq-note">{}</div>{}', format_status(state.last_status), text, picture)


def _format_due(point: datetime | None, now: datetime, mark: Html) -> Html:
    if point is None:
        return mark or "–"
    when = format_relative(point, now)
    return format_html('{}<div class="delayq-note">{} {}</div>', format_instant(point), when, mark)


def _format_lateness(point: datetime, wake: datetime, now: datetime) -> Html:
    if now - wake > SLACK:
        return format_badge("warn", _("overdue"))
    if point <= now < wake:  # jitter, or a retry
        return format_badge("busy", _("starts %(when)s") % {"when": format_relative(wake, now)})
    return ""


#: Maximum outcomes shown per schedule.
MOST_SHOWN = 20
DOT, HIGH = 6, 14


def read_recent_outcomes(schedules: Sequence[int]) -> dict[int, list[str]]:
    """Return the outcomes of each schedule's newest runs, oldest first. A page has at most 200 schedules."""
    using, found = ledger.get_database(), dict[int, list[str]]()
    table = connections[using].ops.quote_name(Run._meta.db_table)
    one = (
        f"SELECT * FROM (SELECT schedule_id, status FROM {table} WHERE schedule_id = %s "  # noqa: S608 - ours
        f"ORDER BY due_at DESC LIMIT {MOST_SHOWN}) AS newest"
    )
    if schedules:
        with connections[using].cursor() as cursor:
            cursor.execute(" UNION ALL ".join([one] * len(schedules)), list(schedules))
            for pk, status in cursor.fetchall():
                found.setdefault(pk, []).insert(0, status)
    return found


def render_dots(statuses: Sequence[str]) -> SafeString:
    """Return a picture of these outcomes, newest at the right, with a description as its title."""
    if not statuses:
        return SafeString()
    counts = Counter(statuses)
    words = ", ".join(f"{count} {Status(name).label}" for name, count in counts.most_common() if name in Status.values)
    title = _("The last %(count)d runs: %(outcomes)s") % {"count": len(statuses), "outcomes": words}
    tones = [display.get_tone(status) for status in statuses]
    columns = [(tone, HIGH if tone == "bad" else HIGH - HIGH // 3) for tone in tones]
    return charts.render_columns("delayq-recent", columns, DOT, HIGH, title, number=MOST_SHOWN)
