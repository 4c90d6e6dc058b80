"""What happens where the clock on the wall jumps: one table per rule, and the transitions themselves."""

import struct
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo

import pytest

from django_delayq.recurrence import Cron
from django_delayq.recurrence.zone import find_stretch, get_zone

RIGA, NEW_YORK, LORD_HOWE, TROLL = "Europe/Riga", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"
SANTIAGO, BEIRUT, APIA, DUBLIN = "America/Santiago", "Asia/Beirut", "Pacific/Apia", "Europe/Dublin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def points(cron: Cron, start: str, count: int) -> list[str]:
    found = []
    instant = utc(start)
    for _ in range(count):
        following = cron.next_after(instant)
        assert following is not None
        instant = following
        found.append(f"{instant:%m-%d %H:%M}")
    assert cron.count_between(utc(start) + timedelta(microseconds=1), instant) == count
    return found


#: zone, expression, start, points with the defaults, points with skip; all in UTC.
GAPS = [
    # Riga 2026-03-29: 03:00 does not exist, it is 04:00 = 01:00 UTC.
    (RIGA, "30 3 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 00:30", "03-30 00:30|03-31 00:30"),
    (RIGA, "0 3 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 00:00", "03-30 00:00|03-31 00:00"),
    (RIGA, "0 4 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 01:00", "03-29 01:00|03-30 01:00"),
    (RIGA, "0 3,4 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 00:00", "03-29 01:00|03-30 00:00"),
    (RIGA, "0,20,40 3 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 00:00", "03-30 00:00|03-30 00:20"),
    (RIGA, "0-59 3 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 00:00", "03-30 00:00|03-30 00:01"),
    (RIGA, "30 2 * * *", "2026-03-28T12:00", "03-29 00:30|03-29 23:30", "03-29 00:30|03-29 23:30"),
    (RIGA, "30 3 29 3 *", "2026-01-01T00:00", "03-29 01:00|03-29 00:30", "03-29 00:30|03-29 00:30"),
    (RIGA, "30 3 * * 0", "2026-03-28T12:00", "03-29 01:00|04-05 00:30", "04-05 00:30|04-12 00:30"),
    (RIGA, "30 3 * * 1", "2026-03-28T12:00", "03-30 00:30|04-06 00:30", "03-30 00:30|04-06 00:30"),
    (RIGA, "10 30 3 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 00:30", "03-30 00:30|03-31 00:30"),
    # Wildcard jobs: real time goes on, nothing is moved.
    (RIGA, "*/30 * * * *", "2026-03-29T00:10", "03-29 00:30|03-29 01:00", "03-29 00:30|03-29 01:00"),
    (RIGA, "0 * * * *", "2026-03-28T23:30", "03-29 00:00|03-29 01:00", "03-29 00:00|03-29 01:00"),
    (RIGA, "*/15 3 * * *", "2026-03-28T12:00", "03-30 00:00|03-30 00:15", "03-30 00:00|03-30 00:15"),
    (RIGA, "30 */3 * * *", "2026-03-28T22:00", "03-28 22:30|03-29 03:30", "03-28 22:30|03-29 03:30"),
    (NEW_YORK, "30 2 * * *", "2026-03-07T12:00", "03-08 07:00|03-09 06:30", "03-09 06:30|03-10 06:30"),
    # Half an hour: Lord Howe 2026-10-04, 02:00 becomes 02:30 = 15:30 UTC the day before.
    (LORD_HOWE, "15 2 * * *", "2026-10-03T06:00", "10-03 15:30|10-04 15:15", "10-04 15:15|10-05 15:15"),
    (LORD_HOWE, "30 2 * * *", "2026-10-03T06:00", "10-03 15:30|10-04 15:30", "10-03 15:30|10-04 15:30"),
    # Two hours: Troll 2026-03-29, 01:00 becomes 03:00 = 01:00 UTC.
    (TROLL, "30 1 * * *", "2026-03-28T12:00", "03-29 01:00|03-29 23:30", "03-29 23:30|03-30 23:30"),
    (TROLL, "15 1,2 * * *", "2026-03-28T12:00", "03-29 01:00|03-29 23:15", "03-29 23:15|03-30 00:15"),
    # Exactly three hours are no correction yet: Casey 2009-10-18, 02:00 becomes 05:00 = 18:00 UTC the day before.
    ("Antarctica/Casey", "30 3 * * *", "2009-10-17T00:00", "10-17 18:00|10-18 16:30", "10-18 16:30|10-19 16:30"),
    # At midnight, so that the day itself begins late: Santiago 2026-09-06, Beirut 2026-03-29.
    (SANTIAGO, "0 0 * * *", "2026-09-05T12:00", "09-06 04:00|09-07 03:00", "09-07 03:00|09-08 03:00"),
    (SANTIAGO, "30 0 * * 0", "2026-09-05T12:00", "09-06 04:00|09-13 03:30", "09-13 03:30|09-20 03:30"),
    (SANTIAGO, "0 0 6 9 *", "2026-01-01T12:00", "09-06 04:00|09-06 03:00", "09-06 03:00|09-06 03:00"),
    (BEIRUT, "0 0 * * *", "2026-03-28T12:00", "03-28 22:00|03-29 21:00", "03-29 21:00|03-30 21:00"),
    # Negative summer time changes no offset differently: Dublin 2026-03-29, 01:00 becomes 02:00 = 01:00 UTC.
    (DUBLIN, "30 1 * * *", "2026-03-28T12:00", "03-29 01:00|03-30 00:30", "03-30 00:30|03-31 00:30"),
    # A whole day, 2011-12-30, that Apia never had, is no summer time: its points do not exist.
    (APIA, "0 12 * * *", "2011-12-29T00:00", "12-29 22:00|12-30 22:00", "12-29 22:00|12-30 22:00"),
    (APIA, "0 12 30 * *", "2011-12-01T00:00", "01-29 22:00|03-29 22:00", "01-29 22:00|03-29 22:00"),
    (APIA, "0 * * * *", "2011-12-30T08:30", "12-30 09:00|12-30 10:00", "12-30 09:00|12-30 10:00"),
    # Monrovia 1972-01-07: 00:00 becomes 00:44:30; the first valid minute after is 00:45.
    ("Africa/Monrovia", "20 0 * * *", "1972-01-06T12:00", "01-07 00:45|01-08 00:20", "01-08 00:20|01-09 00:20"),
    # 00:44:30 itself exists, and nothing is made up for.
    ("Africa/Monrovia", "30 44 0 * * *", "1972-01-06T12:00", "01-07 00:44|01-08 00:44", "01-07 00:44|01-08 00:44"),
]


