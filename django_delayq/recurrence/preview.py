"""The next due points of a schedule, with notes on each. Reads no clock, no server and no row."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from . import Cron, Recurrence, Windowed, compute_wake, from_ms, to_ms
from .point import from_seconds, to_seconds
from .words import format_time
from .zone import LONGEST_SHIFT, find_stretch, get_zone

#: Maximum stretches of a zone to search between two points: several decades.
MOST_STRETCHES = 200


@dataclass(frozen=True, slots=True)
class PreviewPoint:
    """A future due point. `local` is `due_at` in the schedule's zone; `runs` is False for a point beyond the end."""

    due_at: datetime
    local: datetime
    wake_at: datetime
    annotations: tuple[str, ...] = ()
    runs: bool = True


def preview(schedule: Any, n: int, start: datetime) -> list[PreviewPoint]:
    """Return the first `n` undecided points after `start`; the last may be a point beyond the end, with a note."""
    state = getattr(schedule, "state", None)
    rule, base = schedule.get_rule_and_base(state)
    left = n if schedule.max_runs is None else max(0, schedule.max_runs - (0 if state is None else state.run_count))
    last = max(base, start)
    found = list(_list_points(schedule, rule, last, min(n, left)))
    if len(found) == n:
        return found
    if len(found) == left:
        note = ngettext(
            "skipped: end reached, it runs %(count)d time", "skipped: end reached, it runs %(count)d times",
            schedule.max_runs or 0,
        ) % {"count": schedule.max_runs or 0}  # fmt: skip
    elif isinstance(rule, Windowed) and rule.end is not None:
        rule, note = replace(rule, end=None), _("skipped: end reached")
    else:
        return found
    cut_off = _list_points(schedule, rule, found[-1].due_at if found else last, 1)
    return found + [replace(point, annotations=(note,), runs=False) for point in cut_off]


def _list_points(schedule: Any, rule: Recurrence, after: datetime, count: int) -> Iterator[PreviewPoint]:
    zone = get_zone(schedule.timezone)
    plain = rule.recurrence if isinstance(rule, Windowed) else rule
    begin = rule.start if isinstance(rule, Windowed) else None
    for _number in range(count):
        try:
            point = rule.next_after(after)
            if point is None:
                return
            due_at = from_ms(to_ms(point))
            local, wake = due_at.astimezone(zone), compute_wake(due_at, schedule.jitter, schedule.name)
            woken = wake.astimezone(zone)
        except OverflowError:  # the end of the calendar
            return
        notes: list[str] = []
        if isinstance(plain, Cron):
            notes += list_clock_changes(plain, max(after, begin or after), due_at)
        if wake != due_at:
            time = f"{woken:%H:%M:%S}.{woken.microsecond // 1000:03}"
            notes.append(_("starts at %(time)s (jitter)") % {"time": time})
        yield PreviewPoint(due_at, local, wake, tuple(notes))
        after = point


def list_clock_changes(cron: Cron, after: datetime, point: datetime) -> Iterator[str]:
    """Yield notes on clock changes up to a point, from the previous one. Wildcard jobs continue in real time."""
    yield from _list_gaps(cron, after, point)
    local = point.astimezone(get_zone(cron.timezone))
    if local.fold:
        yield _("second of two: %(time)s occurs twice on this day") % {"time": format_time(local)}
        return
    offset, later = local.utcoffset(), local.replace(fold=1).utcoffset()
    if offset is None or later is None or later >= offset:
        return
    if cron.fields.fixed and cron.dst_overlap == "once" and (offset - later).total_seconds() <= LONGEST_SHIFT:
        yield _("%(time)s occurs twice on this day, runs the first time") % {"time": format_time(local)}
    else:
        yield _("first of two: %(time)s occurs twice on this day") % {"time": format_time(local)}


def _list_gaps(cron: Cron, after: datetime, point: datetime) -> Iterator[str]:
    zone, second, last = get_zone(cron.timezone), to_seconds(after), to_seconds(point)
    for _number in range(MOST_STRETCHES):
        start, end, offset, before = find_stretch(zone, second)
        if start > last:
            return
        if offset > before and start >= second and start > to_seconds(after):
            note = _describe_gap(cron, start + before, start + offset, last + offset)
            if note:
                yield note
        second = end


def _describe_gap(cron: Cron, begin: int, end: int, at: int) -> str:
    """Return the note on a gap from `begin` to `end`, in wall-clock seconds; `at` is the following point."""
    count = cron.fields.count(begin, end)
    is_leap = end - begin <= LONGEST_SHIFT
    # These are wall-clock times: the zone of their datetimes has no meaning.
    first, point = from_seconds(cron.fields.find_first(begin)), from_seconds(at)
    if not count or first is None or point is None or (is_leap and not cron.fields.fixed):
        return ""
    values = {
        "time": format_time(first),
        "runs_at": format_time(point),
        "day": first.date(),
        "more": count - 1,
    }
    if is_leap and cron.dst_gap == "run_after":
        if count == 1:
            return _("%(time)s does not exist on this day, runs at %(runs_at)s") % values
        text = ngettext(
            "%(time)s and %(more)d more time do not exist on this day, runs once at %(runs_at)s",
            "%(time)s and %(more)d more times do not exist on this day, runs once at %(runs_at)s",
            count - 1,
        )
        return text % values
    if first.date() == point.date() and count == 1:
        return _("%(time)s does not exist on this day, skipped") % values
    return _("%(day)s %(time)s does not exist, skipped") % values
