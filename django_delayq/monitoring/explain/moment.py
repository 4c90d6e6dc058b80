"""Parses a time that a user typed into an interval: from `first` up to `end`, exclusive. Reads no clock and no row."""

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

from django.utils.dateparse import parse_datetime, parse_time
from django.utils.translation import gettext as _

from ...recurrence.point import EPOCH, from_seconds, to_seconds
from ...recurrence.zone import find_stretch, get_zone

_WITH_SECONDS = re.compile(r"\d:\d{2}:\d{2}")


@dataclass(frozen=True, slots=True)
class Moment:
    """A minute, second or millisecond, as precise as the text. `notes` are effects of the time zone."""

    first: datetime
    end: datetime
    notes: tuple[str, ...] = ()


def parse_moment(text: str, zone_name: str, now: datetime) -> Moment:
    """Parse `2026-11-21 09:00`, optionally with seconds and an offset, or `09:00` for today; else raise ValueError."""
    zone = get_zone(zone_name)
    typed = text.strip()
    try:
        found = parse_datetime(typed)
        day_time = parse_time(typed) if found is None else None
    except ValueError:
        found = day_time = None
    if found is None and isinstance(day_time, time) and day_time.tzinfo is None:
        found = datetime.combine(now.astimezone(zone).date(), day_time)
    if found is None:
        raise ValueError(
            _(
                "“%(text)s” is not a time. Write 2026-11-21 09:00 in the zone %(zone)s, with seconds or "
                "an offset if you like, such as 2026-11-21T09:00:30+02:00, or 09:00 for today."
            )
            % {"text": typed[:64], "zone": zone_name}
        )
    width = timedelta(minutes=1)
    if _WITH_SECONDS.search(typed):
        width = timedelta(milliseconds=1) if found.microsecond else timedelta(seconds=1)
    try:
        if found.tzinfo is not None:
            first = found.astimezone(EPOCH.tzinfo)
            return Moment(first, first + width)
        return _build_moment(found, zone_name, zone, width)
    except OverflowError:
        raise ValueError(
            _("%(text)s is outside the calendar. Write a year from 1 to 9999.") % {"text": typed[:64]}
        ) from None


def _build_moment(wall: datetime, name: str, zone: tzinfo, width: timedelta) -> Moment:
    local = wall.replace(tzinfo=zone)
    first = local.astimezone(EPOCH.tzinfo)
    notes = []
    shown = {"time": f"{wall:%Y-%m-%d %H:%M:%S}", "zone": name}
    if first.astimezone(zone).replace(tzinfo=None, fold=0) != wall:
        notes.append(_("%(time)s does not exist in %(zone)s: the clock skips it.") % shown)
        start = from_seconds(find_stretch(zone, to_seconds(first))[0])
        if start is not None:  # a run for the skipped time starts right after the jump
            return Moment(start, start + max(width, timedelta(minutes=1)), tuple(notes))
    elif local.replace(fold=1).utcoffset() != local.utcoffset():
        later = local.replace(fold=1)
        shown["other"] = later.astimezone(zone).isoformat(timespec="seconds")
        notes.append(_("%(time)s occurs twice in %(zone)s. This is the first; for the second write %(other)s.") % shown)
    return Moment(first, first + width, tuple(notes))