@pytest.mark.parametrize(("zone", "expression", "start", "moved", "skipped"), GAPS)
def test_a_local_time_that_does_not_exist(zone: str, expression: str, start: str, moved: str, skipped: str) -> None:
    assert points(Cron(expression, zone), start, 2) == moved.split("|")
    assert points(Cron(expression, zone, dst_gap="skip"), start, 2) == skipped.split("|")


#: zone, expression, start, points with the defaults, points with twice; all in UTC.
OVERLAPS = [
    # Riga 2026-10-25: at 04:00 = 01:00 UTC it is 03:00 again.
    (RIGA, "30 3 * * *", "2026-10-24T12:00", "10-25 00:30|10-26 01:30", "10-25 00:30|10-25 01:30"),
    (RIGA, "0 3 * * *", "2026-10-24T12:00", "10-25 00:00|10-26 01:00", "10-25 00:00|10-25 01:00"),
    (RIGA, "0 4 * * *", "2026-10-24T12:00", "10-25 02:00|10-26 02:00", "10-25 02:00|10-26 02:00"),
    (RIGA, "0,30 3 * * *", "2026-10-25T00:10", "10-25 00:30|10-26 01:00", "10-25 00:30|10-25 01:00"),
    (RIGA, "30 2 * * *", "2026-10-24T12:00", "10-24 23:30|10-26 00:30", "10-24 23:30|10-26 00:30"),
    # Asked between the first and the second time.
    (RIGA, "30 3 * * *", "2026-10-25T00:45", "10-26 01:30|10-27 01:30", "10-25 01:30|10-26 01:30"),
    (RIGA, "30 3 * * *", "2026-10-25T01:10", "10-26 01:30|10-27 01:30", "10-25 01:30|10-26 01:30"),
    # Wildcard jobs: every real interval runs.
    (RIGA, "*/30 * * * *", "2026-10-25T00:10", "10-25 00:30|10-25 01:00", "10-25 00:30|10-25 01:00"),
    (RIGA, "*/30 3 * * *", "2026-10-25T00:10", "10-25 00:30|10-25 01:00", "10-25 00:30|10-25 01:00"),
    (RIGA, "30 * * * *", "2026-10-25T00:10", "10-25 00:30|10-25 01:30", "10-25 00:30|10-25 01:30"),
    (RIGA, "30 */3 * * *", "2026-10-25T00:10", "10-25 00:30|10-25 01:30", "10-25 00:30|10-25 01:30"),
    (RIGA, "*/30 3 25 10 *", "2026-10-25T00:45", "10-25 01:00|10-25 01:30", "10-25 01:00|10-25 01:30"),
    (NEW_YORK, "30 1 * * *", "2026-10-31T12:00", "11-01 05:30|11-02 06:30", "11-01 05:30|11-01 06:30"),
    # Lord Howe 2026-04-05: at 02:00 = 15:00 UTC it is 01:30 again.
    (LORD_HOWE, "45 1 * * *", "2026-04-04T06:00", "04-04 14:45|04-05 15:15", "04-04 14:45|04-04 15:15"),
    (LORD_HOWE, "15 1 * * *", "2026-04-04T06:00", "04-04 14:15|04-05 14:45", "04-04 14:15|04-05 14:45"),
    # Troll 2026-10-25: at 03:00 = 01:00 UTC it is 01:00 again.
    (TROLL, "30 1 * * *", "2026-10-24T12:00", "10-24 23:30|10-26 01:30", "10-24 23:30|10-25 01:30"),
    (TROLL, "30 2 * * *", "2026-10-24T12:00", "10-25 00:30|10-26 02:30", "10-25 00:30|10-25 02:30"),
    # Across midnight: Santiago 2026-04-05 at 00:00 = 03:00 UTC it is 23:00 of the 4th again; Beirut likewise.
    (SANTIAGO, "30 23 * * *", "2026-04-04T12:00", "04-05 02:30|04-06 03:30", "04-05 02:30|04-05 03:30"),
    (SANTIAGO, "0 0 * * *", "2026-04-04T12:00", "04-05 04:00|04-06 04:00", "04-05 04:00|04-06 04:00"),
    (BEIRUT, "30 23 * * *", "2026-10-24T12:00", "10-24 20:30|10-25 21:30", "10-24 20:30|10-24 21:30"),
    (DUBLIN, "30 1 * * *", "2026-10-24T12:00", "10-25 00:30|10-26 01:30", "10-25 00:30|10-25 01:30"),
    # Exactly three hours: Casey 2010-03-05, at 02:00 = 15:00 UTC the day before it is 23:00 again.
    ("Antarctica/Casey", "30 0 * * *", "2010-03-04T00:00", "03-04 13:30|03-05 16:30", "03-04 13:30|03-04 16:30"),
    # Kwajalein changed sides of the date line and lived most of 1969-09-30 twice: a corrected calendar, so both run.
    ("Pacific/Kwajalein", "0 12 * * *", "1969-09-29T02:00", "09-30 01:00|10-01 00:00", "09-30 01:00|10-01 00:00"),
]


