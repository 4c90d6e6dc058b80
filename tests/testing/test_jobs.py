"""`Runner.run_due` with jobs: the real backend and the real executions, with the index in memory."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from django_delayq import conf
from django_delayq.calls.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends, task_finished
from django_delayq.exceptions import JobHeld, WaitRefused
from django_delayq.index import Broker
from django_delayq.models import Run, Schedule
from django_delayq.recurrence import point
from django_delayq.testing import Runner
from tests.app import tasks as app_tasks
from tests.jobs.support import retried, tasks_setting
from tests.testing import tasks

pytestmark = pytest.mark.django_db

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED


@pytest.fixture
def runner(delayq: Runner, monkeypatch) -> Runner:
    """It is nine o'clock, and nothing asks Redis."""
    monkeypatch.setattr(Broker, "client", property(lambda broker: pytest.fail("asks Redis")))
    delayq.start_at(NINE)
    return delayq


@pytest.fixture
def order(monkeypatch) -> list[str]:
    """What `after_commit` was called with, in order."""
    called: list[str] = []
    monkeypatch.setattr(tasks, "COMMITTED", called)
    return called


def fresh(result):
    """Return the result as it stands now."""
    result.refresh()
    return result


def test_a_wait_returns_what_has_run_and_refuses_what_nobody_runs(runner):
    result = app_tasks.add.enqueue(1, b=2)
    with pytest.raises(WaitRefused, match="Run it first"):
        result.wait()
    runner.run_due()
    assert result.wait().return_value == 3


def test_a_job_runs_at_once_when_it_is_told_to(runner):
    result = app_tasks.add.enqueue(1, b=2)
    assert (result.status, result.enqueued_at.timestamp()) == (READY, NINE.timestamp())
    assert runner.run_due() == []
    assert fresh(result).return_value == 3
    assert result.started_at.timestamp() == result.finished_at.timestamp() == NINE.timestamp()
    assert result.worker_ids == ["test"]


def test_what_is_due_together_goes_by_priority_and_then_in_order(runner, order):
    for text, priority in (("low", -5), ("first", 0), ("second", 0), ("high", 5)):
        tasks.after_commit.using(priority=priority).enqueue(text)
    tasks.after_commit.using(priority=9, run_after=NINE + SECOND).enqueue("later")
    runner.run_due(MINUTE)
    assert [text for text in order if text.islower()] == ["high", "first", "second", "low", "later"]


def test_failures_are_tried_again_and_kept_for_their_time(runner):
    result = retried(app_tasks.fail, max_attempts=2, backoff=60).enqueue()
    runner.run_due(SECOND)
    assert (fresh(result).status, len(result.errors), result.attempts) == (READY, 1, 1)
    runner.run_due(MINUTE)
    assert (fresh(result).status, len(result.errors), result.attempts) == (FAILED, 2, 2)
    assert timedelta(seconds=48) <= result.finished_at - result.started_at <= MINUTE
    runner.move_to(timedelta(days=29))
    result.refresh()
    runner.move_to(timedelta(days=2))
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_result_lives_for_a_day_or_not_at_all(runner, settings):
    settings.TASKS = tasks_setting(brief={"result_ttl": 0})
    result, brief = app_tasks.add.enqueue(1), app_tasks.add.using(backend="brief").enqueue(2)
    runner.assert_enqueued(app_tasks.add, count=2)
    runner.run_due(timedelta(hours=23, minutes=59))
    assert fresh(result).return_value == 2
    assert [job.args for job in runner.assert_enqueued(app_tasks.add)] == [[1]]
    runner.move_to(MINUTE)
    for gone in (result, brief):
        with pytest.raises(TaskResultDoesNotExist):
            gone.refresh()


@pytest.mark.parametrize(("until", "same"), [("start", False), ("end", True)])
def test_a_unique_key_counts_while_its_job_waits_or_until_it_has_ended(runner, until, same):
    once = retried(app_tasks.add, unique_key="one", unique_until=until)
    first = once.enqueue(1)
    assert once.enqueue(2).id == first.id
    runner.takes(app_tasks.add, 2 * MINUTE)
    runner.run_due(MINUTE)
    assert (once.enqueue(3).id == first.id) is same
    runner.run_due(MINUTE)
    assert once.enqueue(4).id != first.id


