"""`result.wait` and `result.await_`: the result is read until the job has ended, the time is over, or it cannot end."""

import asyncio
import threading
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_delayq.backend.sending import shared
from django_delayq.backend.waiting import Wait
from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.exceptions import ResultTimeout, WaitRefused
from tests.acceptance.support import PATIENCE_SECONDS
from tests.app import tasks as app_tasks
from tests.faults.harness.servers import Server, pointing_at
from tests.jobs import tasks
from tests.jobs.durable_support import in_thread
from tests.jobs.support import SUCCESSFUL, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
HOUR = timedelta(hours=1)
#: Longer than any test.
NEVER = PATIENCE_SECONDS


@pytest.fixture
def looked(monkeypatch):
    """Set once a wait has found that its job has not ended."""
    found, look = threading.Event(), Wait.look

    def noting(self):
        over = look(self)
        if not over:
            found.set()
        return over

    monkeypatch.setattr(Wait, "look", noting)
    return found


@contextmanager
def waiting_for(result, looked):
    """Have another thread wait for this result; leave when that has returned."""
    with in_thread(lambda: result.wait(NEVER)) as thread:
        assert looked.wait(PATIENCE_SECONDS)
        yield thread


# -- an end


@pytest.mark.parametrize("alias", ["default", "durable", "stored"])
def test_a_wait_returns_the_result_refreshed_when_its_job_has_ended(alias, looked):
    result = tasks.echo.using(backend=alias).enqueue(1)
    with waiting_for(result, looked):
        run_burst()
    assert (result.status, result.return_value) == (SUCCESSFUL, [[1], {}])
    assert result == task_backends[alias].get_result(result.id)
    assert result.wait() is result


def test_a_job_that_fails_for_good_ends_a_wait_but_a_retry_does_not(looked):
    doomed = app_tasks.fail.using(max_attempts=2, backoff=0).enqueue()
    with waiting_for(doomed, looked):
        run_burst()
    assert (doomed.status, doomed.attempts) == (FAILED, 2)


def test_a_cancelled_job_ends_a_wait(looked):
    run_burst()  # takes the prefix
    result = tasks.echo.using(run_after=HOUR).enqueue()
    with waiting_for(result, looked):
        assert task_backends["default"].cancel(result.id)
    assert result.errors[-1].exception_class_path.endswith("JobCancelled")


def test_what_has_ended_before_is_only_read():
    result = tasks.echo.enqueue()
    run_burst()
    assert result.status == READY
    assert result.wait(0).status == SUCCESSFUL


def test_an_outage_within_the_time_is_waited_out(prefix, looked):
    with Server() as server, pointing_at(server.url):
        run_burst()
        result = tasks.echo.using(backend="durable", run_after=HOUR).enqueue(1)
        plain = tasks.echo.using(run_after=HOUR).enqueue()
        server.kill()
        with pytest.raises(ResultTimeout):
            plain.wait(0.2)
        looked.clear()
        with waiting_for(result, looked):
            server.start()
            task_backends["durable"].reschedule(result.id, timedelta(0))
            run_burst()
        assert result.status == SUCCESSFUL
        shared().forget()


# -- time


def test_when_the_time_is_over_it_is_a_timeout_and_the_job_goes_on():
    result = tasks.echo.using(run_after=HOUR).enqueue()
    for timeout in (0, 0.05, timedelta(milliseconds=50)):
        with pytest.raises(TimeoutError, match="has not ended within"):
            result.wait(timeout)
    assert task_backends["default"].get_result(result.id).status == READY


@pytest.mark.parametrize("wrong", [-1, float("nan"), timedelta(seconds=-1)])
def test_what_is_no_timeout_is_refused(wrong):
    with pytest.raises(ValueError, match="0 or more seconds"):
        tasks.echo.enqueue().wait(wrong)


def test_pauses_grow_from_20_ms_to_a_second_and_end_with_the_time():
    result = tasks.echo.using(run_after=HOUR).enqueue()
    endless = Wait(result, None)
    pauses = [endless.pause() for _ in range(30)]
    assert (pauses[0], pauses[-1]) == (0.02, 1.0)
    assert all(before < after or after == 1.0 for before, after in pairwise(pauses))
    assert 0 < Wait(result, 0.01).pause() <= 0.01


# -- what can never end


def test_what_is_no_job_does_not_exist():
    result = tasks.echo.enqueue()
    for name in (f"default.{'x' * 22}", "nothing"):
        object.__setattr__(result, "id", name)
        with pytest.raises(TaskResultDoesNotExist):
            result.wait(NEVER)


@pytest.mark.parametrize("alias", ["default", "durable"])
def test_in_a_transaction_a_wait_is_refused(alias):
    result = tasks.echo.using(backend=alias).enqueue()
    with transaction.atomic(), pytest.raises(WaitRefused, match="Wait outside of the transaction"):
        result.wait(NEVER)
    run_burst()
    result.refresh()
    with transaction.atomic():
        assert result.wait() is result, "it has ended as far as is known"


def test_a_task_that_waits_for_a_job_is_warned():
    from django_delayq.context import EXECUTING

    result, token = tasks.echo.enqueue(), EXECUTING.set(object())
    try:
        with pytest.warns(RuntimeWarning, match="its slot waits with it"), pytest.raises(ResultTimeout):
            result.wait(0)
    finally:
        EXECUTING.reset(token)


# -- async


def burst():
    run_burst()
    connection.close()


def test_an_event_loop_waits_for_many_and_goes_on_meanwhile(looked):
    results = [tasks.echo.enqueue(n) for n in range(20)]
    turns = []

    async def main():
        async def tick():
            while True:
                turns.append(await asyncio.sleep(0.005))

        ticking = asyncio.ensure_future(tick())
        waits = asyncio.ensure_future(asyncio.gather(*(result.await_(NEVER) for result in results)))
        await asyncio.to_thread(looked.wait, PATIENCE_SECONDS)
        before = len(turns)
        await asyncio.to_thread(burst)
        found = await waits
        await sync_to_async(connections.close_all)()
        ticking.cancel()
        return found, before

    found, before = asyncio.run(main())
    assert [result.return_value for result in found] == [[[n], {}] for n in range(20)]
    assert found == results
    assert len(turns) > before


def test_an_event_loop_has_timeouts():
    result = tasks.echo.using(run_after=HOUR).enqueue()
    with pytest.raises(ResultTimeout):
        asyncio.run(result.await_(0.05))
