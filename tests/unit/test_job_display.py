"""Of a job whose text cannot be read, the admin shows that nothing is known: no error, and nothing of the text."""

import pytest
from django.contrib import admin

from django_delayq.admin import RedisJobAdmin
from django_delayq.admin.job_list import as_row
from django_delayq.backend.store import JobState, SeenJob
from django_delayq.broker import Shard
from django_delayq.models import RedisJob


@pytest.mark.parametrize("show", ["attempts", "error", "errors", "history", "result", "args", "kwargs", "options"])
def test_what_cannot_be_read_is_a_dash(show):
    seen = SeenJob(Shard("default", 0), "j", JobState.WAITING, None, 3)
    assert getattr(RedisJobAdmin(RedisJob, admin.site), show)(as_row(seen)) == "–"
