"""A cron recurrence as a value: its errors, its limits, its speed."""

import pickle
import statistics
import time
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.recurrence import Cron

MINUTE = timedelta(minutes=1)


def test_rare_dates_are_found_across_centuries() -> None:
    leap = Cron("0 0 29 2 *", "Europe/Riga")
    assert leap.next_after(datetime(2097, 1, 1, tzinfo=UTC)) == datetime(2104, 2, 28, 22, tzinfo=UTC)
    leap_sunday = Cron("0 0 29 2 */7")
    assert leap_sunday.next_after(datetime(2080, 1, 1, tzinfo=UTC)) == datetime(2088, 2, 29, tzinfo=UTC)
    assert leap_sunday.next_after(datetime(2088, 3, 1, tzinfo=UTC)) == datetime(2128, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Riga", "America/New_York"])
def test_time_ends_with_the_year_9999(zone: str) -> None:
    cron = Cron("0 12 * * *", zone)
    assert cron.next_after(datetime(9999, 12, 31, 23, 59, tzinfo=UTC)) is None
    assert Cron("0 0 29 2 *", zone).next_after(datetime(9997, 1, 1, tzinfo=UTC)) is None
    assert cron.next_after(datetime(1, 1, 3, tzinfo=UTC)) is not None
    assert cron.previous_at_or_before(datetime.max.replace(tzinfo=UTC), datetime(9999, 12, 1, tzinfo=UTC)) is not None


def test_points_are_strictly_after_the_instant_whatever_its_zone_and_microsecond() -> None:
    cron = Cron("*/5 * * * *", "Europe/Riga")
    at = datetime(2026, 11, 21, 8, 5, tzinfo=UTC)
    assert cron.next_after(at) == at + 5 * MINUTE
    assert cron.next_after(at - timedelta(microseconds=1)) == at
    assert cron.next_after(at + timedelta(microseconds=1)) == at + 5 * MINUTE
    local = at.astimezone(ZoneInfo("Asia/Kathmandu"))
    assert cron.next_after(local) == at + 5 * MINUTE
    second_time = datetime(2026, 10, 25, 3, 30, fold=1, tzinfo=ZoneInfo("Europe/Riga"))
    assert cron.next_after(second_time) == datetime(2026, 10, 25, 1, 35, tzinfo=UTC)


@pytest.mark.parametrize("bad", [datetime(2026, 1, 1), date(2026, 1, 1), None, "2026-01-01"])  # noqa: DTZ001
def test_a_naive_instant_is_refused(bad: object) -> None:
    cron = Cron("* * * * *")
    good = datetime(2026, 1, 1, tzinfo=UTC)
    for call in (
        lambda: cron.next_after(bad),  # type: ignore[arg-type]
        lambda: cron.previous_at_or_before(good, bad),  # type: ignore[arg-type]
        lambda: cron.count_between(bad, good),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="aware"):
            call()


def test_a_cron_is_a_value() -> None:
    one, same = Cron("0 9 * * 1-5", timezone="Europe/Riga"), Cron("0 9 * * 1-5", "Europe/Riga", "run_after", "once", "")
    assert one == same
    assert hash(one) == hash(same)
    assert one != Cron("0 9 * * 1-5", "Europe/Vilnius")
    assert one != Cron("0 9 * * 1-5", "Europe/Riga", key="x")
    assert repr(one) == (
        "Cron(expression='0 9 * * 1-5', timezone='Europe/Riga', dst_gap='run_after', dst_overlap='once', key='')"
    )
    with pytest.raises(FrozenInstanceError):
        one.key = "x"  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(one))  # noqa: S301
    assert copy == one
    assert copy.next_after(datetime(2026, 1, 1, tzinfo=UTC)) == one.next_after(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dst_gap", "later", ["run_after and skip", "'later'"]),
        ("dst_overlap", "thrice", ["once and twice", "'thrice'"]),
        ("dst_gap", None, ["dst_gap"]),
        ("timezone", None, ["timezone"]),
        ("timezone", "", ["Europe/Riga"]),
        ("timezone", "Europe/Rigga", ["'Europe/Rigga'", "Did you mean Europe/Riga"]),
        ("timezone", "europe/riga", ["Did you mean Europe/Riga?"]),
        ("timezone", "riga", ["Did you mean Europe/Riga?"]),
        ("timezone", "New York", ["Did you mean America/New_York?"]),
        ("timezone", "UTC ", ["Did you mean UTC?"]),
        ("timezone", "America", ["region", "America/"]),
        ("timezone", "../x", ["'../x'"]),
        ("timezone", "/etc/passwd", ["IANA"]),
        ("timezone", "localtime", ["IANA"]),
        ("timezone", "right/UTC", ["right/UTC"]),
        ("timezone", "Europe/Riga\0", ["no time zone"]),
        ("timezone", "Mars/Base", ["IANA"]),
        ("timezone", "x" * 5000, ["no time zone"]),
        ("timezone", "ß\udcff", ["no time zone"]),
    ],
)
def test_a_refused_setting_is_blamed_on_its_field(name: str, value: object, words: list[str]) -> None:
    with pytest.raises(InvalidRecurrence) as caught:
        Cron("* * * * *", **{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("expression", "microseconds"),
    [("*/5 * * * *", 15), ("0 9 * * 1-5", 15), ("0 0 29 2 *", 200)],
)
def test_next_after_is_fast(expression: str, microseconds: int) -> None:
    cron = Cron(expression, "Europe/Riga")
    medians = []
    for _ in range(3):  # the best of three: the machine may be busy
        taken = []
        point: datetime | None = datetime(2026, 11, 21, tzinfo=UTC)
        for _ in range(15):
            assert point is not None
            begin = time.perf_counter()
            point = cron.next_after(point)
            taken.append(time.perf_counter() - begin)
        medians.append(statistics.median(taken) * 1e6)
    # Three times the target, for slow machines under load.
    assert min(medians) < 3 * microseconds
