"""What people do to jobs: cancel, reschedule, retry, many at once; and the races with workers."""

import threading
from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.utils import timezone

from django_delayq import sync
from django_delayq.backend import store
from django_delayq.calls.compat import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.exceptions import BrokerUnavailable, InvalidArguments, JobCancelled, JobHeld
from django_delayq.index import Broker
from django_delayq.models import Run
from django_delayq.recurrence import from_ms
from tests.app import tasks as app_tasks
from tests.faults.harness.servers import pointing_at
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Standing, died, row, rows, run, run_burst, tasks_setting, told, unput

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
HOUR, MS = timedelta(hours=1), timedelta(milliseconds=1)
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def backend():
    return task_backends["default"]


def claim(result):
    """Let a worker have the job."""
    standing = Standing(result)
    claim = standing.broker.claim(standing.shard, limit=100, lease_ms=30_000, request=1)
    assert standing.member in [entry.member for entry in claim.entries]
    return standing


# -- cancel


@pytest.mark.parametrize("after", [None, HOUR], ids=["ready", "later"])
def test_what_is_cancelled_does_not_run_and_has_failed(backend, after):
    result = (tasks.echo.using(run_after=after, priority=3) if after else tasks.echo).enqueue(1)
    standing = Standing(result)
    assert backend.cancel(result.id) is True
    assert standing.gone()
    assert run(result).status == FAILED
    (error,) = result.errors
    assert error.exception_class is JobCancelled
    assert error.traceback == "Cancelled before it started."
    assert result.finished_at >= result.enqueued_at
    assert (result.started_at, result.attempts, result.args) == (None, 0, [1])
    assert backend.cancel(result.id) is False
    assert row(result).expires_at - row(result).finished_at < timedelta(days=1, seconds=1), "as one that succeeded"


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
    before = row(result)
    with pytest.raises(JobHeld, match=result.id):
        backend.cancel(result.id)
    with pytest.raises(JobHeld, match="neither cancelled nor moved"):
        backend.reschedule(result.id, HOUR)
    assert (row(result).status, row(result).due_at) == ("queued", before.due_at)
    died(result)
    with pytest.raises(JobHeld):
        backend.cancel(result.id)


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
    for unknown in ("garbage", f"{row(foreign).pk}-{'x' * 22}", foreign.id):
        for act in (backend.cancel, backend.retry, lambda id: backend.reschedule(id, HOUR)):
            with pytest.raises(TaskResultDoesNotExist):
                act(unknown)
    assert run(foreign).status == SUCCESSFUL


# -- reschedule


@pytest.mark.parametrize("how", ["datetime", "timedelta"])
def test_what_is_put_off_waits_and_what_is_put_forward_runs(backend, how, use_tz, broker):
    result = tasks.echo.enqueue()
    before, before_ms = timezone.now(), broker.read_now_ms()
    assert backend.reschedule(result.id, timezone.now() + HOUR if how == "datetime" else HOUR) is True
    view = Standing(result).view
    assert before_ms <= view.score_ms - HOUR / MS <= broker.read_now_ms() + 1
    assert view.score_ms == view.point_ms
    assert row(result).due_at == from_ms(view.score_ms)
    broker.purge()
    assert run(result).status == READY
    shown = backend.get_result(result.id).task.run_after
    assert before - MS <= shown - HOUR <= timezone.now() + MS
    assert backend.reschedule(result.id, timezone.now() if how == "datetime" else timedelta(0)) is True
    assert run(result).status == SUCCESSFUL


# -- in a transaction, and without Redis


@pytest.mark.parametrize("act", ["cancel", "reschedule", "retry"])
def test_what_is_rolled_back_leaves_the_job_as_it_was(backend, act):
    result = (app_tasks.fail if act == "retry" else app_tasks.add.using(run_after=HOUR)).enqueue()
    run_burst()
    before = Run.objects.filter(pk=row(result).pk).values().get()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert backend.reschedule(result.id, 5 * HOUR) if act == "reschedule" else getattr(backend, act)(result.id)
        raise ZeroDivisionError
    assert Run.objects.filter(pk=row(result).pk).values().get() == before
    standing = Standing(result)
    if act == "retry":
        assert standing.gone()
    else:  # within a minute it comes due, and its worker does what the row says
        assert 50_000 < standing.view.score_ms - standing.broker.read_now_ms() <= 60_000
        standing.make_due()
        assert run(result).status == READY
        assert from_ms(standing.view.score_ms) == before["due_at"]


def test_without_redis_nothing_is_cancelled_or_moved_as_nobody_knows_whether_it_runs(backend):
    result = app_tasks.add.enqueue(1)
    with pointing_at(NOBODY):
        for act in (backend.cancel, lambda id: backend.reschedule(id, HOUR)):
            with pytest.raises(BrokerUnavailable):
                act(result.id)
    assert run(result).return_value == 2