@pytest.mark.parametrize(("zone", "expression", "start", "once", "twice"), OVERLAPS)
def test_a_local_time_that_comes_twice(zone: str, expression: str, start: str, once: str, twice: str) -> None:
    assert points(Cron(expression, zone), start, 2) == once.split("|")
    assert points(Cron(expression, zone, dst_overlap="twice"), start, 2) == twice.split("|")


@pytest.mark.parametrize("zone", [RIGA, NEW_YORK, LORD_HOWE, TROLL, SANTIAGO, BEIRUT, APIA, DUBLIN, "Asia/Tehran"])
def test_a_daily_job_runs_exactly_once_on_every_local_day(zone: str) -> None:
    for hour in (0, 1, 2, 3, 23):
        cron = Cron(f"30 {hour} * * *", zone)
        days = []
        point = cron.next_after(utc("2025-01-01T12:00"))
        while point is not None and point < utc("2027-01-01T00:00"):
            days.append(point.astimezone(ZoneInfo(zone)).date())
            point = cron.next_after(point)
        assert {later - earlier for earlier, later in pairwise(days)} == {timedelta(days=1)}


def test_the_two_instants_of_a_local_time_that_comes_twice_have_answers_of_their_own() -> None:
    cron, first = Cron("*/10 * * * *"), datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    found = [cron.next_after(first.replace(fold=fold)) for fold in (0, 1)]
    assert found == [datetime(2026, 10, 25, hour, 40, tzinfo=UTC) for hour in (0, 1)]


