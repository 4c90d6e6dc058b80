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
from ...recurrence.preview import clock_changes
from ...recurrence.words import describe
from .moment import Moment
from .outcome import format_instant, format_span
from .standing import Standing, counts_from_finish

MOST_ROWS = 10


def explain_point(schedule: Schedule, moment: Moment, now: datetime) -> list[str]:
    """Explain why points due in this moment did or did not run."""
    standing = Standing(schedule, now)
    lines = [standing.headline(), *moment.notes]
    rows = _rows(schedule, moment)
    for row in rows[:MOST_ROWS]:
        lines += standing.describe(row)
        if (row.status, row.reason) == (Status.SKIPPED, "overlap"):
            lines += _busy_with(standing, row)
    if len(rows) > MOST_ROWS:
        lines.append(_("There are more rows in this time; name the second to see them."))
    if any(row.status in OPEN and not row.apart for row in rows):
        lines += standing.describe_entry()
    if not any(row.origin == Origin.DUE for row in rows):
        lines += _undecided(standing, moment)
    return lines


def _rows(schedule: Schedule, moment: Moment) -> list[Run]:
    """Return the rows of this moment, and a stretch that reaches into it. Reads by index, for any size of history."""
    own = Run._base_manager.using(ledger.database()).filter(schedule_id=schedule.pk)
    before = own.filter(due_at__lt=moment.first).order_by("-due_at")[:3]
    reaching = [row for row in before if row.last_due_at is not None and row.last_due_at >= moment.first]
    inside = own.filter(due_at__gte=moment.first, due_at__lt=moment.end).order_by("due_at")[: MOST_ROWS + 1]
    return [*reaching, *inside]


def _busy_with(standing: Standing, skipped: Run) -> Iterator[str]:
    own = Run._base_manager.using(ledger.database()).filter(schedule=skipped.schedule_id or 0, origin=Origin.DUE)
    for row in own.filter(due_at__lt=skipped.due_at).order_by("-due_at")[:MOST_ROWS]:
        if row.status in OPEN:
            yield standing.at(_("It was busy with the run of %(time)s, which has not ended."), row.due_at)
        elif row.finished_at is not None and row.status != Status.SKIPPED:
            values = {
                "time": format_instant(row.due_at, standing.zone),
                "end": format_instant(row.finished_at, standing.zone),
            }
            yield _("It was busy with the run of %(time)s, which ended at %(end)s.") % values
        else:
            continue
        return


def _as_it_was(standing: Standing, instant: datetime) -> Iterator[str]:
    """Yield how the definition in force at an instant differs from the current one, if it was stored."""
    kept = Definition.objects.using(ledger.database()).filter(schedule=standing.schedule.pk, replaced_at__gt=instant)
    found = kept.order_by("replaced_at", "pk").first()
    if found is None:
        return
    values = from_json(found.values)
    if not values["enabled"]:
        reason = f" ({values['pause_reason']})" if values["pause_reason"] else ""
        yield _("The schedule was paused then%(reason)s: no run started.") % {"reason": reason}
    with suppress(InvalidRecurrence):
        then = describe(Schedule(**values).recurrence)
        if then != describe(standing.schedule.recurrence):
            yield _("Its recurrence was then: %(words)s.") % {"words": then}


def _undecided(standing: Standing, moment: Moment) -> Iterator[str]:
    schedule, held = standing.schedule, standing.entry.point
    if moment.end <= schedule.created_at:
        yield standing.at(_("The schedule did not exist then: it was created at %(time)s."), schedule.created_at)
        return
    if held is not None and moment.first <= held < moment.end and held <= schedule.effective_from:
        yield standing.at(_("%(time)s was due when the definition was changed, and is still decided once."), held)
        yield from standing.describe_entry()
        return
    try:
        rule = schedule.rule_and_base(standing.state)[0]
        point = rule.next_after(moment.first - MICROSECOND)
    except InvalidRecurrence as error:
        yield _("It has no usable recurrence: %(problem)s") % {"problem": error}
        return
    except OverflowError:
        point = None
    if point is None or point >= moment.end:
        yield from _no_point(standing, rule, moment)
        return
    yield from _about_point(standing, rule, from_ms(to_ms(point)))
    more = rule.count_between(point, moment.end - MICROSECOND) - 1
    if more > 0:
        text = ngettext("%(count)d more point", "%(count)d more points", more) % {"count": more}
        yield _("In this minute there are %(more)s; name the second to ask about another.") % {"more": text}