def test_cancelling_moving_and_retrying(runner):
    backend = task_backends["default"]
    cancelled, later, sooner = (app_tasks.add.using(run_after=HOUR).enqueue(n) for n in range(3))
    assert backend.cancel(cancelled.id)
    assert backend.reschedule(later.id, 2 * HOUR)
    assert backend.reschedule(sooner.id, MINUTE)
    runner.run_due(HOUR)
    assert fresh(cancelled).errors[0].exception_class_path == "django_delayq.exceptions.JobCancelled"
    assert fresh(sooner).started_at.timestamp() == (NINE + MINUTE).timestamp()
    assert fresh(later).status == READY
    runner.run_due(HOUR)
    assert fresh(later).started_at.timestamp() == (NINE + 2 * HOUR).timestamp()
    assert not backend.cancel(later.id)
    assert backend.retry(cancelled.id)
    runner.run_due()
    assert fresh(cancelled).return_value == 1


def test_a_retry_can_be_put_forward(runner):
    result = retried(app_tasks.fail, max_attempts=2, backoff=3600).enqueue()
    runner.run_due()
    assert task_backends["default"].reschedule(result.id, SECOND)
    runner.run_due(SECOND)
    assert (fresh(result).status, result.attempts) == (FAILED, 2)


def test_a_job_that_takes_its_time_is_running_meanwhile(runner):
    runner.takes(app_tasks.add, 10 * MINUTE)
    result = app_tasks.add.enqueue(1)
    runner.run_due(5 * MINUTE)
    assert fresh(result).status == TaskResultStatus.RUNNING
    with pytest.raises(JobHeld):
        task_backends["default"].cancel(result.id)
    runner.run_due(5 * MINUTE)
    assert fresh(result).finished_at - result.started_at == 10 * MINUTE


def test_a_job_is_stopped_by_its_timeout(runner):
    runner.takes(app_tasks.add, 10 * MINUTE)
    long, real = retried(app_tasks.add, timeout=60).enqueue(1), retried(app_tasks.spin, timeout=0.1).enqueue(30)
    runner.run_due(HOUR)
    for result in (long, real):
        assert fresh(result).errors[0].exception_class_path == "django_delayq.exceptions.TaskTimeout"
    assert long.finished_at - long.started_at == MINUTE


def test_async_tasks_and_contexts(runner, tmp_path):
    path = tmp_path / "x"
    runner.takes(app_tasks.anote, MINUTE)
    written, known = app_tasks.anote.enqueue(str(path)), tasks.keys.enqueue()
    runner.run_due(MINUTE)
    assert (fresh(written).return_value, path.read_text()) == ("async", "async\n")
    assert fresh(known).return_value == [known.id, 1, False]


def test_jobs_of_jobs_run_too_and_signals_are_sent_once(runner, order):
    finished = []

    def note(sender, task_result, **kwargs):
        finished.append(task_result.task.name)

    task_finished.connect(note)
    try:
        tasks.follow_up.enqueue("child")
        runner.run_due()
    finally:
        task_finished.disconnect(note)
    assert sorted(order) == ["CHILD", "child"]
    assert finished == ["follow_up", "after_commit"]


def test_jobs_and_schedules_share_the_clock(runner, order):
    for name, minute in (("a", 10), ("c", 30)):
        Schedule.objects.create(
            name=name, task="tests.testing.tasks.after_commit", args=[name], kind="once", at=NINE + minute * MINUTE
        )
    tasks.after_commit.using(run_after=NINE + 20 * MINUTE).enqueue("b")
    assert len(runner.run_due(HOUR)) == 2
    assert [text for text in order if text.islower()] == ["a", "b", "c"]


def test_many_at_once_and_what_was_rolled_back(runner):
    results = retried(app_tasks.add).enqueue_many([([n], {}) for n in range(20)])
    with pytest.raises(RuntimeError), transaction.atomic():
        app_tasks.add.enqueue(99)
        raise RuntimeError
    runner.run_due()
    runner.assert_enqueued(app_tasks.add, count=20)
    assert [fresh(result).return_value for result in results] == list(range(1, 21))


def test_it_leaves_nothing_behind(settings):
    before = datetime.now(UTC)
    with Runner() as runner:
        assert not conf.get_config().mirror
        app_tasks.add.enqueue(1)
        runner.run_due(MINUTE)
    assert conf.get_config().mirror
    assert before <= point.utcnow()
    assert point.datetime is datetime


def test_what_was_enqueued_before_runs_too():
    result = app_tasks.add.enqueue(1)
    with Runner() as runner:
        runner.run_due()
        assert fresh(result).return_value == 2


def test_a_schedule_that_is_handed_over_becomes_a_job(runner):
    Schedule.objects.create(
        name="s", task="tests.app.tasks.add", args=[1], kind="every", every=HOUR, backend="default", max_runs=1
    )
    (run,) = runner.run_due(HOUR)
    (result,) = runner.assert_enqueued(app_tasks.add, args=[1], count=1)
    assert (run.status, result.return_value, Run.objects.count()) == ("succeeded", 2, 2)
