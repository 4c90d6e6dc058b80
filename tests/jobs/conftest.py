"""Fixtures of the tests of jobs."""

import pytest

from django_delayq.backend.sending import shared
from tests.app import tasks


@pytest.fixture(autouse=True)
def fresh(prefix):
    """A process that has enqueued nothing yet, under the prefix of this test."""
    shared().forget()
    tasks.CALLS.clear()
    yield
    shared().forget()


@pytest.fixture(params=[True, False], ids=["aware", "naive"])
def use_tz(request, settings):
    """A project with aware datetimes, and one with naive ones in a zone that is not UTC."""
    settings.USE_TZ = request.param
    if not request.param:
        settings.TIME_ZONE = "America/New_York"
    return request.param
