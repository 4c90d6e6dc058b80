"""What goes beyond Django's interface: cancel, reschedule, many at once, unique keys, on commit."""

from datetime import datetime, timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from django_delayq.compat import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.exceptions import InvalidArguments, JobCancelled, JobHeld
from tests.app import tasks as app_tasks
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Stored, run, run_burst, tasks_setting, told

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
HOUR, MS = timedelta(hours=1), timedelta(milliseconds=1)


@pytest.fixture
def backend():
    return task_backends["default"]


def claim(result):
    """Let a worker have the job."""
    stored = Stored(result)
    claim = stored.jobs.claim(stored.shard, limit=100, lease_ms=30_000, request=1)
    assert stored.member in [entry.member for entry in claim.entries]
    return stored


# -- cancel


@pytest.mark.parametrize("after", [None, HOUR], ids=["ready", "later"])
def test_what_is_cancelled_does_not_run_and_has_failed(backend, after):
    result = (tasks.echo.using(run_after=after, priority=3) if after else tasks.echo).enqueue(1)
    assert backend.cancel(result.id) is True
    assert run(result).status == FAILED
    (error,) = result.errors
    assert error.exception_class is JobCancelled
    assert result.finished_at >= result.enqueued_at
    assert (result.started_at, result.attempts, result.args) == (None, 0, [1])
    assert backend.cancel(result.id) is False
    stored = Stored(result)
    stored.client.delete(stored.result_key)
    assert stored.gone()


def test_what_is_cancelled_between_two_attempts_keeps_the_first_ones_error(backend):
    result = app_tasks.fail.using(max_attempts=3, backoff=3600).enqueue("the bank is closed")
    run_burst(name="one")
    assert backend.cancel(result.id) is True
    result.refresh()
    assert [error.exception_class for error in result.errors] == [RuntimeError, JobCancelled]
    assert (result.status, result.attempts, result.worker_ids) == (FAILED, 1, ["one"])
    assert result.started_at is not None


def test_what_a_worker_has_is_neither_cancelled_nor_moved(backend):
    run_burst()  # builds the shard
    result = tasks.echo.enqueue()
    claim(result)
    with pytest.raises(JobHeld, match=result.id):
        backend.cancel(result.id)
    with pytest.raises(JobHeld, match="neither cancelled nor moved"):
        backend.reschedule(result.id, HOUR)


@pytest.mark.parametrize("made", [tasks.echo, app_tasks.fail], ids=["successful", "failed"])
def test_what_has_ended_is_not_cancelled(backend, made):
    result = made.enqueue()
    run_burst()
    before = made.get_result(result.id)
    assert backend.cancel(result.id) is False
    assert backend.reschedule(result.id, HOUR) is False
    assert made.get_result(result.id) == before


def test_what_is_not_there_cannot_be_cancelled(backend, settings):
    settings.TASKS = tasks_setting(other={})
    foreign = tasks.echo.using(backend="other").enqueue()
    for unknown in ("garbage", "default." + "x" * 22, foreign.id):
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].cancel(unknown)
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].reschedule(unknown, HOUR)
    assert run(foreign).status == SUCCESSFUL


# -- reschedule


@pytest.mark.parametrize("how", ["datetime", "timedelta"])
def test_what_is_put_off_waits_and_what_is_put_forward_runs(backend, how, use_tz):
    result = tasks.echo.enqueue()
    stored, before = Stored(result), timezone.now()
    before_ms = stored.jobs.broker.now_ms()
    when = timezone.now() + HOUR if how == "datetime" else HOUR
    assert backend.reschedule(result.id, when) is True
    after, after_ms = timezone.now(), stored.jobs.broker.now_ms()
    assert before_ms <= stored.wakes_ms - HOUR / MS <= after_ms + 1
    assert run(result).status == READY
    shown = backend.get_result(result.id).task.run_after
    assert before - MS <= shown - HOUR <= after + MS
    assert backend.reschedule(result.id, timezone.now() if how == "datetime" else timedelta(0)) is True
    assert run(result).status == SUCCESSFUL


def test_a_retry_can_be_put_forward(backend):
    result = app_tasks.fail.using(max_attempts=2, backoff=3600).enqueue()
    assert run(result).status == READY
    assert backend.reschedule(result.id, timedelta(0)) is True
    assert (run(result).status, result.attempts) == (FAILED, 2)


# -- many at once


def test_many_are_enqueued_in_order_each_with_its_own_arguments():
    results = app_tasks.add.enqueue_many(((n,), {"b": 2 * n}) for n in range(250))
    assert len({result.id for result in results}) == 250
    assert [result.args for result in results] == [[n] for n in range(250)]
    run_burst(threads=1)
    assert [(n, 2 * n) for n in range(250)] == app_tasks.CALLS
    results[-1].refresh()
    assert results[-1].return_value == 249 * 3


def test_many_of_several_tasks_and_queues(backend):
    calls = [(tasks.echo, (1,), {}), (tasks.echo.using(queue_name="mail"), (2,), {}), (app_tasks.add, (3,), {})]
    with told() as heard:
        results = backend.enqueue_many(iter(calls))
    assert [name for name, *_ in heard] == ["enqueued"] * 3
    assert [result.id.partition(".")[0] for result in results] == ["default", "mail", "default"]
    run_burst()
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [[[1], {}], [[2], {}], 4]


