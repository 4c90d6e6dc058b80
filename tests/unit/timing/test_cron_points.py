"""Points of cron expressions held against two independent judges: a simulation of cron's rules, and croniter."""

import re
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from croniter import croniter
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.recurrence import Cron

from .simulation import BOUNDS, MINUTE, date_matches, field_matches, simulate, watch

#: Zone and a local day around which its offset changes; every kind of change that semantics.md names.
CHANGES = [
    ("Europe/Riga", date(2026, 3, 29)),
    ("Europe/Riga", date(2026, 10, 25)),
    ("America/New_York", date(2026, 3, 8)),
    ("America/New_York", date(2026, 11, 1)),
    ("Australia/Lord_Howe", date(2026, 4, 5)),
    ("Australia/Lord_Howe", date(2026, 10, 4)),
    ("Antarctica/Troll", date(2026, 3, 29)),
    ("Antarctica/Troll", date(2026, 10, 25)),
    ("America/Santiago", date(2026, 4, 5)),
    ("America/Santiago", date(2026, 9, 6)),
    ("Asia/Beirut", date(2026, 3, 29)),
    ("Asia/Beirut", date(2026, 10, 25)),
    ("Pacific/Apia", date(2011, 12, 30)),
    ("Europe/Dublin", date(2026, 3, 29)),
    ("Europe/Dublin", date(2026, 10, 25)),
    ("Africa/Casablanca", date(2026, 2, 15)),
    ("Africa/Casablanca", date(2026, 3, 22)),
    ("Asia/Pyongyang", date(2018, 5, 5)),
    ("Europe/Volgograd", date(2020, 12, 27)),
    ("Asia/Kolkata", date(2026, 1, 1)),
]


def points(cron: Cron, begin: datetime, end: datetime) -> list[datetime]:
    found = []
    point = cron.next_after(begin - timedelta(microseconds=1))
    while point is not None and point <= end:
        found.append(point)
        point = cron.next_after(point)
    return found


# --- expressions ------------------------------------------------------------------------------------------------


def items(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(sorted)
    return st.one_of(
        number.map(str),
        ranges.map(lambda r: f"{r[0]}-{r[1]}"),
        st.tuples(ranges, st.integers(1, 60)).map(
            lambda t: f"{t[0][0]}-{t[0][1]}/{1 + t[1] % (t[0][1] - t[0][0] + 1)}"
        ),
    )


def fields(low: int, high: int, *extra: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    star = st.one_of(st.just("*"), st.integers(1, high - low + 1).map(lambda step: f"*/{step}"))
    lists = st.lists(st.one_of(items(low, high), *extra), min_size=1, max_size=3).map(",".join)
    return st.one_of(star, lists, lists)


OPEN = st.integers(0, 50).flatmap(lambda low: st.integers(1, 59 - low).map(lambda step: f"{low}/{step}"))
SPECIAL_DAYS = st.one_of(
    st.just("L"), st.just("LW"), st.integers(1, 30).map("L-{}".format), st.integers(1, 31).map("{}W".format)
)
SPECIAL_WEEKDAYS = st.one_of(
    st.tuples(st.integers(0, 6), st.integers(1, 5)).map(lambda t: f"{t[0]}#{t[1]}"), st.integers(0, 6).map("{}L".format)
)
DAYS, MONTHS, WEEKDAYS = fields(1, 31, SPECIAL_DAYS), fields(1, 12), fields(0, 6, SPECIAL_WEEKDAYS)
PLAIN = st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), MONTHS, fields(0, 6)).map(" ".join)
QUIET = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


def accepted(expression: str, *args: str) -> Cron:
    try:
        return Cron(expression, *args)
    except InvalidRecurrence as error:
        assume("never comes" not in str(error))
        raise


def for_croniter(expression: str) -> str:
    """Write 9-9 as 9: croniter takes it for the whole field."""
    return re.sub(r"\b(\d+)-\1(/1)?(?![\d/])", r"\1", expression)


@settings(QUIET, max_examples=600)
@given(
    st.tuples(
        fields(0, 59),
        fields(0, 59, OPEN),
        fields(0, 23),
        fields(1, 31, st.just("30/1")),
        fields(1, 12, st.just("7/5")),
        fields(0, 6, st.sampled_from(["7", "7-7", "5-7", "0-7", "1-7/3", "0-7/7", "2/2"])),
    )
)
def test_the_values_of_each_field_are_those_of_the_simulated_daemon(words: tuple[str, ...]) -> None:
    compiled = accepted(" ".join(words)).fields
    masks = (
        compiled.seconds, compiled.minutes, compiled.hours, compiled.rule.days, compiled.months, compiled.rule.weekdays
    )  # fmt: skip
    for text, mask, (name, (low, high)) in zip(words, masks, BOUNDS.items(), strict=True):
        expected = {value for value in range(low, high + 1) if field_matches(text, value, name)}
        expected |= {0} if name == "weekday" and field_matches(text, 7, name) else set()
        assert {value for value in range(60) if mask >> value & 1} == expected, text


