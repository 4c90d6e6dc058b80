"""A job for 31 days from now, on a server whose clock the test moves: it runs once, at its time and not before."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.calls.compat import TaskResultStatus
from tests.app import tasks as app_tasks
from tests.faults.simulated_time import SimulatedTime
from tests.jobs.support import Standing, run_burst

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        bool(os.environ.get("DELAYQ_TEST_SHAPE") or os.environ.get("DELAYQ_TEST_REDIS_USER")),
        reason="the clock that is moved stands in a key of its own, which scripts cannot read everywhere",
    ),
]

AHEAD, HOUR, SECOND = timedelta(days=31), timedelta(hours=1), timedelta(seconds=1)


@pytest.fixture
def time(monkeypatch, broker):
    simulated = SimulatedTime(monkeypatch.setattr, broker)
    yield simulated
    simulated.end()


def test_it_runs_once_and_at_its_time(time, settings):
    settings.USE_TZ = True
    when = time.now() + AHEAD
    result = app_tasks.add.using(run_after=when, priority=100).enqueue(1)
    for moment in (time.now() + HOUR, when - AHEAD / 2, when - HOUR, when - 2 * SECOND):
        time.set(moment)
        run_burst()
        result.refresh()
        early = time.now() < when  # the clock goes on: a burst may take its two seconds
        assert (result.status, app_tasks.CALLS) == (TaskResultStatus.READY, []) or not early
    time.set(when)
    for _ in range(3):
        run_burst()
        time.set(time.now() + AHEAD / 100)
    assert app_tasks.CALLS == [(1, 1)]


def test_a_lease_that_was_taken_before_its_length_was_changed_ends_when_it_was_to_end(time, settings):
    """Leases stand in Redis as instants; who claims later with another length ends none of them early."""
    settings.USE_TZ = True
    run_burst()  # builds the shards
    standing = Standing(app_tasks.add.enqueue(1))
    claim = standing.broker.claim(standing.shard, limit=10, lease_ms=600_000, request=1)
    ends = time.now() + timedelta(minutes=10)
    assert [entry.member for entry in claim.entries] == [standing.member]
    settings.DELAYQ = {**settings.DELAYQ, "LEASE_SECONDS": 1}
    time.set(ends - timedelta(minutes=5))
    run_burst()
    assert app_tasks.CALLS == []
    time.set(ends)
    run_burst()
    assert app_tasks.CALLS == [(1, 1)]


def test_times_of_centuries_ahead_are_kept(time, settings):
    settings.USE_TZ = True
    when = datetime(2999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    result = app_tasks.add.using(run_after=when).enqueue(1)
    run_burst()
    assert abs(app_tasks.add.get_result(result.id).task.run_after - when) < timedelta(milliseconds=1)
    assert app_tasks.CALLS == []
