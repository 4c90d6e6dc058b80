"""The far ends: of the calendar, of a zone's blocks, of caches."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

import pytest

from django_delayq.recurrence import Cron, Every, Windowed, cron, dialect, grammar, zone
from django_delayq.recurrence.point import DAY
from django_delayq.recurrence.zone import BLOCK_BITS, LONGEST_SHIFT, find_stretch, get_offset

HOUR, MICROSECOND = timedelta(hours=1), timedelta(microseconds=1)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def caches() -> Iterator[tuple[str, "lru_cache"]]:  # type: ignore[type-arg]
    for module in (cron, dialect, grammar, zone):
        for name, value in vars(module).items():
            if hasattr(value, "cache_parameters"):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value


def test_compiled_forms_are_cached_and_every_cache_is_bounded() -> None:
    found = dict(caches())
    compiled = {"cron._prepare", "grammar._read_range"}
    assert set(found) == compiled | {"zone.get_zone", "cron.get_zone", "zone._build_block"}
    for cache in found.values():
        bound = cache.cache_parameters()["maxsize"]
        assert bound is not None
        assert 0 < bound <= 4096
    assert Cron("7 * * * *", "Europe/Riga").fields is Cron("7 * * * *", "Europe/Riga").fields


def test_thousands_of_expressions_do_not_fill_the_memory() -> None:
    kept = Cron("7 * * * *", "Europe/Riga")
    for number in range(6_000):
        Cron(f"{number % 60} {number // 60 % 24} {1 + number // 1440} * *", "Europe/Riga", key=str(number))
    for cache in dict(caches()).values():
        assert cache.cache_info().currsize <= cache.cache_parameters()["maxsize"]
    # What fell out of the cache works on, and equals what is compiled anew.
    assert kept == Cron("7 * * * *", "Europe/Riga")
    assert kept.next_after(NOON) == NOON + timedelta(minutes=7)


def test_without_h_all_keys_share_one_compiled_form() -> None:
    assert Cron("9 4 * * *", key="a").fields is Cron("9 4 * * *", key="b").fields
    assert Cron("H 4 * * *", key="a").fields is not Cron("H 4 * * *", key="b").fields


class Stepped(tzinfo):
    """A zone that goes forward by an hour at the given second of UTC."""

    def __init__(self, at: int) -> None:
        self.at = at

    def fromutc(self, instant: datetime) -> datetime:
        return instant + self.utcoffset(instant)

    def utcoffset(self, instant: datetime | None) -> timedelta:
        assert instant is not None
        return HOUR if instant.replace(tzinfo=UTC).timestamp() >= self.at else timedelta(0)

    def dst(self, instant: datetime | None) -> timedelta:
        return timedelta(0)


def test_a_change_at_the_very_beginning_of_a_block_is_seen() -> None:
    begin = 50 << BLOCK_BITS
    stepped = Stepped(begin)
    assert find_stretch(stepped, begin) == (begin, begin + (1 << BLOCK_BITS), 3600, 0)
    assert find_stretch(stepped, begin - 1)[2:] == (0, 0)
    later = Stepped(begin + 1)
    assert find_stretch(later, begin) == (begin - LONGEST_SHIFT, begin + 1, 0, 0)
    assert find_stretch(later, begin + 1)[2:] == (3600, 0)


def test_blocks_that_fell_out_of_the_cache_are_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone, "_build_block", lru_cache(5)(zone._build_block.__wrapped__))
    small = Stepped(0)
    for number in range(23):
        assert find_stretch(small, (number - 11) << BLOCK_BITS)[2] == (3600 if number >= 11 else 0)
        assert zone._build_block.cache_info().currsize <= 5


def test_offsets_beyond_the_calendar_are_those_of_its_ends() -> None:
    riga = zone.get_zone("Europe/Riga")
    assert get_offset(riga, 10**12) == get_offset(riga, 253_402_000_000) == 2 * 3600  # December 9999
    assert (
        get_offset(riga, -(10**12)) == get_offset(riga, -62_135_000_000) == 5794
    )  # January of the year 1, local mean time


def test_time_begins_with_the_year_1() -> None:
    first = datetime(1, 1, 1, tzinfo=UTC)
    assert Cron("0 0 * * *").next_after(first) == first + timedelta(days=1)
    # West of Greenwich it is still the year 0, which no calendar has.
    found = Cron("0 0 * * *", "America/New_York").next_after(first)
    assert found is not None
    assert timedelta(0) < found - first < timedelta(days=1)
    assert Cron("0 0 * * *").fields.find_first(-DAY * 1_000_000) == -DAY * 719_162


def test_a_span_inside_a_repeated_hour_has_no_points_of_a_job_that_ran() -> None:
    daily = Cron("30 3 * * *", "Europe/Riga")
    again = datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
    assert daily.count_between(again, again + HOUR / 2) == 0
    assert daily.count_between(again, again + HOUR) == 0
    assert daily.count_between(again - HOUR, again + HOUR) == 1
    assert Cron("30 3 * * *", "Europe/Riga", dst_overlap="twice").count_between(again, again + HOUR / 2) == 1


def test_a_repeated_hour_in_which_a_block_ends_runs_once() -> None:
    # At 16:30 UTC the clock goes back from 03:00 to 02:00. A block ends at 17:23:12.
    daily = Cron("55 2 * * *", "Australia/Adelaide")
    change = datetime(2016, 4, 2, 16, 30, tzinfo=UTC)
    first = daily.next_after(change - HOUR)
    assert first == change - HOUR / 12
    assert daily.next_after(first) == daily.next_after(change + HOUR / 6) == first + 25 * HOUR
    assert daily.count_between(change - HOUR, change + 2 * HOUR) == 1


def test_a_window_may_be_open_on_either_side() -> None:
    quarters = Every(HOUR / 4, NOON)
    since, until = Windowed(quarters, start=NOON), Windowed(quarters, end=NOON)
    assert since.previous_at_or_before(NOON + HOUR, NOON - HOUR) == NOON + HOUR
    assert since.previous_at_or_before(NOON - MICROSECOND, NOON - HOUR) is None
    assert since.count_between(NOON - HOUR, NOON + HOUR) == 5
    assert until.previous_at_or_before(NOON + HOUR, NOON - HOUR) == NOON
    assert until.previous_at_or_before(NOON + HOUR, NOON) is None
    assert until.count_between(NOON - HOUR, NOON + HOUR) == 5
