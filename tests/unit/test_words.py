"""Words say exactly when a cron expression matches: same words, same times."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from django.utils import translation
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.recurrence import Cron, Every, Once, Windowed, parse_every
from django_delayq.recurrence.phrases import offer, understand
from django_delayq.recurrence.words import describe
from tests.unit.timing.test_cron_points import DAYS, MONTHS, QUIET, WEEKDAYS, accepted, fields

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
START = datetime(2024, 1, 31, 22, 58, 57, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("0 * * * *", "every hour"),
        ("5 * * * *", "every hour at minute 5"),
        ("0 */2 * * *", "every 2 hours"),
        ("0 9 * * 1-5", "at 09:00, Monday to Friday"),
        ("30 6,18 * * *", "at 06:30 and 18:30, every day"),
        ("0 */5 * * *", "at 00:00, 05:00, 10:00, 15:00 and 20:00, every day"),
        ("15 0 9 * * *", "at 09:00:15, every day"),
        # Rhythms within hours; */7 is none, its last interval is short.
        ("*/7 * * * *", "every hour at minutes 0 to 56 in steps of 7"),
        ("*/5 9 * * *", "every 5 minutes from 09:00 to 09:55, every day"),
        ("* 9 * * *", "every minute from 09:00 to 09:59, every day"),
        ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 to 17:45, Monday to Friday"),
        ("30 9-17 * * *", "every hour from 09:30 to 17:30, every day"),
        ("5 */2 * * *", "at minute 5, in hours 0 to 22 in steps of 2, every day"),
        ("*/15 * * * 1-5", "every 15 minutes, Monday to Friday"),
        # Seconds.
        ("30 * * * * *", "every minute, at second 30"),
        ("30 0 * * * *", "every hour at minute 0, at second 30"),
        ("*/5 * * * * 1", "every 5 seconds, Monday"),
        ("*/10 0-5 9 * * *", "every 10 seconds, at minutes 0 to 5, in hour 9, every day"),
        # Days of the week: Monday first, runs over the end of the week are one.
        ("0 9 * * 6-7", "at 09:00, Saturday and Sunday"),
        ("0 9 * * 5-7,1", "at 09:00, Friday to Monday"),
        ("0 9 * * SUN,wed,1", "at 09:00, Monday, Wednesday and Sunday"),
        ("0 9 * * 5#2", "at 09:00, on the second Friday of the month"),
        ("0 9 * * 5L", "at 09:00, on the last Friday of the month"),
        ("0 9 * * FRI#L,MON", "at 09:00, on Monday and the last Friday of the month"),
        # Days of the month.
        ("0 9 15 * *", "at 09:00, on day 15 of the month"),
        ("0 9 1,15 * *", "at 09:00, on days 1 and 15 of the month"),
        ("0 9 L * *", "at 09:00, on the last day of the month"),
        ("0 9 L-1 * *", "at 09:00, on the day before the last day of the month"),
        ("0 9 L-3 * *", "at 09:00, on the day 3 days before the last day of the month"),
        ("0 9 LW * *", "at 09:00, on the last working day of the month"),
        ("0 9 31W * *", "at 09:00, on the last working day of the month"),
        ("0 9 15W * *", "at 09:00, on the working day nearest to day 15 of the month"),
        ("0 9 30W * *", "at 09:00, on the working day nearest to day 30 of the month, or to its last day"),
        ("0 9 24 DEC *", "at 09:00, on 24 December"),
        ("0 9 * 6 *", "at 09:00, every day, in June"),
        ("0 9 L 3-5,12 *", "at 09:00, on the last day of the month, in March to May and December"),
        # Both fields of days: either, unless one begins with * (Vixie).
        ("0 9 13 * 5", "at 09:00, on day 13 of the month or on Friday"),
        ("0 9 */2 * 1", "at 09:00, Monday, but only on days 1 to 31 in steps of 2 of the month"),
        ("0 9 1-31 * 1", "at 09:00, every day"),
    ],
)
def test_a_cron_expression_in_words(expression: str, words: str) -> None:
    assert describe(Cron(expression, "Europe/Riga")) == f"{words}, Europe/Riga"


def test_h_is_said_as_what_it_became() -> None:
    cron = Cron("H 9 * * *", key="report")
    minute = cron.fields.minutes.bit_length() - 1
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
    assert describe(Once(NOON + timedelta(microseconds=5))) == "once at 2026-11-21 12:00:00 UTC"
    hourly = Cron("@hourly")
    assert describe(Windowed(hourly, start=NOON)) == "every hour, UTC, from 2026-11-21 12:00 UTC"
    assert describe(Windowed(hourly, end=NOON)) == "every hour, UTC, until 2026-11-21 12:00 UTC"
    assert describe(Windowed(hourly)) == "every hour, UTC"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * 1-5", "um 09:00, Montag bis Freitag, UTC"),
        ("*/5 * * * *", "alle 5 Minuten, UTC"),
        ("* * * * *", "jede Minute, UTC"),
        ("0 9 13 * 5", "um 09:00, Tag 13 des Monats oder Freitag, UTC"),
        ("0 9 24 12 *", "um 09:00, am 24. Dezember, UTC"),
        ("0 9 L-3 * 5#2", "um 09:00, 3 Tage vor dem letzten Tag des Monats oder zweiter Freitag des Monats, UTC"),
    ],
)
def test_the_words_are_translated(expression: str, words: str) -> None:
    with translation.override("de"):
        assert describe(Cron(expression)) == words


def points(cron: Cron) -> tuple[datetime, ...]:
    found = [START]
    while len(found) < 20 and (point := cron.next_after(found[-1])) is not None:
        found.append(point)
    return tuple(found)


def test_expressions_with_the_same_words_have_the_same_points() -> None:
    """Few values, so that many of these have the same words."""
    seen: dict[str, tuple[datetime, ...]] = {}
    together = 0
    minutes = ("0", "*", "*/30", "0,30", "0-59", "5", "0-59/30", "0-30/15")
    hours = ("*", "0-23", "9", "9-12", "*/12", "0,12", "9,10,11,12")
    days = ("*", "1", "1-31", "?", "L-0", "L", "LW", "31W")
    weekdays = ("*", "1", "0-6", "1-7", "5L", "5#L", "*,5", "5,*")
    for minute, hour, day, weekday in product(minutes, hours, days, weekdays):
        cron = Cron(f"{minute} {hour} {day} * {weekday}")
        words = describe(cron)
        assert words.endswith(", UTC") and "%" not in words and "  " not in words
        together += words in seen
        found = points(cron)
        assert found == seen.setdefault(words, found), (cron, words)
    assert together > 500


#: Words -> the first expression that had them in this process, and its points.
_seen: dict[str, tuple[str, tuple[datetime, ...]]] = {}


@settings(QUIET, max_examples=400)
@given(st.tuples(fields(0, 59), fields(0, 59), fields(0, 23), DAYS, MONTHS, WEEKDAYS).map(" ".join))
def test_any_two_expressions_with_the_same_words_have_the_same_points(expression: str) -> None:
    cron = accepted(expression)
    found = points(cron)
    other, expected = _seen.setdefault(describe(cron), (expression, found))
    assert found == expected, (expression, other)


PHRASES = {
    "every 15 minutes": "*/15 * * * *",
    "every ٣ minutes": "*/3 * * * *",
    "daily at 18:30": "30 18 * * *",
    "on the 1st at noon": "0 12 1 * *",
    "Every day at 9am": "0 9 * * *",
    "12am daily": "0 0 * * *",
    "at 12 pm on Sundays": "0 12 * * 0",
    "every weekday at 9 o'clock": "0 9 * * 1-5",
    "mon-fri 9:30pm": "30 21 * * 1-5",
    "friday to monday at 9": "0 9 * * 0,1,5,6",
    "mon, thu at 9:00 and 17:00": "0 9,17 * * 1,4",
    "on the 15th and 1st at 7": "0 7 1,15 * *",
    "on the last day of the month at 23:45": "45 23 L * *",
    "every hour": "0 * * * *",
    "every 2 hours on weekends": "0 */2 * * 0,6",
    "every second": "* * * * * *",
    "every 30 seconds": "*/30 * * * * *",
    "jeden Werktag um 9": "0 9 * * 1-5",
    "alle 15 Minuten": "*/15 * * * *",
    "täglich um 18.30 Uhr": "30 18 * * *",
    "am 1. um 12 Uhr": "0 12 1 * *",
    "um 9 am 1.": "0 9 1 * *",
    "montags um 8:00": "0 8 * * 1",
    "Montag bis Freitag um Mitternacht": "0 0 * * 1-5",
    "am letzten Tag des Monats um 7": "0 7 L * *",
    "sa und so um 10": "0 10 * * 0,6",
    "first monday of the month at 8": "0 8 * * 1#1",
    "on the 2nd tuesday of each month at 8am": "0 8 * * 2#2",
    "first monday and third monday of the month at 8": "0 8 * * 1#1,1#3",
    "am ersten Montag im Monat um 8": "0 8 * * 1#1",
    "letzter Freitag des Monats um 18 Uhr": "0 18 * * 5L",
    "last friday of the month": "0 0 * * 5L",
    "every monday": "0 0 * * 1",
    "weekdays": "0 0 * * 1-5",
    "last day of month": "0 0 L * *",
    "weekly on mondays at 9": "0 9 * * 1",
    "weekly": "0 0 * * 0",
    "monthly on the 15th": "0 0 15 * *",
    "monthly at nine": "0 9 1 * *",
    "twice a day": "0 */12 * * *",
    "three times daily": "0 */8 * * *",
    "zweimal täglich": "0 */12 * * *",
    "4 times an hour": "*/15 * * * *",
    "once a day": "0 0 * * *",
    "every two hours": "0 */2 * * *",
}
INTERVALS = {
    "every 90 seconds": "90s",
    "alle 90 Sekunden": "90s",
    "every 7 minutes": "7m",
    "every 36 hours": "36h",
    "every other day": "2d",
    "every 2 weeks": "14d",
}
NO_PHRASES = [
    "", " ", "every", "at 9 and", "at 25:00", "at 9:60", "every weekday at 99", "on the 32nd at 9",
    "on the 0th at 9", "at 9:00 and 18:30", "every 0 minutes", "every 7 minutes on sunday",
    "every 999999999 weeks", "5 times a day at 9", "7 times a day", "0 times a day", "every second monday",
    "first monday", "monday to first friday of the month", "every other day at 9",
    "every day 5 to 9", "every second day", "every 2nd monday at 9", "mon tue at 9", "mon to wed to fri at 9",
    "15.10. um 9", "yesterday at 9", "dinner at 9", "at 9 %", "0 9 * * 1-5", "@daily", "every weekday at 9 or later",
    "daily at 9 " * 20, "at " + "9" * 90,
]  # fmt: skip


@pytest.mark.parametrize(("phrase", "expression"), PHRASES.items())
def test_a_phrase_is_understood_as_an_offer(phrase, expression):
    assert understand(phrase) == expression
    with pytest.raises(InvalidRecurrence):
        Cron(phrase)


@pytest.mark.parametrize(("phrase", "every"), INTERVALS.items())
def test_a_phrase_that_no_expression_says_is_offered_as_an_interval(phrase, every):
    assert understand(phrase) == f"@every {every}"
    assert offer(phrase)[1].startswith("every ")


@pytest.mark.parametrize("phrase", NO_PHRASES)
def test_what_is_no_phrase_is_none(phrase):
    assert understand(phrase) is None


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("expression", [each for each in PHRASES.values() if each != "0 9 * * 0,1,5,6"])
def test_the_words_of_what_a_phrase_means_are_a_phrase_that_means_the_same(expression, language):
    with translation.override(language):
        words = describe(Cron(expression)).removesuffix(", UTC")
    again = understand(words)
    assert again is not None, words
    assert Cron(again).fields == Cron(expression).fields


@settings(QUIET, max_examples=60)
@example(hours=[0, 12], minute=0, days="* * *")
@given(
    st.lists(st.integers(0, 23), min_size=1, max_size=3, unique=True),
    st.integers(0, 59),
    st.one_of(
        st.just("* * *"),
        st.integers(1, 31).map("{} * *".format),
        st.integers(0, 6).map("* * {}".format),
        st.sampled_from(["* * 0-2", "* * 1-5", "* * 2-6", "* * 3-5"]),
    ),
)
def test_what_words_claim_is_read_back_as_what_runs(hours, minute, days):
    cron = Cron(f"{minute} {','.join(map(str, hours))} {days}")
    again = understand(describe(cron).removesuffix(", UTC"))
    assert again is not None
    read = Cron(again).fields
    # "every 12 hours" is read as "*/12", which differs from "0,12" around a change of the clock only.
    assert (replace(read, fixed=cron.fields.fixed) if "*/" in again else read) == cron.fields


@given(st.text(alphabet="atndwl1290:., -möjeyd", max_size=60) | st.text(max_size=120))
def test_whatever_is_typed_is_an_expression_or_none(text):
    expression = understand(text)
    assert expression is None or parse_every(expression) or Cron(expression)


def test_an_offer_has_the_words_of_the_expression_in_the_language_of_the_page():
    assert offer("jeden Werktag um 9") == ("0 9 * * 1-5", "at 09:00, Monday to Friday")
    with translation.override("de"):
        assert offer("every weekday at 9") == ("0 9 * * 1-5", "um 09:00, Montag bis Freitag")
    assert offer("soon") is None
