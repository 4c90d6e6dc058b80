"""One due point: the row that decided it, or why there is none. Changes nothing."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import chain, ledger
from ..exceptions import InvalidRecurrence
from ..models import Run, Schedule, Status
from ..models.run import OPEN
from ..preview import clock_changes
from ..timing import Recurrence, from_ms, to_ms
from .entry import InRedis, ask, describe_entry
from .moment import Moment, cron_of, points_in
from .outcome import describe_run, shown, span
from .state import headline, in_redis, obstacles

MOST_ROWS = 10


def explain_point(schedule: Schedule, moment: Moment, now: datetime) -> list[str]:
    """Return why what was due in this moment did or did not run."""
    zone = ZoneInfo(schedule.timezone)
    lines = [headline(schedule), *moment.notes]
    rows, found = _rows(schedule, moment), ask(schedule)
    for row in rows[:MOST_ROWS]:
        lines += describe_run(row, schedule, zone)
    if len(rows) > MOST_ROWS:
        lines.append(_("There are more rows in this time; name the second to see them."))
    opened = next((row for row in rows if row.status in OPEN and not row.apart), None)
    if opened is not None:
        lines.append(describe_entry(found, schedule, opened, now, zone))
    if not any(row.origin == "due" for row in rows):
        lines += _undecided(schedule, moment, found, now, zone)
    return lines


def _rows(schedule: Schedule, moment: Moment) -> list[Run]:
    """Return the rows of this moment, and the stretch that reaches into it. Walks an index, whatever the history."""
    own = Run._base_manager.using(ledger.database()).filter(schedule_id=schedule.pk)
    before = own.filter(due_at__lt=moment.first).order_by("-due_at")[:3]
    reaching = [row for row in before if row.last_due_at is not None and row.last_due_at >= moment.first]
    inside = own.filter(due_at__gte=moment.first, due_at__lt=moment.end).order_by("due_at")[: MOST_ROWS + 1]
    return [*reaching, *inside]


def _undecided(schedule: Schedule, moment: Moment, found: InRedis, now: datetime, zone: ZoneInfo) -> Iterator[str]:
    """Yield why the ledger has no row of the chain in this moment."""
    created = {"time": shown(schedule.created_at, zone)}
    if moment.end <= schedule.created_at:
        yield _("The schedule did not exist then: it was created at %(time)s.") % created
        return
    held = found.point
    if held is not None and moment.first <= held < moment.end and held <= schedule.effective_from:
        yield _("%(time)s was due when the definition was changed, and is still decided once.") % {
            "time": shown(held, zone)
        }
        yield describe_entry(found, schedule, None, now, zone)
        return
    state = chain.state_of(schedule)
    try:
        rule = schedule.rule_and_base(state)[0]
        point, count = points_in(rule, moment)
    except InvalidRecurrence as error:
        yield _("It has no usable recurrence: %(problem)s") % {"problem": error}
        return
    except OverflowError:
        point, count = None, 0
    if point is None:
        yield from _no_point(schedule, rule, moment, zone)
    else:
        yield from _about_point(schedule, rule, from_ms(to_ms(point)), found, now, zone)
        if count > 1:
            text = ngettext("%(count)d more point", "%(count)d more points", count - 1) % {"count": count - 1}
            yield _("In this minute there are %(more)s; name the second to ask about another.") % {"more": text}


def _no_point(schedule: Schedule, rule: Recurrence, moment: Moment, zone: ZoneInfo) -> Iterator[str]:
    yield _("%(time)s is no due point of the definition as it is now.") % {"time": shown(moment.first, zone)}
    if schedule.start_at is not None and moment.end <= schedule.start_at:
        yield _("It begins at %(time)s (start_at).") % {"time": shown(schedule.start_at, zone)}
    if schedule.end_at is not None and moment.first > schedule.end_at:
        yield _("It ended at %(time)s (end_at).") % {"time": shown(schedule.end_at, zone)}
    if moment.first <= schedule.effective_from:
        yield _edited(schedule, zone)
    if schedule.kind == Schedule.Kind.EVERY and schedule.every_from == Schedule.EveryFrom.FINISH:
        yield _("Its points are counted from the end of the last run, so that the past ones are those of the ledger.")
    cron = cron_of(rule)
    local = moment.first.astimezone(zone)
    if cron is not None and local.fold and cron.fields.fixed and cron.dst_overlap == "once":
        yield _("This local time comes twice on this day, and dst_overlap = once runs it the first time only.")
    after = rule.next_after(moment.first)
    before = rule.previous_at_or_before(moment.first, moment.first - timedelta(days=366))
    if before is not None:
        yield _("The point before: %(time)s.") % {"time": shown(before, zone)}
    if after is not None:
        yield _("The point after: %(time)s.") % {"time": shown(after, zone)}
        if cron is not None:
            yield from clock_changes(cron, max(before or moment.first - timedelta(days=2), schedule.created_at), after)


def _about_point(
    schedule: Schedule, rule: Recurrence, point: datetime, found: InRedis, now: datetime, zone: ZoneInfo
) -> Iterator[str]:
    state = chain.state_of(schedule)
    due = {"time": shown(point, zone)}
    cron = cron_of(rule)
    if cron is not None:
        yield from clock_changes(cron, point - timedelta(hours=3), point)
    if point <= schedule.effective_from:
        yield _("%(time)s: not run.") % due
        yield _edited(schedule, zone)
        return
    if state.last_due_at is not None and point <= state.last_due_at:
        yield _("%(time)s was decided, but its row is gone from the ledger: somebody deleted it.") % due
        return
    stopped = list(obstacles(schedule))
    wake = chain.wake_of(schedule, point)
    if wake > now:
        yield _("%(time)s is still to come, in %(span)s.") % {**due, "span": span(wake - now)}
        if wake != point:
            yield _("It starts at %(time)s: its jitter.") % {"time": shown(wake, zone)}
    elif not stopped:
        yield _("%(time)s is not decided yet, %(span)s after it came due.") % {**due, "span": span(now - wake)}
    else:
        yield _("%(time)s: not run.") % due
    yield from stopped
    if schedule.max_runs is not None and not stopped:
        left = max(0, schedule.max_runs - state.run_count)
        text = ngettext("%(count)d run is left of max_runs.", "%(count)d runs are left of max_runs.", left)
        yield text % {"count": left}
    yield from _waiting_behind(schedule, point, zone)
    yield from in_redis(schedule, found, now, zone)


def _waiting_behind(schedule: Schedule, point: datetime, zone: ZoneInfo) -> Iterator[str]:
    rows = ledger.load_open_rows([schedule.pk]).get(schedule.pk, [])
    if rows and rows[0].due_at < point:
        values = {"due": shown(rows[0].due_at, zone), "status": Status(rows[0].status).label}
        yield _("It waits for an earlier point of the schedule: %(due)s (%(status)s).") % values


def _edited(schedule: Schedule, zone: ZoneInfo) -> str:
    return _(
        "The definition was changed, paused or resumed at %(time)s; only points after that count, and none is made up "
        "for. What the ledger has no row of was no point of the definition of that time, or its row was deleted."
    ) % {"time": shown(schedule.effective_from, zone)}
