"""Words are short for the well-known shapes, and literal for everything else."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.timing import Cron, Every, Once, Windowed, describe

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute, Europe/Riga"),
        ("*/1 * * * *", "every minute, Europe/Riga"),
        ("*/5 * * * *", "every 5 minutes, Europe/Riga"),
        ("*/5 * * * ?", "every 5 minutes, Europe/Riga"),
        ("* * * * * *", "every second, Europe/Riga"),
        ("*/10 * * * * *", "every 10 seconds, Europe/Riga"),
        ("0 * * * *", "every hour, Europe/Riga"),
        ("@hourly", "every hour, Europe/Riga"),
        ("5 * * * *", "every hour at minute 5, Europe/Riga"),
        ("0 */2 * * *", "every 2 hours, Europe/Riga"),
        ("0 9 * * 1-5", "at 09:00, Monday to Friday, Europe/Riga"),
        ("0 9 * * mon-FRI", "at 09:00, Monday to Friday, Europe/Riga"),
        ("30 6,18 * * *", "at 06:30 and 18:30, every day, Europe/Riga"),
        ("0 18,6,12,6 * * *", "at 06:00, 12:00 and 18:00, every day, Europe/Riga"),
        ("0 9 * * 6-7", "at 09:00, Saturday to Sunday, Europe/Riga"),
        ("0 9 * * 0-7", "at 09:00, every day, Europe/Riga"),
        ("0 9 * * SUN,wed,1", "at 09:00, Monday, Wednesday and Sunday, Europe/Riga"),
        ("@weekly", "at 00:00, Sunday, Europe/Riga"),
        ("0 9 15 * *", "at 09:00, on day 15 of the month, Europe/Riga"),
        ("0 9 L * *", "at 09:00, on the last day of the month, Europe/Riga"),
        ("0 9 24 DEC *", "at 09:00, on 24 December, Europe/Riga"),
        ("@yearly", "at 00:00, on 1 January, Europe/Riga"),
        ("15 0 9 * * *", "at 09:00:15, every day, Europe/Riga"),
        ("*/15 * * * 1-5", "every 15 minutes, Monday to Friday, Europe/Riga"),
        ("*/5 * * * * 1", "every 5 seconds, Monday, Europe/Riga"),
        # No well-known shape, or words would say less than the expression.
        ("0 0 29 2 *", "cron 0 0 29 2 * (Europe/Riga)"),
        ("0  0 31 *\t*", "cron 0 0 31 * * (Europe/Riga)"),
        ("*/7 * * * *", "cron */7 * * * * (Europe/Riga)"),
        ("*/60 * * * *", "cron */60 * * * * (Europe/Riga)"),
        ("0 */5 * * *", "cron 0 */5 * * * (Europe/Riga)"),
        ("*/5 9 * * *", "cron */5 9 * * * (Europe/Riga)"),
        ("* 9 * * *", "cron * 9 * * * (Europe/Riga)"),
        ("0,30 9 * * *", "cron 0,30 9 * * * (Europe/Riga)"),
        ("5 */2 * * *", "cron 5 */2 * * * (Europe/Riga)"),
        ("0 9 13 * 5", "cron 0 9 13 * 5 (Europe/Riga)"),
        ("0 9 1,15 * *", "cron 0 9 1,15 * * (Europe/Riga)"),
        ("0 9 * 6 *", "cron 0 9 * 6 * (Europe/Riga)"),
        ("0 9 * * 5#2", "cron 0 9 * * 5#2 (Europe/Riga)"),
        ("0 9 * * */2", "cron 0 9 * * */2 (Europe/Riga)"),
        ("30 * * * * *", "cron 30 * * * * * (Europe/Riga)"),
        ("30 */5 * * * *", "cron 30 */5 * * * * (Europe/Riga)"),
        ("H/15 * * * *", "cron H/15 * * * * (Europe/Riga)"),
    ],
)
def test_a_cron_expression_in_words(expression: str, words: str) -> None:
    assert describe(Cron(expression, "Europe/Riga")) == words


def test_h_is_shown_as_what_it_became() -> None:
    cron = Cron("H 9 * * *", key="report")
    minute = int(cron.fields.source[1])
    assert describe(cron) == f"at 09:{minute:02}, every day, UTC"


@pytest.mark.parametrize(
    ("every", "words"),
    [
        (timedelta(minutes=90), "every 1 h 30 min"),
        (timedelta(minutes=15), "every 15 min"),
        (timedelta(days=1), "every 1 d"),
        (timedelta(days=2, seconds=1), "every 2 d 1 s"),
        (timedelta(milliseconds=1500), "every 1 s 500 ms"),
        (timedelta(microseconds=1001), "every 1 ms 1 µs"),
    ],
)
def test_an_interval_in_words(every: timedelta, words: str) -> None:
    assert describe(Every(every, anchor=NOON)) == words


def test_a_single_point_and_a_window_in_words() -> None:
    assert describe(Once(datetime(2026, 11, 21, 10, tzinfo=UTC))) == "once at 2026-11-21 10:00 UTC"
    assert describe(Once(NOON + timedelta(seconds=5))) == "once at 2026-11-21 12:00:05 UTC"
    assert describe(Once(NOON + timedelta(microseconds=5))) == "once at 2026-11-21 12:00:00.000005 UTC"
    hourly = Cron("@hourly")
    assert describe(Windowed(hourly, start=NOON)) == "every hour, UTC, from 2026-11-21 12:00 UTC"
    assert describe(Windowed(hourly, end=NOON)) == "every hour, UTC, until 2026-11-21 12:00 UTC"
    assert describe(Windowed(hourly)) == "every hour, UTC"