def _no_point(standing: Standing, rule: Recurrence, moment: Moment) -> Iterator[str]:
    schedule = standing.schedule
    if moment.first <= schedule.effective_from:
        yield from _as_it_was(standing, moment.first)
    yield standing.at(_("%(time)s is no due point of the definition as it is now."), moment.first)
    if schedule.start_at is not None and moment.end <= schedule.start_at:
        yield standing.at(_("It begins at %(time)s (start_at)."), schedule.start_at)
    if schedule.end_at is not None and moment.first > schedule.end_at:
        yield standing.at(_("It ended at %(time)s (end_at)."), schedule.end_at)
    if moment.first <= schedule.effective_from:
        yield _edited(standing)
    if counts_from_finish(schedule):
        yield _("Its points are counted from the end of the last run, so that the past ones are those of the ledger.")
    cron = _cron_of(rule)
    local = moment.first.astimezone(standing.zone)
    if cron is not None and local.fold and cron.fields.fixed and cron.dst_overlap == "once":
        yield _("This local time comes twice on this day, and dst_overlap = once runs it the first time only.")
    yield from _neighbours(standing, rule, moment.first)


def _neighbours(standing: Standing, rule: Recurrence, instant: datetime) -> Iterator[str]:
    """Yield the due points before and after an instant that is not one, and clock changes in between."""
    after = rule.next_after(instant)
    before = rule.previous_at_or_before(instant, instant - timedelta(days=366))
    if before is not None:
        yield standing.at(_("The point before: %(time)s."), before)
    if after is not None:
        yield standing.at(_("The point after: %(time)s."), after)
        cron = _cron_of(rule)
        if cron is not None:
            since = before or instant - timedelta(days=2)
            yield from clock_changes(cron, max(since, standing.schedule.created_at), after)


def _about_point(standing: Standing, rule: Recurrence, point: datetime) -> Iterator[str]:
    schedule, state = standing.schedule, standing.state
    cron = _cron_of(rule)
    if cron is not None:
        yield from clock_changes(cron, point - timedelta(hours=3), point)
    if state.pruned_until is not None and point <= state.pruned_until:
        text = _(
            "%(time)s was decided, but its row was pruned: DELAYQ['HISTORY_DAYS'] and keep say for how long it stays."
        )
        yield standing.at(text, point)
        return
    if point <= schedule.effective_from:
        yield standing.at(_("%(time)s: not run."), point)
        yield from _as_it_was(standing, point)
        yield _edited(standing)
        return
    if state.last_due_at is not None and point <= state.last_due_at:
        yield standing.at(_("%(time)s was decided, but its row is gone from the ledger: somebody deleted it."), point)
        return
    stopped = list(standing.obstacles())
    wake = chain.wake_of(schedule, point)
    values = {"time": format_instant(point, standing.zone), "span": format_span(abs(wake - standing.now))}
    if wake > standing.now:
        yield _("%(time)s is still to come, in %(span)s.") % values
        if wake != point:
            yield standing.at(_("It starts at %(time)s: its jitter."), wake)
    elif not stopped:
        yield _("%(time)s is not decided yet, %(span)s after it came due.") % values
    else:
        yield _("%(time)s: not run.") % values
    yield from stopped
    if schedule.max_runs is not None and not stopped:
        left = max(0, schedule.max_runs - state.run_count)
        text = ngettext("%(count)d run is left of max_runs.", "%(count)d runs are left of max_runs.", left)
        yield text % {"count": left}
    if standing.open_rows and standing.open_rows[0].due_at < point:
        row = standing.open_rows[0]
        text = _("It waits for an earlier point of the schedule: %(due)s (%(status)s).")
        yield text % {"due": format_instant(row.due_at, standing.zone), "status": Status(row.status).label}
    yield from standing.in_redis()


def _edited(standing: Standing) -> str:
    text = _(
        "The definition was changed, paused or resumed at %(time)s; only points after that count, and none is made up "
        "for. What the ledger has no row of was no point of the definition of that time, or its row was deleted."
    )
    return standing.at(text, standing.schedule.effective_from)


def _cron_of(rule: Recurrence) -> Cron | None:
    plain = rule.recurrence if isinstance(rule, Windowed) else rule
    return plain if isinstance(plain, Cron) else None
