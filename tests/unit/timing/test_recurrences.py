"""Intervals, single points and windows; and due points as numbers."""

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.recurrence import Cron, Every, Once, Recurrence, Windowed, from_ms, to_ms

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
QUARTER = timedelta(minutes=15)
NAIVE = datetime(2026, 11, 21, 12)  # noqa: DTZ001
QUIET = settings(deadline=None, database=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
INSTANTS = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@QUIET
@given(
    micros=st.integers(1_000, 10**13),
    anchor=INSTANTS,
    instant=INSTANTS,
    span=st.timedeltas(timedelta(0), timedelta(days=400)),
)
def test_every_agrees_with_exact_fractions(micros: int, anchor: datetime, instant: datetime, span: timedelta) -> None:
    every = Every(timedelta(microseconds=micros), anchor)
    point = every.next_after(instant)
    assert point is not None
    assert point == every.next_after(instant.astimezone(timezone(timedelta(hours=5, minutes=45))))
    assert point.tzinfo is UTC
    assert instant < point <= instant + timedelta(microseconds=micros)
    assert Fraction((point - anchor) // MICROSECOND, micros).denominator == 1
    assert every.previous_at_or_before(point, instant) == point
    assert every.previous_at_or_before(point - MICROSECOND, instant) is None
    assert every.previous_at_or_before(instant, instant - timedelta(microseconds=micros)) == point - every.every
    last = instant + span
    expected = 0 if last < point else (last - point) // every.every + 1
    assert every.count_between(instant + MICROSECOND, last) == expected


def test_every_ends_where_years_end() -> None:
    assert Every(timedelta(days=1), NOON).next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert Every(timedelta.max, NOON).next_after(NOON) is None
    century = Every(timedelta(days=36525), NOON)
    assert century.previous_at_or_before(datetime(1, 1, 2, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    "every", [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=999), 5, None, "1h"], ids=repr
)
def test_an_interval_that_does_not_move_on_is_refused(every: object) -> None:
    with pytest.raises(InvalidRecurrence) as caught:
        Every(every, anchor=NOON)  # type: ignore[arg-type]
    assert caught.value.field == "every"


def test_once_is_one_point() -> None:
    once = Once(NOON.astimezone(timezone(timedelta(hours=2))))
    assert once.at.tzinfo is UTC
    assert once.next_after(NOON - MICROSECOND) == NOON
    assert once.next_after(NOON) is None
    assert once.previous_at_or_before(NOON, NOON - MICROSECOND) == NOON
    assert once.previous_at_or_before(NOON, NOON) is None
    assert once.previous_at_or_before(NOON - MICROSECOND, NOON - QUARTER) is None
    assert once.count_between(NOON, NOON) == 1
    assert once.count_between(NOON + MICROSECOND, NOON + QUARTER) == 0


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Once(None), "at"),
        (lambda: Once(NAIVE), "at"),
        (lambda: Once("2026-11-21"), "at"),
        (lambda: Every(QUARTER, NAIVE), "every"),
        (lambda: Every(QUARTER, None), "every"),
        (lambda: Windowed(Once(NOON), start=NAIVE), "start_at"),
        (lambda: Windowed(Once(NOON), end=NAIVE), "end_at"),
        (lambda: Windowed(Once(NOON), start=NOON, end=NOON - MICROSECOND), "end_at"),
    ],
)
def test_a_bad_instant_is_refused_when_it_is_given(build: object, field: str) -> None:
    with pytest.raises(InvalidRecurrence) as caught:
        build()  # type: ignore[operator]
    assert caught.value.field == field


@pytest.mark.parametrize(
    "rule", [Every(QUARTER, NOON), Once(NOON), Windowed(Every(QUARTER, NOON)), Windowed(Once(NOON), start=NOON)]
)
def test_a_naive_instant_is_refused(rule: Recurrence) -> None:
    for call in (
        lambda: rule.next_after(NAIVE),
        lambda: rule.previous_at_or_before(NAIVE, NOON),
        lambda: rule.previous_at_or_before(NOON, NAIVE),
        lambda: rule.count_between(NAIVE, NOON),
        lambda: rule.count_between(NOON, NAIVE),
    ):
        with pytest.raises(ValueError, match="aware"):
            call()


def test_both_bounds_of_a_window_belong_to_it() -> None:
    window = Windowed(Every(QUARTER, NOON), start=NOON, end=NOON + 2 * QUARTER)
    assert window.next_after(NOON - timedelta(days=9)) == NOON
    assert window.next_after(NOON) == NOON + QUARTER
    assert window.next_after(NOON + QUARTER) == NOON + 2 * QUARTER
    assert window.next_after(NOON + 2 * QUARTER) is None
    far = timedelta(days=9)
    assert window.previous_at_or_before(NOON + far, NOON - far) == NOON + 2 * QUARTER
    assert window.previous_at_or_before(NOON - MICROSECOND, NOON - far) is None
    assert window.previous_at_or_before(NOON, NOON - far) == NOON
    assert window.count_between(NOON - far, NOON + far) == 3
    assert Windowed(Every(QUARTER, NOON)).next_after(NOON) == NOON + QUARTER


def test_a_window_without_points_says_so() -> None:
    window = Windowed(Cron("0 0 * * *"), start=NOON, end=NOON + QUARTER)
    assert window.next_after(NOON - timedelta(days=1)) is None
    assert window.count_between(NOON - timedelta(days=1), NOON + timedelta(days=1)) == 0


def test_recurrences_are_values() -> None:
    riga = timezone(timedelta(hours=2))
    assert Every(QUARTER, NOON) == Every(QUARTER, NOON.astimezone(riga))
    assert hash(Once(NOON)) == hash(Once(NOON.astimezone(riga)))
    assert Windowed(Once(NOON), end=NOON) == Windowed(Once(NOON), end=NOON.astimezone(riga))
    assert len({Every(QUARTER, NOON), Every(2 * QUARTER, NOON), Once(NOON), Cron("* * * * *")}) == 4


@pytest.mark.parametrize(
    ("instant", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
        (datetime(2026, 11, 21, 2, tzinfo=timezone(timedelta(hours=2))), 1_795_219_200_000),
    ],
)
def test_milliseconds_are_rounded_up(instant: datetime, ms: int) -> None:
    assert to_ms(instant) == ms


@QUIET
@given(st.integers(-(10**13), 2 * 10**14))
def test_milliseconds_and_instants_convert_without_loss(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms
    assert from_ms(ms).tzinfo is UTC
    assert to_ms(from_ms(ms) + MICROSECOND) == ms + 1


def test_a_naive_instant_has_no_milliseconds() -> None:
    with pytest.raises(ValueError, match="aware"):
        to_ms(NAIVE)
