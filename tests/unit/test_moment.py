"""What a person means by a time: as wide as it was typed, in the schedule's zone."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.monitoring.explain import parse_moment

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "first", "width"),
    [
        ("09:00", datetime(2026, 11, 21, 7, tzinfo=UTC), timedelta(minutes=1)),
        ("2026-11-20 09:00", datetime(2026, 11, 20, 7, tzinfo=UTC), timedelta(minutes=1)),
        ("2026-11-20T09:00:05", datetime(2026, 11, 20, 7, 0, 5, tzinfo=UTC), timedelta(seconds=1)),
        ("2026-11-20T09:00Z", datetime(2026, 11, 20, 9, tzinfo=UTC), timedelta(minutes=1)),
        ("2026-11-20 08:00:00.25Z", datetime(2026, 11, 20, 8, 0, 0, 250_000, tzinfo=UTC), timedelta(milliseconds=1)),
    ],
)  # fmt: skip
def test_a_time_is_as_wide_as_it_was_typed(text, first, width):
    moment = parse_moment(text, "Europe/Riga", NOW)
    assert (moment.first, moment.end - moment.first) == (first, width)
