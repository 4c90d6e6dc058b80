"""Which expressions are accepted, what they mean, and what the refusals say."""

import contextlib
import time
from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.recurrence import Cron, parse_every

START = datetime(2026, 1, 1, tzinfo=UTC)


def points(expression: str, count: int, start: datetime = START, key: str = "") -> list[str]:
    recurrence = Cron(expression, key=key)
    found = []
    instant = start - timedelta(microseconds=1)
    for _ in range(count):
        instant = recurrence.next_after(instant)
        found.append(f"{instant:%m-%d %H:%M:%S}".removesuffix(":00"))
    return found


def values(expression: str, key: str) -> tuple[list[int], ...]:
    """Return what the six fields match."""
    fields = Cron(expression, key=key).fields
    masks = (fields.seconds, fields.minutes, fields.hours, fields.rule.days, fields.months, fields.rule.weekdays)
    return tuple([value for value in range(60) if mask >> value & 1] for mask in masks)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", ["01-01 00:00", "01-01 00:01"]),
        ("  5\t0\n* *  * ", ["01-01 00:05", "01-02 00:05"]),
        ("*/20 3 * * *", ["01-01 03:00", "01-01 03:20", "01-01 03:40", "01-02 03:00"]),
        ("40/10 3 * * *", ["01-01 03:40", "01-01 03:50", "01-02 03:40"]),
        ("59/1 * * * *", ["01-01 00:59", "01-01 01:59"]),
        ("10-12,1,11 0 * * *", ["01-01 00:01", "01-01 00:10", "01-01 00:11", "01-01 00:12", "01-02 00:01"]),
        ("9-9 0 * * *", ["01-01 00:09", "01-02 00:09"]),
        ("9-9/1 0 * * *", ["01-01 00:09", "01-02 00:09"]),
        ("*/60 0 * * *", ["01-01 00:00", "01-02 00:00"]),
        ("0 0 1 FEB,apr *", ["02-01 00:00", "04-01 00:00", "02-01 00:00"]),
        ("0 0 1 nov-DEC *", ["11-01 00:00", "12-01 00:00"]),
        ("0 0 1 6-6 *", ["06-01 00:00", "06-01 00:00"]),
        ("0 0 ? * MON-wed", ["01-05 00:00", "01-06 00:00", "01-07 00:00", "01-12 00:00"]),
        ("0 0 * * 5-7", ["01-02 00:00", "01-03 00:00", "01-04 00:00", "01-09 00:00"]),
        ("0 0 * * 7", ["01-04 00:00", "01-11 00:00"]),
        ("0 0 * * 7-7", ["01-04 00:00", "01-11 00:00"]),
        ("0 0 * * 1-7/3", ["01-01 00:00", "01-04 00:00", "01-05 00:00", "01-08 00:00"]),
        ("0 0 * * 0-7", ["01-01 00:00", "01-02 00:00"]),
        ("0 0 * * Mon/2", ["01-02 00:00", "01-05 00:00", "01-07 00:00", "01-09 00:00"]),
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00", "04-30 00:00"]),
        ("0 0 l-3 * *", ["01-28 00:00", "02-25 00:00"]),
        ("0 0 L-29,L-30 * *", ["01-01 00:00", "01-02 00:00", "03-01 00:00", "03-02 00:00", "04-01 00:00"]),
        ("0 0 LW * *", ["01-30 00:00", "02-27 00:00", "03-31 00:00", "04-30 00:00", "05-29 00:00"]),
        ("0 0 15W * *", ["01-15 00:00", "02-16 00:00", "03-16 00:00", "04-15 00:00", "05-15 00:00"]),
        ("0 0 1W * *", ["01-01 00:00", "02-02 00:00", "03-02 00:00", "04-01 00:00", "05-01 00:00", "06-01 00:00"]),
        ("0 0 1W 8 *", ["08-03 00:00"]),  # Saturday the 1st: not in July
        ("0 0 31W 5,8 *", ["05-29 00:00", "08-31 00:00"]),  # Sunday the 31st: not in June
        ("0 0 31W 2,4 *", ["02-27 00:00", "04-30 00:00"]),  # the nearest within a shorter month
        ("0 0 1W,20,L * *", ["01-01 00:00", "01-20 00:00", "01-31 00:00", "02-02 00:00"]),
        ("0 0 * * 5#2", ["01-09 00:00", "02-13 00:00", "03-13 00:00"]),
        ("0 0 * * 1#5", ["03-30 00:00", "06-29 00:00"]),
        ("0 0 * * 5L", ["01-30 00:00", "02-27 00:00"]),
        ("0 0 * * FRI#L", ["01-30 00:00", "02-27 00:00"]),
        ("0 0 * * friL", ["01-30 00:00", "02-27 00:00"]),
        ("0 0 * * 7L", ["01-25 00:00", "02-22 00:00"]),
        ("0 0 * * 1#1,FRI", ["01-02 00:00", "01-05 00:00", "01-09 00:00"]),
        ("@hourly", ["01-01 00:00", "01-01 01:00"]),
        ("@Daily", ["01-01 00:00", "01-02 00:00"]),
        ("@midnight", ["01-01 00:00", "01-02 00:00"]),
        ("@weekly", ["01-04 00:00", "01-11 00:00"]),
        (" @monthly ", ["01-01 00:00", "02-01 00:00"]),
        ("@yearly", ["01-01 00:00", "01-01 00:00"]),
        ("@annually", ["01-01 00:00", "01-01 00:00"]),
        ("*/25 * * * * *", ["01-01 00:00", "01-01 00:00:25", "01-01 00:00:50", "01-01 00:01"]),
        ("15,45 30 12 * * ?", ["01-01 12:30:15", "01-01 12:30:45", "01-02 12:30:15"]),
    ],
)
def test_an_expression_means(expression: str, expected: list[str]) -> None:
    assert points(expression, len(expected)) == expected


