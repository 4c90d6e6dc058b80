"""Fixtures of the tests of the mirror, the admin and of declared schedules."""

from collections.abc import Iterator

import pytest
from django.test import Client

from django_delayq import sync
from tests.declaring import Code, declaring
from tests.integration.admin_pages import client_for, kill_redis
from tests.integration.shard import SeededShard


@pytest.fixture
def boss() -> Client:
    """A client that may do everything."""
    return client_for(superuser=True)


@pytest.fixture
def built(broker):
    """A prefix that was built once, as in any running project."""
    sync.check_layout(broker)
    sync.sweep_fully(broker)
    return broker


@pytest.fixture
def noted(broker):
    """A prefix that has just been swept."""
    sync.check_layout(broker)
    assert sync.sweep_if_due(broker).done
    return broker


@pytest.fixture
def shard(broker):
    """One shard, seeded and read past the scripts."""
    return SeededShard(broker)


@pytest.fixture
def dead_redis(settings):
    """No Redis for the length of a test."""
    good = settings.CACHES
    kill_redis(settings)
    yield
    settings.CACHES = good  # the prefix is purged after this


@pytest.fixture
def code() -> Iterator[Code]:
    """What the task module declares for the length of a test."""
    with declaring() as one:
        yield one
