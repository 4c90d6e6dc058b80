"""Points around the changes of the clock in time zones, held against the simulated daemon."""

from collections import defaultdict
from datetime import datetime, timedelta

from django_delayq.recurrence import Cron

from .simulation import simulate
from .transitions import EXPRESSIONS, Change, in_both_forms, sampled, zones_that_change

MICROSECOND = timedelta(microseconds=1)
#: How many of the expressions each change is tried with.
SHARE = 6


def points(cron: Cron, change: Change) -> list[datetime]:
    found = []
    point, end = cron.next_after(change.begin - MICROSECOND), change.end
    while point is not None and point < end:
        found.append(point)
        point = cron.next_after(point)
    return found


def test_the_expressions_are_different_and_many() -> None:
    assert len(EXPRESSIONS) == len(set(EXPRESSIONS)) >= 30


def test_the_sweep_over_every_zone_meets_each_of_them_and_every_expression_at_both_kinds_of_changes() -> None:
    zones, gaps, overlaps = set(), defaultdict(set), defaultdict(set)
    for change, expressions in sampled(SHARE, every_zone=True):
        zones.add(change.zone)
        for expression in expressions:
            (gaps if change.shift > timedelta(0) else overlaps)[expression].add(change.zone)
    assert zones == set(zones_that_change())
    assert len(zones) > 150
    for met in (gaps, overlaps):
        assert set(met) == set(EXPRESSIONS)
        assert min(len(zones) for zones in met.values()) >= 30


def test_the_sweep_over_one_zone_of_each_set_meets_every_set_and_every_kind_of_change_with_every_expression() -> None:
    def walls(zone: str) -> tuple[tuple[datetime, timedelta], ...]:
        return tuple((change.wall, change.shift) for change in zones_that_change()[zone])

    zones, kinds = set(), defaultdict(set)
    for change, expressions in sampled(SHARE, every_zone=False):
        zones.add(change.zone)
        for expression in expressions:
            kinds[change.kind].add(expression)
    assert {walls(zone) for zone in zones} == {walls(zone) for zone in zones_that_change()}
    assert set(kinds) == {change.kind for change, _ in sampled(SHARE, every_zone=True)}
    assert all(expressions == set(EXPRESSIONS) for expressions in kinds.values())
    # Half an hour, an hour and two, in both directions.
    assert {shift // timedelta(minutes=30) for shift, _, _ in kinds} == {-4, -2, -1, 1, 2, 4}
    assert len(kinds) >= 20
    assert len(zones) < len(zones_that_change()) / 4


@in_both_forms
def test_points_around_both_changes_of_a_zone_are_those_of_a_simulated_daemon(every_zone: bool) -> None:
    for change, expressions in sampled(SHARE, every_zone=every_zone):
        ticks, end = change.ticks(), change.end
        for expression in expressions:
            for gap, overlap in (("run_after", "once"), ("skip", "twice")):
                cron = Cron(expression, change.zone, gap, overlap)
                expected = [point for point in simulate(expression, ticks, gap, overlap) if point < end]
                assert points(cron, change) == expected, (change, expression, gap, overlap)
                assert cron.count_between(change.begin, end - MICROSECOND) == len(expected)
                newest = cron.previous_at_or_before(end - MICROSECOND, change.begin - MICROSECOND)
                assert newest == (expected[-1] if expected else None)