@pytest.mark.parametrize("day", [29, 30, 31])
def test_the_nearest_weekday_to_a_day_that_a_month_lacks_is_its_last_working_day(day: int) -> None:
    nearest, last = (Cron(f"0 0 {item} * *").fields.day_masks for item in (f"{day}W", "LW"))
    shorter = range(day - 28)  # months of 28 days, of 29, of 30, each beginning on each weekday
    assert [nearest[length] for length in shorter] == [last[length] for length in shorter]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 13 * 5", ["01-02", "01-09", "01-13", "01-16"]),  # either
        ("0 0 13 * *", ["01-13", "02-13"]),
        ("0 0 * * 5", ["01-02", "01-09"]),
        ("0 0 */2 * 5", ["01-09", "01-23", "02-13"]),  # both, because one begins with *
        ("0 0 1-31/2 * 5", ["01-01", "01-02", "01-03", "01-05"]),  # either: the same days, but no leading *
        ("0 0 1-7 * */2", ["01-01", "01-03", "01-04", "01-06"]),
        ("0 0 1-7 * *,5", ["01-01", "01-02", "01-03", "01-04"]),
        ("0 0 5,* * 5", ["01-01", "01-02", "01-03"]),  # either: the * does not lead
        ("0 0 13 * ?", ["01-13", "02-13"]),
        ("0 0 31 2 1", ["02-02", "02-09"]),  # the 31st never comes, Mondays do
        ("0 0 L * 5#1", ["01-02", "01-31", "02-06", "02-28"]),
        ("0 0 15W * 0L", ["01-15", "01-25", "02-16", "02-22"]),
        ("0 0 */2 * 5L", ["02-27", "03-27", "05-29", "07-31"]),
    ],
)
def test_day_of_month_and_day_of_week_follow_vixie(expression: str, expected: list[str]) -> None:
    assert [point.split()[0] for point in points(expression, len(expected))] == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("61 * * * *", ["minute", "'61'", "0-59"]),
        ("60 * * * *", ["minute", "'60'", "0-59"]),
        ("0 24 * * *", ["hour", "'24'", "0-23"]),
        ("0 0 0 * *", ["day-of-month", "'0'", "1-31"]),
        ("0 0 32 * *", ["day-of-month", "'32'", "1-31"]),
        ("0 0 * 0 *", ["month", "'0'", "1-12"]),
        ("0 0 * 13 *", ["month", "'13'", "1-12", "JAN-DEC"]),
        ("0 0 * * 8", ["day-of-week", "'8'", "0-7"]),
        ("60 0 0 * * *", ["second", "'60'", "0-59"]),
        ("0-70 * * * *", ["minute", "'0-70'", "0-59"]),
        (f"{'9' * 100} * * * *", ["minute", "0-59"]),
        ("50-10 * * * *", ["minute", "'50-10'", "reversed", "50-59,0-10"]),
        ("0 22-2 * * *", ["hour", "reversed", "22-23,0-2"]),
        ("0 0 * 11-1 *", ["month", "reversed", "11-12,1"]),
        ("0 0 * * FRI-SUN", ["day-of-week", "reversed", "5-6,0"]),
        ("0 0 * * 7-2", ["day-of-week", "reversed", "0-2"]),
        ("*/61 * * * *", ["minute", "'*/61'", "larger", "0-59", "every"]),
        ("*/90 * * * *", ["minute", "larger", "every"]),
        ("0 */25 * * *", ["hour", "larger"]),
        ("0 0 */32 * *", ["day-of-month", "larger"]),
        ("10-12/4 * * * *", ["minute", "larger", "10-12", "Write 10"]),
        ("50/20 * * * *", ["minute", "larger", "Write 50"]),
        ("H/61 * * * *", ["minute", "larger"]),
        ("*/0 * * * *", ["minute", "step 0"]),
        ("1-5/0 * * * *", ["minute", "step 0"]),
        ("H/0 * * * *", ["minute", "step 0"]),
        ("R * * * *", ["minute", "random", "Write H"]),
        ("R(0-29) * * * *", ["random", "Write H"]),
        ("R/15 * * * *", ["random", "Write H"]),
        ("H(0-99) * * * *", ["minute", "'H(0-99)'", "0-59", "Write H(0-59)"]),
        ("H(30-10) * * * *", ["minute", "smaller first", "Write H(10-30)"]),
        ("H(40-99)/5 * * * *", ["minute", "Write H(40-59)/5"]),
        ("0 0 * * H(0-7)", ["day-of-week", "0-6", "Write H(0-6)"]),
        ("0 0 * * H(1-7)", ["day-of-week", "0-6", "0 is Sunday", "Write H(1-6)"]),
        ("0 0 H(0-31) * *", ["day-of-month", "1-31", "Write H(1-31)"]),
        ("H5 * * * *", ["minute", "H(0-29)"]),
        ("0 0 31 2 *", ["never comes", "'31'", "'2'"]),
        ("0 0 30 FEB ?", ["never comes"]),
        ("0 0 31 4,6,9,11 *", ["never comes"]),
        ("0 0 30,31 2 *", ["never comes"]),
        ("0 0 30 2 */7", ["never comes", "day-of-week '*/7'"]),
        ("@reboot", ["@reboot"]),
        ("@every 1h30m", ["kind 'every'"]),
        ("@unknown", ["not a macro", "@hourly"]),
        ("@daily 5", ["not a macro"]),
        ("TZ=Europe/Riga 0 0 * * *", ["time zone", "'timezone'"]),
        ("CRON_TZ=UTC 0 0 * * *", ["time zone", "'timezone'"]),
        ("0 0 0 1 1 * 2027", ["year", "'2027'"]),
        ("0 0 12 * * +MON", ["day-of-week", "+"]),
        ("0 +12 * * *", ["hour", "+"]),
        ("", ["empty"]),
        ("   ", ["empty"]),
        ("* * * *", ["4 fields"]),
        ("* * * * * * * *", ["8 fields"]),
        ("xyz", ["1 field"]),
        ("0 0 * * XYZ", ["day-of-week", "'XYZ'", "SUN-SAT"]),
        ("0 0 * MON *", ["month", "'MON'", "JAN-DEC"]),
        ("0 0 * * MONDAY", ["day-of-week", "write MON"]),
        ("MON * * * *", ["minute", "'MON'"]),
        ("-5 * * * *", ["minute", "negative"]),
        ("1.5 * * * *", ["minute", "'1.5'"]),
        ("1,,2 * * * *", ["minute", "comma"]),
        (", * * * *", ["minute", "comma"]),
        ("1- * * * *", ["minute", "'1-'"]),
        ("1-2-3 * * * *", ["minute"]),
        ("*/ * * * *", ["minute"]),
        ("/5 * * * *", ["minute"]),
        ("*-5 * * * *", ["minute", "range"]),
        ("** * * * *", ["minute"]),
        ("? * * * *", ["minute", "?", "Write *"]),
        ("0 ? * * *", ["hour", "?", "Write *"]),
        ("0 0 * ? *", ["month", "?", "Write *"]),
        ("0 0 ?,5 * *", ["day-of-month", "?"]),
        ("0 0 ?/2 * *", ["day-of-month", "?"]),
        ("L * * * *", ["minute", "day fields"]),
        ("0 0 * * L", ["day-of-week", "5L"]),
        ("0 0 L-31 * *", ["day-of-month", "L-30"]),
        ("0 0 L-3W * *", ["day-of-month", "Write L-3", "LW"]),
        ("0 0 10-15W * *", ["day-of-month", "15W"]),
        ("0 0 W15 * *", ["day-of-month", "15W"]),
        ("0 0 32W * *", ["day-of-month", "1-31"]),
        ("0 0 * * 5W", ["day-of-week", "day-of-month", "15W"]),
        ("0 0 * * 5#6", ["day-of-week", "1-5"]),
        ("0 0 * * 5#0", ["day-of-week", "1-5"]),
        ("0 0 * * 9#1", ["day-of-week", "0-7"]),
        ("0 0 * * 1-5#2", ["day-of-week", "5#2"]),
        ("0 0 5#2 * *", ["day-of-month", "day-of-week"]),
        ("1 * * * ٣", ["ASCII"]),
        ("0\u00a00\u00a0*\u00a0* *", ["ASCII"]),
        ("\0 * * * *", ["minute"]),
        ("0 0 1,%s1 * *" % ("1," * 130), ["255"]),
    ],
)
def test_a_refusal_names_the_field_the_value_and_a_way_out(expression: str, words: list[str]) -> None:
    with pytest.raises(InvalidRecurrence) as caught:
        Cron(expression)
    assert caught.value.field == "cron"
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("expression", "quoted"),
    [
        ("every Weekday at nine", "'every Weekday at nine'"),
        ("0 0 * * Fryday", "'Fryday'"),
        ("0 9 * * mon,tue+wed", "'tue+wed'"),
        ("h(50-70) * * * *", "'h(50-70)'"),
        ("@Fortnightly", "'@Fortnightly'"),
        ("tz=Europe/Riga 0 9 * * *", "'tz=Europe/Riga'"),
        ("0 0 30 Feb *", "'Feb'"),
        (f"{'x' * 60} * * * *", f"'{'x' * 60}'"),
    ],
)
def test_a_refusal_quotes_what_was_typed_as_it_was_typed(expression: str, quoted: str) -> None:
    with pytest.raises(InvalidRecurrence) as caught:
        Cron(expression)
    assert quoted in str(caught.value)


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", ["*"]])
def test_an_expression_that_is_no_text_is_refused(expression: object) -> None:
    with pytest.raises(InvalidRecurrence):
        Cron(expression)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 31 2 *",
        "* " * 127,
        "(a+)+" * 51,
        ",".join(["*"] * 120) + " * * * *",
        "0-59," * 48 + "0-59 * * * *",
        "0 0 " + "31W," * 50 + "1W 2 *",
        "0 0 * * " + "1#5," * 50 + "1#5",
        "H(" * 120 + " * * * *",
        "9" * 245 + " * * * *",
    ],
)
def test_a_hostile_expression_is_settled_within_10_ms(expression: str) -> None:
    taken = []
    for attempt in range(3):  # the best of three, each a new text, so that no cache helps
        begin = time.thread_time()
        with contextlib.suppress(InvalidRecurrence):
            Cron(" " * attempt + expression)
        taken.append(time.thread_time() - begin)
    assert min(taken) < 0.010


