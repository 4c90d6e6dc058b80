"""Explains one due point: the row that decided it, or why there is none. Changes nothing."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import ledger
from ...exceptions import InvalidRecurrence
from ...ledger import chain
from ...models import Definition, Origin, Run, Schedule, Status
from ...models.columns import from_json
from ...models.run import OPEN
from ...recurrence import Cron, Recurrence, Windowed, from_ms, to_ms
from ...recurrence.point import MICROSECOND
from ...recurrence.preview import list_clock_changes
from ...recurrence.words import describe
from .moment import Moment
from .outcome import format_instant, format_span
from .situation import Situation, is_counted_from_finish

MOST_ROWS = 10


def explain_point(schedule: Schedule, moment: Moment, now: datetime) -> list[str]:
    situation = Situation(schedule, now)
    lines = [situation.format_headline(), *moment.notes]
    rows = _read_rows(schedule, moment)
    for row in rows[:MOST_ROWS]:
        lines += situation.describe(row)
        if (row.status, row.reason) == (Status.SKIPPED, "overlap"):
            lines += _explain_busy(situation, row)
    if len(rows) > MOST_ROWS:
        lines.append(_("This time has more rows. Add the second to see them."))
    if any(row.status in OPEN and not row.separate for row in rows):
        lines += situation.describe_entry()
    if not any(row.origin == Origin.DUE for row in rows):
        lines += _explain_undecided(situation, moment)
    return lines


def _read_rows(schedule: Schedule, moment: Moment) -> list[Run]:
    """Return the rows of this moment, and a stretch that reaches into it. Reads by index, for any size of history."""
    own = Run._base_manager.using(ledger.get_database()).filter(schedule_id=schedule.pk)
    before = own.filter(due_at__lt=moment.first).order_by("-due_at")[:3]
    reaching = [row for row in before if row.last_due_at is not None and row.last_due_at >= moment.first]
    inside = own.filter(due_at__gte=moment.first, due_at__lt=moment.end).order_by("due_at")[: MOST_ROWS + 1]
    return [*reaching, *inside]


def _explain_busy(situation: Situation, skipped: Run) -> Iterator[str]:
    own = Run._base_manager.using(ledger.get_database()).filter(schedule=skipped.schedule_id or 0, origin=Origin.DUE)
    for row in own.filter(due_at__lt=skipped.due_at).order_by("-due_at")[:MOST_ROWS]:
        if row.status in OPEN:
            yield situation.fill_time(_("It was busy with the run of %(time)s, which has not ended."), row.due_at)
        elif row.finished_at is not None and row.status != Status.SKIPPED:
            values = {
                "time": format_instant(row.due_at, situation.zone),
                "end": format_instant(row.finished_at, situation.zone),
            }
            yield _("It was busy with the run of %(time)s, which ended at %(end)s.") % values
        else:
            continue
        return


def _explain_former(situation: Situation, instant: datetime) -> Iterator[str]:
    """Yield how the definition in force at an instant differs from the current one, if it was stored."""
    rows = Definition.objects.using(ledger.get_database())
    kept = rows.filter(schedule=situation.schedule.pk, replaced_at__gt=instant)
    found = kept.order_by("replaced_at", "pk").first()
    if found is None:
        return
    values = from_json(found.values)
    if not values["enabled"]:
        reason = f" ({values['pause_reason']})" if values["pause_reason"] else ""
        yield _("The schedule was paused then%(reason)s: no run started.") % {"reason": reason}
    with suppress(InvalidRecurrence):
        then = describe(Schedule(**values).recurrence)
        if then != describe(situation.schedule.recurrence):
            yield _("Its recurrence then: %(words)s.") % {"words": then}


def _explain_undecided(situation: Situation, moment: Moment) -> Iterator[str]:
    schedule, held = situation.schedule, situation.entry.point
    if moment.end <= schedule.created_at:
        text = _("The schedule did not exist then: it was created at %(time)s.")
        yield situation.fill_time(text, schedule.created_at)
        return
    if held is not None and moment.first <= held < moment.end and held <= schedule.effective_from:
        yield situation.fill_time(_("%(time)s was due when the definition was changed, and still runs once."), held)
        yield from situation.describe_entry()
        return
    try:
        rule = schedule.get_rule_and_base(situation.state)[0]
        point = rule.next_after(moment.first - MICROSECOND)
    except InvalidRecurrence as error:
        yield _("It has no valid recurrence: %(problem)s") % {"problem": error}
        return
    except OverflowError:
        point = None
    if point is None or point >= moment.end:
        yield from _explain_no_point(situation, rule, moment)
        return
    yield from _explain_at_point(situation, rule, from_ms(to_ms(point)))
    more = rule.count_between(point, moment.end - MICROSECOND) - 1
    if more > 0:
        text = ngettext("%(count)d more due time", "%(count)d more due times", more) % {"count": more}
        yield _("This minute has %(more)s. Add the second to explain another one.") % {"more": text}


def _explain_no_point(situation: Situation, rule: Recurrence, moment: Moment) -> Iterator[str]:
    schedule = situation.schedule
    if moment.first <= schedule.effective_from:
        yield from _explain_former(situation, moment.first)
    yield situation.fill_time(_("%(time)s is not a due time of the current definition."), moment.first)
    if schedule.start_at is not None and moment.end <= schedule.start_at:
        yield situation.fill_time(_("It begins at %(time)s (start_at)."), schedule.start_at)
    if schedule.end_at is not None and moment.first > schedule.end_at:
        yield situation.fill_time(_("It ended at %(time)s (end_at)."), schedule.end_at)
    if moment.first <= schedule.effective_from:
        yield _describe_edit(situation)
    if is_counted_from_finish(schedule):
        yield _("Its due times are counted from the end of the last run, so the past ones are those in the history.")
    cron = _find_cron(rule)
    local = moment.first.astimezone(situation.zone)
    if cron is not None and local.fold and cron.fields.fixed and cron.dst_overlap == "once":
        yield _("This local time occurs twice on this day. With dst_overlap = once it runs the first time only.")
    yield from _list_neighbours(situation, rule, moment.first)


def _list_neighbours(situation: Situation, rule: Recurrence, instant: datetime) -> Iterator[str]:
    """Yield the due points before and after an instant that is not one, and clock changes in between."""
    after = rule.next_after(instant)
    before = rule.previous_at_or_before(instant, instant - timedelta(days=366))
    if before is not None:
        yield situation.fill_time(_("Previous due time: %(time)s."), before)
    if after is not None:
        yield situation.fill_time(_("Next due time: %(time)s."), after)
        cron = _find_cron(rule)
        if cron is not None:
            since = before or instant - timedelta(days=2)
            yield from list_clock_changes(cron, max(since, situation.schedule.created_at), after)


def _explain_at_point(situation: Situation, rule: Recurrence, point: datetime) -> Iterator[str]:
    schedule, state = situation.schedule, situation.state
    cron = _find_cron(rule)
    if cron is not None:
        yield from list_clock_changes(cron, point - timedelta(hours=3), point)
    if state.pruned_until is not None and point <= state.pruned_until:
        text = _("%(time)s has an outcome, but its row was deleted: see DELAYQ['HISTORY_DAYS'] and keep.")
        yield situation.fill_time(text, point)
        return
    if point <= schedule.effective_from:
        yield situation.fill_time(_("%(time)s: not run."), point)
        yield from _explain_former(situation, point)
        yield _describe_edit(situation)
        return
    if state.last_due_at is not None and point <= state.last_due_at:
        yield situation.fill_time(_("%(time)s has an outcome, but its row was deleted."), point)
        return
    stopped = list(situation.explain_obstacles())
    wake = chain.find_wake(schedule, point)
    values = {"time": format_instant(point, situation.zone), "span": format_span(abs(wake - situation.now))}
    if wake > situation.now:
        yield _("%(time)s comes in %(span)s.") % values
        if wake != point:
            yield situation.fill_time(_("It starts at %(time)s: its jitter."), wake)
    elif not stopped:
        yield _("%(time)s has no outcome yet, %(span)s after it was due.") % values
    else:
        yield _("%(time)s: not run.") % values
    yield from stopped
    if schedule.max_runs is not None and not stopped:
        left = max(0, schedule.max_runs - state.run_count)
        text = ngettext("%(count)d run is left of max_runs.", "%(count)d runs are left of max_runs.", left)
        yield text % {"count": left}
    if situation.open_rows and situation.open_rows[0].due_at < point:
        row = situation.open_rows[0]
        text = _("It waits for an earlier point of the schedule: %(due)s (%(status)s).")
        yield text % {"due": format_instant(row.due_at, situation.zone), "status": Status(row.status).label}
    yield from situation.explain_redis()


def _describe_edit(situation: Situation) -> str:
    text = _(
        "The definition was changed, paused or resumed at %(time)s; earlier due times do not run "
        "any more. One without a row was not due by the definition of that time, or its row was "
        "deleted."
    )
    return situation.fill_time(text, situation.schedule.effective_from)


def _find_cron(rule: Recurrence) -> Cron | None:
    plain = rule.recurrence if isinstance(rule, Windowed) else rule
    return plain if isinstance(plain, Cron) else None
