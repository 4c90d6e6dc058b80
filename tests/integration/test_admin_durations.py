"""Durations as people write them."""

from datetime import timedelta

import pytest

from django_delayq.admin.display import format_duration
from django_delayq.admin.formfields import parse_duration

H, M, S = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 90s ", 90 * S),
        ("1.5", 1.5 * S),
        ("15m", 15 * M),
        ("0.250s", S / 4),
        ("1h 30m", H + 30 * M),
        ("1.5H", H + 30 * M),
        ("2d", 48 * H),
        ("250ms", S / 4),
        ("7us", timedelta(microseconds=7)),
        ("00:15:00", 15 * M),
        ("3 days, 1:00:00", 73 * H),
        ("P1DT2H", 26 * H),
        ("0", timedelta(0)),
    ],
)
def test_what_is_understood(text, value):
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    "text", ["", "PT", "soon", "15:00", "1h1h", "-5s", "-PT5S", "5 parsecs", "m", "1e9", "1:2:3:4", "٣s"]
)
def test_what_is_refused(text):
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1.000", "1.500s", "12.000 min", "1h 1.000s", "1.000.000", "1,000"])
def test_a_point_that_may_be_one_between_thousands_is_refused(text):
    with pytest.raises(ValueError, match=r"Write 1000 or 1\.5"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["999999999999d", "999999999999", "36526d"])
def test_what_is_too_long(text):
    with pytest.raises(ValueError, match="at most 36525 days"):
        parse_duration(text)


@pytest.mark.parametrize(
    "value", [timedelta(0), S, 90 * S, 36 * H + 5 * M, timedelta(microseconds=1), timedelta(days=36525)]
)
def test_what_is_shown_is_understood_again(value):
    assert parse_duration(format_duration(value)) == value


def test_how_it_is_shown():
    assert format_duration(H + 30 * M) == "1h 30m"
    assert format_duration(timedelta(days=2, seconds=5)) == "2d 5s"
    assert format_duration(timedelta(0)) == "0s"
    assert format_duration(timedelta(days=2, hours=3, minutes=5), parts=2) == "2d 3h"