def test_h_is_stable_spread_and_within_its_range() -> None:
    assert points("H H * * *", 2, key="report") == points("h h * * *", 2, key="report")
    # Pinned: another hash would move everybody's schedules.
    assert values("H H H H H", "report") == ([0], [38], [23], [9], [11], [3])
    minutes, hours, days = set(), set(), set()
    for number in range(400):
        key = f"schedule {number}"
        _, [minute], [hour], [day], _, _ = values("H(10-29) H H * *", key)
        minutes.add(minute)
        hours.add(hour)
        days.add(day)
    assert minutes == set(range(10, 30))
    assert hours == set(range(24))
    assert days == set(range(1, 29))  # a day that every month has


def test_h_with_a_step_keeps_the_step() -> None:
    starts = set()
    for number in range(100):
        minutes = [point[-2:] for point in points("H/15 * * * *", 4, key=str(number))]
        starts.add(minutes[0])
        assert [int(minute) - int(minutes[0]) for minute in minutes] == [0, 15, 30, 45]
        assert 10 <= int(points("H(10-19)/10 * * * *", 1, key=str(number))[0][-2:]) <= 19
    assert len(starts) == 15
    # Also where the second value is the last one of the range.
    minutes = {tuple(values("H(0-10)/10 * * * *", str(number))[1]) for number in range(100)}
    assert minutes == {(0, 10), *((minute,) for minute in range(1, 10))}


def test_h_never_names_a_day_that_never_comes() -> None:
    for number in range(200):
        assert Cron("0 0 H 2 *", key=str(number)).next_after(START) is not None


def test_a_macro_does_not_depend_on_the_key() -> None:
    assert points("@daily", 3, key="a") == points("@daily", 3, key="b") == points("0 0 * * *", 3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("@every 1h30m", 5400),
        (" @EVERY 90s ", 90),
        ("@every 1.5h", 5400),
        ("@every 1d2h3m4s500ms", 93784.5),
        ("@every 1m", 60),
        ("@every 1ms", 0.001),
        ("@every", None),
        ("@every 0s", None),
        ("@every 5", None),
        ("@every -5m", None),
        ("@every 1h 30m", None),
        ("@every 1hx", None),
        ("@every x1h", None),
        ("@every 999999999d999999999d", None),
        ("1h30m", None),
        ("* * * * *", None),
        ("", None),
    ],
)
def test_at_every_is_read_as_an_interval(text: str, seconds: float | None) -> None:
    assert parse_every(text) == (None if seconds is None else timedelta(seconds=seconds))