@settings(QUIET, max_examples=120)
@given(
    change=st.sampled_from(CHANGES),
    minute=fields(0, 59),
    hour=st.one_of(fields(0, 23), fields(0, 4), st.just("23")),
    days=st.one_of(st.just("*"), st.just("*"), DAYS),
    weekdays=st.one_of(st.just("*"), st.just("*"), WEEKDAYS),
    gap=st.sampled_from(["run_after", "skip"]),
    overlap=st.sampled_from(["once", "twice"]),
)
def test_points_around_a_change_of_the_clock_are_those_of_a_simulated_daemon(
    change: tuple[str, date], minute: str, hour: str, days: str, weekdays: str, gap: str, overlap: str
) -> None:
    zone, day = change
    expression = f"{minute} {hour} {days} * {weekdays}"
    cron = accepted(expression, zone, gap, overlap)
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=26)
    end = begin + timedelta(hours=52)
    expected = simulate(expression, watch(zone, begin, end), gap, overlap)
    assert points(cron, begin, end) == expected
    assert cron.count_between(begin, end) == len(expected)
    assert cron.previous_at_or_before(end, begin - MINUTE) == (expected[-1] if expected else None)


@settings(QUIET, max_examples=150)
@given(days=DAYS, months=MONTHS, weekdays=WEEKDAYS, start=st.dates(date(1990, 1, 1), date(2090, 1, 1)))
def test_dates_are_those_of_a_simulated_calendar(days: str, months: str, weekdays: str, start: date) -> None:
    expression = f"30 12 {days} {months} {weekdays}"
    cron = accepted(expression)
    calendar_days = [start + timedelta(days=n) for n in range(800)]
    expected = [day for day in calendar_days if date_matches(days, months, weekdays, day)]
    begin = datetime(start.year, start.month, start.day, tzinfo=UTC)
    end = begin + timedelta(days=800) - MINUTE
    assert [point.date() for point in points(cron, begin, end)] == expected
    assert cron.count_between(begin, end) == len(expected)


@settings(QUIET, max_examples=150)
@given(expression=PLAIN, start=st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1)))  # noqa: DTZ001
def test_points_are_those_of_croniter_away_from_summer_time(expression: str, start: datetime) -> None:
    start = start.replace(tzinfo=UTC)
    cron = accepted(expression)
    judge = croniter(for_croniter(expression), start, datetime, implement_cron_bug=True)
    point: datetime | None = start
    for _ in range(4):
        assert point is not None
        point = cron.next_after(point)
        assert point == judge.get_next()


@settings(QUIET, max_examples=60)
@given(second=fields(0, 59), expression=PLAIN, start=st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1)))  # noqa: DTZ001
def test_points_with_seconds_are_those_of_croniter(second: str, expression: str, start: datetime) -> None:
    start = start.replace(tzinfo=UTC)
    cron = accepted(f"{second} {expression}")
    judge = croniter(
        for_croniter(f"{second} {expression}"), start, datetime, implement_cron_bug=True, second_at_beginning=True
    )
    point = cron.next_after(start)
    assert point is not None
    assert point == judge.get_next()
    assert cron.next_after(point) == judge.get_next()


@settings(QUIET, max_examples=100)
@given(
    expression=PLAIN,
    zone=st.sampled_from(sorted({zone for zone, _ in CHANGES})),
    start=st.datetimes(datetime(1975, 1, 1), datetime(2090, 1, 1)),  # noqa: DTZ001
)
def test_next_previous_and_count_agree(expression: str, zone: str, start: datetime) -> None:
    cron = accepted(expression, zone)
    instant = start.replace(tzinfo=UTC)
    row: list[datetime] = []
    for _ in range(6):
        point = cron.next_after(row[-1] if row else instant)
        assert point is not None
        assert point.tzinfo is UTC
        assert not row or point > row[-1]
        row.append(point)
    assert cron.count_between(instant + timedelta(microseconds=1), row[-1]) == len(row)
    assert cron.count_between(row[0], row[0]) == 1
    assert cron.count_between(row[0] + timedelta(microseconds=1), row[1] - timedelta(microseconds=1)) == 0
    assert cron.count_between(row[1], row[0]) == 0
    for earlier, later in pairwise(row):
        assert cron.previous_at_or_before(later, instant) == later
        assert cron.previous_at_or_before(later - timedelta(microseconds=1), instant) == earlier
    assert cron.previous_at_or_before(row[-1], row[-1]) is None
    assert cron.previous_at_or_before(row[0] - timedelta(microseconds=1), instant) is None