def test_a_minute_by_minute_job_runs_in_every_real_minute_of_a_year() -> None:
    for zone in (RIGA, LORD_HOWE, TROLL, SANTIAGO):
        cron = Cron("* * * * *", zone)
        assert cron.count_between(utc("2026-01-01T00:00"), utc("2026-12-31T23:59")) == 365 * 1440


def transitions_on_file(zone: str) -> list[tuple[int, int]]:
    """Read (second, offset) of each change since 1970 from the compiled file itself (RFC 9636, version 2 data)."""
    for folder in (*TZPATH, str(files("tzdata") / "zoneinfo")):
        if (Path(folder) / zone).is_file():
            data = (Path(folder) / zone).read_bytes()
            break
    else:
        pytest.skip(f"no file of {zone}")
    at = 0
    for size in (4, 8):
        utcs, stds, leaps, times, types, chars = struct.unpack(">6L", data[at + 20 : at + 44])
        body = at + 44
        at = body + times * (size + 1) + types * 6 + chars + leaps * (size + 4) + stds + utcs
    seconds = struct.unpack(f">{times}q", data[body : body + times * 8])
    indices = data[body + times * 8 : body + times * 9]
    offsets = [struct.unpack(">l", data[body + times * 9 + n * 6 :][:4])[0] for n in range(types)]
    found, before = [], offsets[0]
    for second, index in zip(seconds, indices, strict=True):
        if second >= 0 and offsets[index] != before:
            found.append((second, offsets[index]))
        before = offsets[index]
    return found


@pytest.mark.parametrize(
    "zone",
    [
        RIGA,
        NEW_YORK,
        LORD_HOWE,
        TROLL,
        SANTIAGO,
        BEIRUT,
        APIA,
        DUBLIN,
        "Africa/Cairo",
        "Africa/Casablanca",
        "Asia/Gaza",
    ],
)
def test_the_stretches_of_a_zone_are_those_on_file(zone: str) -> None:
    expected = transitions_on_file(zone)
    assert expected
    found = {}
    second, last = 0, expected[-1][0]
    while second <= last:
        start, end, offset, before = find_stretch(get_zone(zone), second)
        assert start <= second < end
        if offset != before and start > 0:
            found[start] = offset
        second = end
    assert list(found.items()) == expected
