"""Points around the changes of the clock in time zones, held against cronsim, which follows Debian's cron too."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from django_delayq.recurrence import Cron

from .test_zones import points
from .transitions import Change, in_both_forms, sampled

#: How many of the expressions each change is tried with.
SHARE = 3
LORD_HOWE, CHATHAM = ("Australia/Lord_Howe", "Australia/LHI"), ("Pacific/Chatham", "NZ-CHAT")
MIDNIGHT_GAPS = ("Asia/Beirut", "Atlantic/Azores")

#: What cronsim does not read: L-n and W.
UNREAD = ("0 3 L-1 * *", "45 23 15W,29W * *")


def at_a_gap(change: Change) -> bool:
    return change.shift > timedelta(0)


def at_an_overlap(change: Change) -> bool:
    return change.shift < timedelta(0)


#: Expression, and where the two disagree about it. The simulated daemon, which looks at every single minute, agrees
#: with us in each of these cases (test_zones.py).
DISAGREEMENTS: list[tuple[str, Callable[[Change], bool]]] = [
    # cronsim takes every expression with seconds for a wildcard job, because Debian's cron has no seconds. Here minute
    # and hour decide as with five fields (semantics.md): a repeated hour runs once, and what falls into a gap is made
    # up for at its end (where that is no point of the second expression anyway).
    ("15,45 30 2 * * *", lambda change: True),
    ("*/20 0 1-3 * * *", lambda change: True),
    # A wildcard job (the minute begins with *) on a day whose 00:00 does not exist. cronsim moves to the day's midnight
    # without asking whether it exists, finds hour 0 there, and returns an instant that is 01:00 on the wall.
    ("*/30 0,23 * * 0L", lambda change: at_a_gap(change) and change.zone in MIDNIGHT_GAPS),
    # cronsim looks for the hour in steps of one real hour. Where the clock goes back by half an hour, at 02:00, it
    # steps from 01:00 to 01:30 and from there to 02:30, and misses 02:00 to 02:29.
    ("*/20 2 * * *", lambda change: at_an_overlap(change) and change.zone in LORD_HOWE),
    ("* 2 * * *", lambda change: at_an_overlap(change) and change.zone in LORD_HOWE),
    # The same in a zone that changes at a quarter to the hour. Back at 03:45: cronsim steps from 03:00 to 03:00 and
    # misses the second 02:45 to 02:59. Forward at 02:45: it steps from 03:45, taken for a 03:00 that does not exist,
    # to 05:00, and misses 04:45.
    ("* 2 * * *", lambda change: at_an_overlap(change) and change.zone in CHATHAM),
    ("45 */2 * * *", lambda change: at_a_gap(change) and change.zone in CHATHAM),
]


def points_of_cronsim(expression: str, change: Change) -> list[datetime]:
    found = []
    start, end = change.begin - timedelta(seconds=1), change.end
    for point in CronSim(expression, start.astimezone(ZoneInfo(change.zone))):
        if point.astimezone(UTC) >= end:
            break
        found.append(point.astimezone(UTC))
    return found


@in_both_forms
def test_points_around_both_changes_of_a_zone_are_those_of_cronsim_but_for_what_is_explained(every_zone: bool) -> None:
    met = set()
    for change, expressions in sampled(SHARE, every_zone=every_zone):
        for expression in expressions:
            if expression in UNREAD:
                continue
            agreed = points(Cron(expression, change.zone), change) == points_of_cronsim(expression, change)
            explained = [n for n, (text, where) in enumerate(DISAGREEMENTS) if text == expression and where(change)]
            assert agreed or explained, (change, expression)
            if not agreed:
                met.update(explained)
    assert met == set(range(len(DISAGREEMENTS))), "a row of the table explains nothing"