@pytest.mark.parametrize("act", ["cancel", "later", "sooner"])
def test_where_redis_is_lost_on_the_way_the_worker_does_what_the_row_says(backend, act, monkeypatch):
    result = app_tasks.add.using(run_after=HOUR).enqueue(1)
    with monkeypatch.context() as patched:
        patched.setattr(store.sync, "follow_after_commit", lambda write, using: None)
        if act == "cancel":
            assert backend.cancel(result.id)
        else:
            assert backend.reschedule(result.id, 5 * HOUR if act == "later" else timedelta(0))
    standing = Standing(result)
    assert 50_000 < standing.view.score_ms - standing.broker.read_now_ms() <= 60_000
    standing.make_due()
    assert run(result).status == {"cancel": FAILED, "later": READY, "sooner": SUCCESSFUL}[act]
    assert len(app_tasks.CALLS) == (act == "sooner")


def test_what_redis_has_not_yet_is_cancelled_although_it_is_just_being_put_there(backend, monkeypatch):
    """A sweep puts it, and a worker wakes, between the look into Redis and the writing of the row."""
    run_burst()
    with unput():
        result = app_tasks.add.enqueue(1)
    real = store.ledger.cancel_job

    def late(*args):
        thread = threading.Thread(target=lambda: (run_burst(), connections.close_all()))
        if connections["default"].vendor == "postgresql":
            thread.start()
            thread.join(60)
        else:  # one writer: within the transaction of the cancellation only Redis can be asked
            broker = Broker(timeout_seconds=5, worker="sweep")
            sync.put_runs(broker, [row(result)])
            assert broker.claim(Standing(result).shard, limit=10, lease_ms=1, request=1).entries == ()
        return real(*args)

    monkeypatch.setattr(store.ledger, "cancel_job", late)
    assert backend.cancel(result.id)
    run_burst()
    assert (app_tasks.CALLS, row(result).reason, Standing(result).gone()) == ([], "cancelled", True)


def test_what_starts_between_the_look_and_the_writing_is_held(backend):
    """As after a flush, when another worker has it under no lease that Redis knows of."""
    result = app_tasks.add.enqueue(1)
    stale = row(result)
    rows(result).update(status="running", fence="1.x")
    with pytest.raises(JobHeld):
        store.cancel(stale, 60)
    rows(result).update(status="succeeded")
    assert store.cancel(stale, 60) is False
    assert row(result).status == "succeeded"


# -- retry


def test_a_failed_job_is_retried_as_it_was_enqueued_and_keeps_its_id(backend, tmp_path):
    made = app_tasks.flaky.using(priority=5, queue_name="mail", run_after=timedelta(seconds=-5))
    result = run(made.enqueue(str(tmp_path / "f"), failures=1))
    assert result.status == FAILED
    with told() as heard:
        assert backend.retry(result.id) is True
    assert heard == []
    result.refresh()
    assert (result.status, result.errors, result.finished_at) == (READY, [], None)
    assert Standing(result).view.score_ms is not None
    assert (run(result).status, result.return_value) == (SUCCESSFUL, "attempt 2")
    found = row(result)
    assert (found.priority, found.queue, found.call["kwargs"], found.attempt) == (5, "mail", {"failures": 1}, 1)


def test_only_what_has_failed_is_retried(backend):
    waiting, good = app_tasks.add.using(run_after=HOUR).enqueue(1), run(app_tasks.add.enqueue(2))
    assert backend.retry(waiting.id) is backend.retry(good.id) is False
    cancelled = app_tasks.add.enqueue(3)
    assert backend.cancel(cancelled.id)
    assert backend.retry(cancelled.id)
    assert run(cancelled).return_value == 4


def test_only_one_of_two_who_retry_a_job_does(backend):
    result = run(app_tasks.fail.enqueue())
    stale = row(result)
    assert backend.retry(result.id)
    assert store.retry(stale) is False
    assert backend.retry(result.id) is False


def test_without_redis_a_retry_is_put_there_by_the_next_sweep(backend, broker):
    result = run(app_tasks.fail.enqueue())
    with pointing_at(NOBODY):
        assert backend.retry(result.id)
    assert Standing(result).gone()
    sync.sweep_fully(broker)
    assert Standing(result).view.score_ms is not None


# -- many at once


def test_many_of_several_tasks_and_queues_over_several_shards(backend, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 5}
    calls = [(tasks.echo, (1,), {}), (tasks.echo.using(queue_name="mail"), (2,), {}), (app_tasks.add, (3,), {})]
    with told() as heard:
        results = backend.enqueue_many(iter(calls * 50))
    assert [name for name, *_ in heard] == ["enqueued"] * 150
    assert [row(result).queue for result in results[:3]] == ["default", "mail", "default"]
    assert len({Standing(result).shard for result in results}) == 10
    run_burst()
    for result in results[:3]:
        result.refresh()
    assert [result.return_value for result in results[:3]] == [[[1], {}], [[2], {}], 4]


class Broken:
    """Looks like a task and is none."""

    func, takes_context, priority, run_after, queue_name = any, False, 0, None, "default"


def test_where_one_is_refused_none_is_added(backend):
    assert tasks.echo.enqueue_many([]) == []
    good = (tasks.echo, (1,), {})
    for bad, error in (
        ((tasks.echo, (object(),), {}), TypeError),
        ((tasks.echo, (float("nan"),), {}), InvalidArguments),
        ((Broken(), (), {}), InvalidTask),
    ):
        with pytest.raises(error):
            backend.enqueue_many([good, bad])
    assert not Run.objects.exists()
