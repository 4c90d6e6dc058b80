"""Points around the changes of the clock in time zones, held against the simulated daemon."""

from datetime import timedelta
from itertools import product

from django_delayq.timing import Cron

from .simulation import simulate
from .test_cron_points import points
from .transitions import EXPRESSIONS, in_both_forms, sampled

MICROSECOND, HALF_HOUR = timedelta(microseconds=1), timedelta(minutes=30)
#: How many of the expressions each change is tried with.
SHARE = 6


@in_both_forms
def test_points_around_both_changes_of_a_zone_are_those_of_a_simulated_daemon(every_zone: bool) -> None:
    met, shifts = set(), set()
    for change, expressions in sampled(SHARE, every_zone=every_zone):
        shifts.add(change.shift // HALF_HOUR)
        ticks, end = change.ticks(), change.end
        for expression in expressions:
            met.add((expression, change.shift > timedelta(0)))
            for gap, overlap in (("run_after", "once"), ("skip", "twice")):
                cron = Cron(expression, change.zone, gap, overlap)
                expected = [point for point in simulate(expression, ticks, gap, overlap) if point < end]
                assert points(cron, change.begin, end - MICROSECOND) == expected, (change, expression, gap, overlap)
                assert cron.count_between(change.begin, end - MICROSECOND) == len(expected)
                newest = cron.previous_at_or_before(end - MICROSECOND, change.begin - MICROSECOND)
                assert newest == (expected[-1] if expected else None)
    assert met == set(product(EXPRESSIONS, (True, False))), "each of them at both kinds of changes"
    assert shifts == {-4, -2, -1, 1, 2, 4}
