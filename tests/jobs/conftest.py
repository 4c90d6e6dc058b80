"""Fixtures of the tests of jobs."""

import pytest

from django_delayq.worker import upkeep
from tests.app import tasks


@pytest.fixture(autouse=True)
def fresh(prefix, brisk):
    """A process that has enqueued nothing yet, under the prefix of this test."""
    tasks.CALLS.clear()


@pytest.fixture(autouse=True)
def brisk(monkeypatch):
    """Workers in threads of this process sweep more often."""
    monkeypatch.setattr(upkeep, "DELTA_SECONDS", 0.2)


@pytest.fixture(params=[True, False], ids=["aware", "naive"])
def use_tz(request, settings):
    """A project with aware datetimes, and one with naive ones in a zone that is not UTC and never changes its clocks.

    (Where a clock goes back, a naive time that is later may be less.)
    """
    settings.USE_TZ = request.param
    if not request.param:
        settings.TIME_ZONE = "Asia/Kolkata"
    return request.param
