"""When a point wakes: its jitter is spread, stable and whole."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_delayq.recurrence import Every, Policies, Skip, compute_wake, decide, is_too_old

HOUR = timedelta(hours=1)
POINT = datetime(2026, 11, 21, 10, tzinfo=UTC)


@settings(deadline=None, database=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    point=st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    jitter=st.timedeltas(timedelta(0), timedelta(days=3)),
    key=st.text(max_size=20),
)
def test_a_wake_is_a_stable_whole_number_of_ms_within_the_jitter(point: datetime, jitter: timedelta, key: str) -> None:
    wake = compute_wake(point, jitter, key)
    assert wake == compute_wake(point.astimezone(timezone(timedelta(hours=3))), jitter, key)
    assert timedelta(0) <= wake - point < max(jitter, timedelta(microseconds=1))
    assert (wake - point) % timedelta(milliseconds=1) == timedelta(0)
    assert wake.tzinfo is UTC


def test_wakes_are_spread_and_pinned() -> None:
    assert compute_wake(POINT, timedelta(0), "report") == POINT
    assert compute_wake(POINT, timedelta(microseconds=999), "report") == POINT
    # Pinned: every worker of every version has to agree.
    assert compute_wake(POINT, HOUR, "report") == POINT + timedelta(minutes=25, seconds=11, milliseconds=141)
    by_key = {compute_wake(POINT, HOUR, f"schedule {n}") for n in range(100)}
    by_point = [(compute_wake(POINT + n * HOUR, HOUR, "report") - POINT - n * HOUR) / HOUR for n in range(200)]
    assert len(by_key) > 95
    assert 0.4 < sum(by_point) / len(by_point) < 0.6
    assert min(by_point) < 0.05
    assert max(by_point) > 0.95


def test_what_woke_during_a_busy_stretch_is_found_by_wakes_not_by_points() -> None:
    minute, jitter, busy_until = timedelta(minutes=1), timedelta(minutes=10), POINT + timedelta(minutes=30)
    further = set()
    for number in range(40):
        woke = []
        while compute_wake(POINT + len(woke) * minute, jitter, str(number)) <= busy_until:
            woke.append(POINT + len(woke) * minute)
        further.add((woke[-1] - busy_until + jitter) // minute)
        for overlap, last, resume_at in [("queue_one", woke[-2], woke[-1]), ("skip", woke[-1], woke[-1] + minute)]:
            policies = Policies(overlap=overlap, jitter=jitter, key=str(number))
            decision = decide(Every(minute, POINT), POINT, POINT + HOUR, POINT, busy_until, policies)
            assert isinstance(decision, Skip)
            assert (decision.last, decision.resume_at, decision.reason) == (last, resume_at, "overlap")
    # All points up to a jitter before the end woke for sure; of those after, none, one, or several in a row.
    assert {0, 1, 2, 3} <= further


def test_a_point_belongs_to_the_busy_stretch_in_which_it_wakes() -> None:
    minute, policies = timedelta(minutes=1), Policies(jitter=HOUR, key="report")  # it wakes after 25 minutes
    decision = decide(
        Every(HOUR, POINT), POINT, POINT + 50 * minute, POINT + 20 * minute, POINT + 40 * minute, policies
    )
    assert isinstance(decision, Skip)
    assert decision.reason == "overlap"


def test_the_wake_of_a_naive_instant_is_refused() -> None:
    naive = POINT.replace(tzinfo=None)
    with pytest.raises(ValueError, match="aware"):
        compute_wake(naive, HOUR, "")
    with pytest.raises(ValueError, match="aware"):
        is_too_old(naive, POINT, Policies(catch_up_window=HOUR))
