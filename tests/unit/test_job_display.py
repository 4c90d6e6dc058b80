"""Of a job whose text cannot be read, the admin shows that nothing is known: no error, and nothing of the text."""

import pytest

from django_delayq.admin import job_display
from django_delayq.backend.store import JobState, SeenJob
from django_delayq.broker import Shard


@pytest.mark.parametrize("show", ["attempts", "last_line", "errors", "attempts_table", "result"])
def test_what_cannot_be_read_is_a_dash(show):
    seen = SeenJob(Shard("default", 0), "j", JobState.WAITING, None, 3)
    assert getattr(job_display, show)(seen) == "–"
    assert job_display.arguments(seen) == ("–", "–")
    assert job_display.history(seen) == []
