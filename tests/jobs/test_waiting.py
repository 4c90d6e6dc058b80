"""`result.wait` and `result.await_`: told of the end wherever it lies, and what happens where nobody tells."""

import asyncio
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_delayq.backend import waiting
from django_delayq.backend.sending import Sender, shared
from django_delayq.broker import JobBroker
from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.exceptions import ResultTimeout, WaitRefused
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.app import tasks as app_tasks
from tests.faults.harness.servers import Server, pointing_at
from tests.jobs import tasks
from tests.jobs.durable_support import in_thread
from tests.jobs.support import SUCCESSFUL, Stored, run_burst, tasks_setting
from tests.support import count_keys

pytestmark = pytest.mark.django_db(transaction=True)
FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
#: Longer than any test: only what is told ends a wait within it.
NEVER = PATIENCE_SECONDS


@pytest.fixture(params=["default", "durable", "stored"])
def echo(request):
    """The task as a job of Redis alone, as a durable one, and as one whose result stands in the database."""
    return tasks.echo.using(backend=request.param)


@pytest.fixture
def told_only(monkeypatch):
    """What nobody tells is not looked for, but for once at the beginning."""
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 10 * NEVER)


@pytest.fixture
def looked_for(monkeypatch):
    """It is looked soon for what nobody has told."""
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(waiting, "READ_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.1)


def is_watched(result):
    """Say whether somebody's wait for this job stands in Redis."""
    stored = Stored(result)
    return stored.client.zscore(stored.names["waited"], stored.member) is not None


@contextmanager
def waiting_for(result, timeout=NEVER):
    """Have another thread wait for this result; leave when that has returned."""
    with in_thread(lambda: result.wait(timeout)) as thread:
        wait_until(lambda: is_watched(result) and waiting._listener._waits, PATIENCE_SECONDS, "the wait")
        yield thread


# -- told


def test_a_wait_returns_the_result_refreshed_when_its_job_has_ended(echo, told_only):
    result = echo.enqueue(1)
    with waiting_for(result):
        run_burst()
    assert (result.status, result.return_value) == (SUCCESSFUL, [[1], {}])
    assert result == task_backends[echo.backend].get_result(result.id)
    assert result.wait() is result
    assert not is_watched(result)


@pytest.mark.parametrize("alias", ["default", "durable", "stored"])
def test_a_job_that_fails_for_good_ends_a_wait_but_a_retry_does_not(alias, told_only):
    doomed = app_tasks.fail.using(backend=alias, max_attempts=2, backoff=0).enqueue()
    with waiting_for(doomed):
        run_burst()
    assert (doomed.status, doomed.attempts) == (FAILED, 2)


@pytest.mark.parametrize("alias", ["default", "durable"])
def test_a_cancelled_job_ends_a_wait(alias, told_only):
    run_burst()  # takes the prefix
    result = tasks.echo.using(backend=alias, run_after=timedelta(hours=1)).enqueue()
    with waiting_for(result):
        assert task_backends[alias].cancel(result.id)
    assert result.errors[-1].exception_class_path.endswith("JobCancelled")


@pytest.mark.parametrize("when", ["before the job is named", "right after it was named"])
def test_an_end_beside_the_first_look_is_not_missed(echo, told_only, monkeypatch, when):
    """The worker is done between the joining of the wait and its sleep."""
    watch = Sender.watch

    def ended_meanwhile(self, items, *, for_ms):
        monkeypatch.setattr(Sender, "watch", watch)
        if when.startswith("before"):
            with in_thread(run_burst):
                pass
            return watch(self, items, for_ms=for_ms)
        found = watch(self, items, for_ms=for_ms)
        with in_thread(run_burst):
            pass
        return found

    warm = echo.enqueue()  # somebody listens already, so that the look after the subscription saves nobody
    with waiting_for(warm):
        run_burst()
    result = echo.enqueue(1)
    monkeypatch.setattr(Sender, "watch", ended_meanwhile)
    assert result.wait(NEVER).status == SUCCESSFUL


def test_what_has_ended_before_is_only_read(echo):
    result = echo.enqueue()
    run_burst()
    assert result.status == READY
    assert result.wait(0).status == SUCCESSFUL


def test_nobody_is_told_of_jobs_for_which_nobody_waits(broker):
    run_burst()
    ends = broker.ends(timeout_seconds=0.2)
    assert next(ends) == []
    tasks.echo.enqueue()
    watched = tasks.echo.enqueue()
    stored = Stored(watched)
    assert shared().watch([(stored.queue, stored.member)], for_ms=60_000) == {stored.member}
    run_burst()
    found = [name for _ in range(6) for name in next(ends)]
    ends.close()
    assert found == [stored.member]


def test_names_of_waits_that_are_over_do_not_pile_up():
    results = [tasks.echo.using(run_after=timedelta(hours=1)).enqueue() for _ in range(3)]
    stored = [Stored(result) for result in results]
    assert len(shared().watch([(each.queue, each.member) for each in stored], for_ms=20)) == 3
    time.sleep(0.03)
    shared().watch([(stored[0].queue, stored[0].member)], for_ms=20)
    assert stored[0].client.zcard(stored[0].names["waited"]) <= 1
    time.sleep(0.06)
    assert stored[0].client.exists(stored[0].names["waited"]) == 0


# -- time


def test_when_the_time_is_over_it_is_a_timeout_and_the_job_goes_on():
    result = tasks.echo.using(run_after=timedelta(hours=1)).enqueue()
    for timeout in (0, 0.05, timedelta(milliseconds=50)):
        with pytest.raises(TimeoutError, match="has not ended within"):
            result.wait(timeout)
    assert task_backends["default"].get_result(result.id).status == READY
    assert waiting._listener._waits == {}


@pytest.mark.parametrize("wrong", [-1, float("nan"), timedelta(seconds=-1)])
def test_what_is_no_timeout_is_refused(wrong):
    with pytest.raises(ValueError, match="0 or more seconds"):
        tasks.echo.enqueue().wait(wrong)


def test_an_end_that_nobody_told_is_found_when_the_time_is_over(echo, told_only, monkeypatch):
    result = echo.enqueue()
    run_burst()
    monkeypatch.setattr(Sender, "watch", lambda self, items, *, for_ms: {member for _, member in items})  # not yet
    assert result.wait(0.1).status == SUCCESSFUL


# -- where nobody tells


def forget_watched(result):
    """Take the names of waits out of Redis, as if they had expired."""
    stored = Stored(result)
    stored.client.delete(stored.names["waited"])


def test_an_end_that_nobody_told_is_looked_for(echo, looked_for):
    result = echo.using(run_after=timedelta(hours=1)).enqueue()
    with waiting_for(result):
        watch, JobBroker.watch = JobBroker.watch, lambda self, groups, for_ms: set()
        try:  # as where the names are lost, and it has ended since
            forget_watched(result)
            task_backends[echo.backend].reschedule(result.id, timedelta(0))
            run_burst()
        finally:
            JobBroker.watch = watch
    assert result.status == SUCCESSFUL


def test_a_flush_ends_a_wait_for_what_only_redis_had(broker, looked_for):
    result = tasks.echo.using(run_after=timedelta(hours=1)).enqueue()
    failed = []

    def wait():
        with pytest.raises(TaskResultDoesNotExist):
            result.wait(NEVER)
        failed.append(True)

    with in_thread(wait):
        wait_until(lambda: is_watched(result), PATIENCE_SECONDS, "the wait")
        broker.purge()
    assert failed == [True]


def test_after_a_flush_a_durable_job_is_waited_for_all_the_same(broker, looked_for):
    result = tasks.echo.using(backend="durable").enqueue(1)
    with waiting_for(result):
        broker.purge()
        assert count_keys(broker) == 0
        run_burst()  # rebuilds, and runs it
    assert result.return_value == [[1], {}]


def test_an_outage_within_the_time_is_waited_out(prefix, looked_for):
    with Server() as server, pointing_at(server.url):
        run_burst()
        result = tasks.echo.using(backend="durable").enqueue(1)
        with waiting_for(result) as thread:
            server.kill()
            time.sleep(0.5)
            assert thread.is_alive()
            with pytest.raises(ResultTimeout):
                task_backends["durable"].get_result(result.id).wait(0.2)
            server.start()
            run_burst()
        assert result.status == SUCCESSFUL
        shared().forget()


def test_what_a_killed_worker_had_is_waited_for_until_another_one_has_done_it(told_only):
    run_burst()
    result = tasks.echo.enqueue(1)
    stored = Stored(result)
    stored.jobs.claim(stored.shard, limit=1, lease_ms=300, request=1)  # a thief, who never settles
    with waiting_for(result):
        stored.make_due()  # its lease has run out
        run_burst()
    assert result.status == SUCCESSFUL


def test_what_is_no_job_does_not_exist():
    result = tasks.echo.enqueue()
    object.__setattr__(result, "id", f"default.{'x' * 22}")
    with pytest.raises(TaskResultDoesNotExist):
        result.wait(NEVER)
    object.__setattr__(result, "id", "nothing")
    with pytest.raises(TaskResultDoesNotExist):
        result.wait(NEVER)


# -- what can never end


def test_in_the_transaction_that_enqueues_a_wait_is_refused(settings):
    settings.TASKS = tasks_setting(durable={"durable": True}, later={"enqueue_on_commit": True})
    with transaction.atomic():
        for alias in ("durable", "later"):
            result = tasks.echo.using(backend=alias).enqueue()
            with pytest.raises(WaitRefused, match="Wait outside of the transaction"):
                result.wait(NEVER)


def test_in_a_transaction_a_job_that_is_there_may_be_waited_for():
    result = tasks.echo.enqueue()
    with transaction.atomic(), pytest.raises(ResultTimeout):
        result.wait(0.01)


def test_a_task_that_waits_for_a_job_is_warned():
    from django_delayq.context import EXECUTING

    result, token = tasks.echo.enqueue(), EXECUTING.set(object())
    try:
        with pytest.warns(RuntimeWarning, match="its slot waits with it"), pytest.raises(ResultTimeout):
            result.wait(0)
    finally:
        EXECUTING.reset(token)


# -- many


def test_all_waits_of_a_process_share_one_listener_and_ask_no_database_meanwhile(broker, told_only):
    results = [tasks.echo.using(run_after=timedelta(hours=1), backend="durable").enqueue() for _ in range(30)]
    queries = []

    def wait(result):
        with connection.execute_wrapper(lambda execute, *args: (queries.append(args[0]), execute(*args))[1]):
            result.wait(NEVER)
        connection.close()

    threads = [threading.Thread(target=wait, args=[result]) for result in results]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(map(is_watched, results)), PATIENCE_SECONDS, "the waits")
    assert sum(thread.name == "delayq-ends" for thread in threading.enumerate()) == 1
    assert queries == []
    for result in results:
        task_backends["durable"].cancel(result.id)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert {result.status for result in results} == {FAILED}
    assert len(queries) == len(results)


