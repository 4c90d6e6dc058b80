"""`result.wait` and `result.await_`: by looking into the database, more and more seldom; and when they are refused."""

import asyncio
import threading
import time
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_delayq.backend import waiting
from django_delayq.calls.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.calls.context import EXECUTING
from django_delayq.exceptions import WaitRefused
from tests.acceptance.support import PATIENCE_SECONDS
from tests.app import tasks as app_tasks
from tests.faults.harness.servers import pointing_at
from tests.faults.live import live_worker
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, rows, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
HOUR = timedelta(hours=1)


@pytest.fixture
def pauses(monkeypatch):
    """How long waits have slept; none really does."""
    slept = []
    monkeypatch.setattr(waiting.time, "sleep", slept.append)
    return slept


def test_a_wait_returns_the_result_refreshed_when_its_job_has_ended():
    result = tasks.echo.enqueue(1)
    with live_worker():
        assert result.wait(PATIENCE_SECONDS) is result
    assert (result.status, result.return_value) == (SUCCESSFUL, [[1], {}])
    assert result == task_backends["default"].get_result(result.id)
    assert result.wait() is result


def test_what_has_ended_before_is_only_read(pauses):
    result = tasks.echo.enqueue()
    run_burst()
    assert (result.status, result.wait(0).status, pauses) == (READY, SUCCESSFUL, [])


def test_a_job_that_fails_for_good_ends_a_wait_but_a_retry_does_not(monkeypatch):
    result = app_tasks.fail.using(max_attempts=3, backoff=0).enqueue()
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: run_burst(max_runs=1))
    assert (result.wait(PATIENCE_SECONDS).status, result.attempts) == (FAILED, 3)


def test_a_cancelled_job_ends_a_wait(monkeypatch):
    result = tasks.echo.using(run_after=HOUR).enqueue()
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: task_backends["default"].cancel(result.id))
    assert result.wait(PATIENCE_SECONDS).errors[-1].exception_class_path.endswith("JobCancelled")


def test_it_looks_after_20_ms_and_then_more_and_more_seldom_up_to_a_second(monkeypatch):
    result, slept, looks = tasks.echo.using(run_after=HOUR).enqueue(), [], []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 22:
            rows(result).update(status="succeeded")

    monkeypatch.setattr(waiting.time, "sleep", sleep)
    with connection.execute_wrapper(lambda execute, sql, *args: (looks.append(sql), execute(sql, *args))[1]):
        result.wait()
    assert slept[:3] == pytest.approx([0.02, 0.025, 0.03125])
    assert slept[-3:] == [1.0, 1.0, 1.0]
    assert len([sql for sql in looks if sql.startswith("SELECT")]) == 23, "one query for each look"


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_when_the_time_is_over_it_is_a_timeout_and_the_job_goes_on(timeout):
    result, began = tasks.echo.using(run_after=HOUR).enqueue(), time.monotonic()
    with pytest.raises(TimeoutError, match="has not ended within"):
        result.wait(timeout)
    assert time.monotonic() - began >= (0.05 if timeout else 0)
    assert task_backends["default"].get_result(result.id).status == READY


def test_it_looks_once_more_when_the_time_is_over(monkeypatch):
    result = tasks.echo.enqueue()
    real = time.sleep
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: (run_burst(), real(0.5)))
    assert result.wait(0.5).status == SUCCESSFUL


@pytest.mark.parametrize("wrong", [-1, float("nan"), timedelta(seconds=-1)])
def test_what_is_no_timeout_is_refused(wrong):
    with pytest.raises(ValueError, match="0 or more seconds"):
        tasks.echo.enqueue().wait(wrong)


def test_what_is_no_job_or_goes_meanwhile_does_not_exist(monkeypatch):
    result = tasks.echo.using(run_after=HOUR).enqueue()
    for id in (f"1-{'x' * 22}", "nothing"):
        other = tasks.echo.enqueue()
        object.__setattr__(other, "id", id)
        with pytest.raises(TaskResultDoesNotExist):
            other.wait()
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: rows(result).delete())
    with pytest.raises(TaskResultDoesNotExist):
        result.wait()


def test_it_needs_no_redis_and_no_flush_ends_it(broker):
    result = tasks.echo.enqueue(1)
    with pointing_at("redis://127.0.0.1:1/0"), pytest.raises(TimeoutError):
        result.wait(0.05)
    broker.purge()
    with live_worker():
        assert result.wait(PATIENCE_SECONDS).return_value == [[1], {}]


# -- what can never end


def test_in_a_transaction_a_wait_is_refused_but_for_what_has_ended():
    waits, ended = tasks.echo.using(run_after=HOUR).enqueue(), tasks.echo.enqueue()
    run_burst()
    with transaction.atomic():
        for result in (waits, tasks.echo.enqueue()):
            with pytest.raises(WaitRefused, match="Wait outside the transaction"):
                result.wait(PATIENCE_SECONDS)
        assert ended.wait().status == SUCCESSFUL


def test_a_task_that_waits_for_a_job_is_warned():
    result, token = tasks.echo.enqueue(), EXECUTING.set(object())
    try:
        with pytest.warns(RuntimeWarning, match="occupies its slot"), pytest.raises(TimeoutError):
            result.wait(0)
    finally:
        EXECUTING.reset(token)


# -- async


def test_an_event_loop_waits_for_many_and_goes_on_meanwhile():
    results = [tasks.echo.enqueue(n) for n in range(20)]
    turns = []

    async def main():
        async def tick():
            while True:
                turns.append(await asyncio.sleep(0.005))

        ticking = asyncio.ensure_future(tick())
        waits = asyncio.gather(*(result.await_(PATIENCE_SECONDS) for result in results))
        await asyncio.sleep(0.1)
        before = len(turns)
        await asyncio.to_thread(lambda: (run_burst(), connections.close_all()))
        found = await waits
        await sync_to_async(connections.close_all)()
        ticking.cancel()
        return found, before

    found, before = asyncio.run(main())
    assert [result.return_value for result in found] == [[[n], {}] for n in range(20)]
    assert found == results
    assert len(turns) > before > 0


def test_an_event_loop_has_timeouts_and_a_cancelled_wait_leaves_nothing():
    result, threads = tasks.echo.using(run_after=HOUR).enqueue(), threading.active_count()

    async def main():
        with pytest.raises(TimeoutError):
            await result.await_(0.05)
        wait = asyncio.ensure_future(result.await_())
        await asyncio.sleep(0.2)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        await sync_to_async(connections.close_all)()

    asyncio.run(main())
    assert threading.active_count() <= threads