def test_many_over_several_shards(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 5}
    results = app_tasks.add.enqueue_many(((n,), {}) for n in range(100))
    assert len({Stored(result).shard for result in results}) == 5
    run_burst()
    assert sorted(n for n, _ in app_tasks.CALLS) == list(range(100))


def test_none_at_all():
    assert tasks.echo.enqueue_many([]) == []


def test_where_one_is_refused_none_is_added(backend):
    good = (tasks.echo, (1,), {})
    with pytest.raises(TypeError):
        backend.enqueue_many([good, (tasks.echo, (object(),), {})])
    with pytest.raises(InvalidArguments):
        backend.enqueue_many([good, (tasks.echo, (float("nan"),), {})])
    with pytest.raises(InvalidTask):
        backend.enqueue_many([good, (tasks.echo.using(queue_name="mail"), (), {}), (Broken(), (), {})])
    assert run(tasks.echo.enqueue(2)).return_value == [[2], {}]
    assert app_tasks.CALLS == []
    added = Stored(tasks.echo.enqueue())
    assert added.client.hlen(added.names["payload"]) == 1


class Broken:
    """Looks like a task and is none."""

    func, takes_context, priority, run_after, queue_name = any, False, 0, None, "default"


# -- unique keys


def test_while_a_job_waits_another_with_its_key_is_the_same_one():
    made = app_tasks.add.using(unique_key="invoice 7", run_after=HOUR)
    with told() as heard:
        first, second = made.enqueue(1), made.enqueue(2)
    assert second.id == first.id
    assert [id for _, _, id, _ in heard] == [first.id]
    second.refresh()
    assert second.status == READY
    Stored(first).make_due()
    assert run(second).return_value == 2
    assert app_tasks.CALLS == [(1, 1)]


def test_a_key_belongs_to_a_task_and_a_queue():
    made = [tasks.echo, app_tasks.add, tasks.echo.using(queue_name="mail")]
    results = [item.using(unique_key="k").enqueue(1) for item in made]
    assert len({result.id for result in results}) == 3


def test_once_it_has_started_another_one_is_added():
    run_burst()  # builds the shard
    made = tasks.echo.using(unique_key="k")
    first = made.enqueue(1)
    claim(first)
    assert made.enqueue(2).id != first.id


def test_after_its_end_another_one_is_added_and_runs():
    made = tasks.echo.using(unique_key="k")
    first = run(made.enqueue(1))
    second = run(made.enqueue(2))
    assert (first.return_value, second.return_value) == ([[1], {}], [[2], {}])


def test_a_job_that_waits_for_its_next_attempt_has_its_key(backend):
    made = app_tasks.fail.using(unique_key="k", max_attempts=2, backoff=3600)
    first = made.enqueue()
    run_burst()
    assert made.enqueue().id == first.id
    assert backend.cancel(first.id)
    assert made.enqueue().id != first.id


def test_keys_find_each_other_over_several_shards(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 16}
    for key in "abcdefgh":
        made = tasks.echo.using(unique_key=key, run_after=HOUR)
        assert made.enqueue(1).id == made.enqueue(2).id


def test_many_with_one_key_are_one():
    results = tasks.echo.using(unique_key="k").enqueue_many(((n,), {}) for n in range(150))
    assert len({result.id for result in results}) == 1
    assert run(results[-1]).return_value == [[0], {}]


# -- on commit


@pytest.fixture
def on_commit(settings):
    settings.TASKS = tasks_setting(default={"enqueue_on_commit": True})


@pytest.mark.usefixtures("on_commit")
def test_what_is_enqueued_in_a_transaction_is_sent_when_it_commits():
    with transaction.atomic():
        result = tasks.echo.enqueue(1)
        assert result.status == READY
        with pytest.raises(TaskResultDoesNotExist):
            tasks.echo.get_result(result.id)
    assert run(result).return_value == [[1], {}]


@pytest.mark.usefixtures("on_commit")
def test_what_is_rolled_back_is_dropped():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        result = app_tasks.add.enqueue(1)
        raise ZeroDivisionError
    with transaction.atomic():
        kept = app_tasks.add.enqueue(2)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            app_tasks.add.enqueue(3)
            raise ZeroDivisionError
    assert run(kept).status == SUCCESSFUL
    assert app_tasks.CALLS == [(2, 1)]
    with pytest.raises(TaskResultDoesNotExist):
        app_tasks.add.get_result(result.id)


@pytest.mark.usefixtures("on_commit")
def test_outside_a_transaction_it_is_sent_at_once():
    assert run(tasks.echo.enqueue()).status == SUCCESSFUL


@pytest.mark.usefixtures("on_commit")
def test_what_is_wrong_is_told_before_the_commit():
    with transaction.atomic(), pytest.raises(TypeError):
        tasks.echo.enqueue(datetime.now())  # noqa: DTZ005


@pytest.mark.usefixtures("on_commit")
def test_the_key_of_another_job_is_told_after_the_commit():
    made = tasks.echo.using(unique_key="k", run_after=HOUR)
    first = made.enqueue(1)
    with transaction.atomic():
        second = made.enqueue(2)
    assert second.id == first.id


def test_without_the_option_it_is_sent_at_once():
    with transaction.atomic():
        result = tasks.echo.enqueue()
        assert tasks.echo.get_result(result.id).status == READY
        transaction.set_rollback(True)
    assert run(result).status == SUCCESSFUL