# -- async


def test_an_event_loop_waits_for_many_and_goes_on_meanwhile(echo, told_only):
    results = [echo.enqueue(n) for n in range(20)]
    turns = []

    async def main():
        async def tick():
            while True:
                turns.append(await asyncio.sleep(0.005))

        ticking = asyncio.ensure_future(tick())
        waits = asyncio.ensure_future(asyncio.gather(*(result.await_(NEVER) for result in results)))
        await asyncio.to_thread(wait_until, lambda: all(map(is_watched, results)), PATIENCE_SECONDS, "the waits")
        before = len(turns)
        await asyncio.to_thread(burst)
        found = await waits
        await sync_to_async(connections.close_all)()
        ticking.cancel()
        return found, before

    found, before = asyncio.run(main())
    assert [result.return_value for result in found] == [[[n], {}] for n in range(20)]
    assert found == results
    assert len(turns) > before > 0


def burst():
    run_burst()
    connection.close()


def test_an_event_loop_has_timeouts_and_a_cancelled_wait_leaves_nothing():
    result = tasks.echo.using(run_after=timedelta(hours=1)).enqueue()

    async def main():
        with pytest.raises(ResultTimeout):
            await result.await_(0.05)
        wait = asyncio.ensure_future(result.await_())
        await asyncio.sleep(0.2)
        assert waiting._listener._waits
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(main())
    assert waiting._listener._waits == {}
