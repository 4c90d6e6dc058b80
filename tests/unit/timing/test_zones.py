"""Points around the changes of the clock in every time zone, held against the simulated daemon."""

from collections import defaultdict
from datetime import datetime, timedelta

from django_delayq.timing import Cron

from .simulation import simulate
from .transitions import EXPRESSIONS, Change, sampled, zones_that_change

MICROSECOND = timedelta(microseconds=1)
#: How many of the expressions each change is tried with.
SHARE = 6


def points(cron: Cron, change: Change) -> list[datetime]:
    found = []
    point = cron.next_after(change.begin - MICROSECOND)
    while point is not None and point < change.end:
        found.append(point)
        point = cron.next_after(point)
    return found


def test_the_sweep_meets_every_zone_with_both_kinds_of_changes_and_every_expression() -> None:
    assert len(EXPRESSIONS) == len(set(EXPRESSIONS)) >= 30
    zones, gaps, overlaps = set(), defaultdict(set), defaultdict(set)
    for change, expressions in sampled(SHARE):
        zones.add(change.zone)
        for expression in expressions:
            (gaps if change.shift > timedelta(0) else overlaps)[expression].add(change.zone)
    assert zones == set(zones_that_change())
    assert len(zones) > 150
    for met in (gaps, overlaps):
        assert set(met) == set(EXPRESSIONS)
        assert min(len(zones) for zones in met.values()) >= 30


def test_in_every_zone_points_around_both_changes_are_those_of_a_simulated_daemon() -> None:
    for change, expressions in sampled(SHARE):
        ticks = change.ticks()
        for expression in expressions:
            for gap, overlap in (("run_after", "once"), ("skip", "twice")):
                cron = Cron(expression, change.zone, gap, overlap)
                expected = [point for point in simulate(expression, ticks, gap, overlap) if point < change.end]
                assert points(cron, change) == expected, (change, expression, gap, overlap)
                assert cron.count_between(change.begin, change.end - MICROSECOND) == len(expected)
                newest = cron.previous_at_or_before(change.end - MICROSECOND, change.begin - MICROSECOND)
                assert newest == (expected[-1] if expected else None)
