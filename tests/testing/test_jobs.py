"""`Runner.run_due` with jobs: the real backend and the real executions, in memory."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends, task_finished
from django_delayq.exceptions import JobHeld, WaitRefused
from django_delayq.models import Schedule
from django_delayq.testing import Runner
from tests.app import tasks as app_tasks
from tests.testing import tasks

pytestmark = pytest.mark.django_db

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def runner(delayq: Runner, settings) -> Runner:
    """It is nine o'clock, and there is no Redis."""
    delayq.start_at(NINE)
    return delayq


@pytest.fixture
def order(monkeypatch) -> list[str]:
    """What `after_commit` was called with, in order."""
    called: list[str] = []
    monkeypatch.setattr(tasks, "COMMITTED", called)
    return called


def using(task, **options):
    """Set options of ours, also where the task was made by a Django whose decorator does not know our class."""
    from django_delayq.jobs import DelayQTask

    made = DelayQTask(
        func=task.func, backend=task.backend, queue_name=task.queue_name, priority=task.priority,
        takes_context=task.takes_context, run_after=task.run_after,
    )  # fmt: skip
    return made.using(**options)


def test_a_wait_returns_what_has_run_and_refuses_what_nobody_runs(runner):
    result = app_tasks.add.enqueue(1, b=2)
    with pytest.raises(WaitRefused, match="Run it first"):
        result.wait()
    runner.run_due()
    assert result.wait().return_value == 3


def test_a_job_runs_at_once_when_it_is_told_to(runner):
    result = app_tasks.add.enqueue(1, b=2)
    assert result.status == TaskResultStatus.READY
    assert result.enqueued_at.timestamp() == NINE.timestamp()
    assert runner.run_due() == []
    result.refresh()
    assert (result.is_finished, result.return_value) == (True, 3)
    assert result.started_at.timestamp() == result.finished_at.timestamp() == NINE.timestamp()
    assert result.worker_ids == ["test"]


def test_a_job_for_later_runs_then(runner):
    result = app_tasks.add.using(run_after=NINE + timedelta(days=31)).enqueue(1)
    runner.run_due(timedelta(days=30))
    result.refresh()
    assert not result.is_finished
    runner.run_due(timedelta(hours=25))
    result.refresh()
    assert result.started_at.timestamp() == (NINE + timedelta(days=31)).timestamp()


def test_what_is_due_together_goes_by_priority_and_then_in_order(runner, order):
    for text, priority in (("low", -5), ("first", 0), ("second", 0), ("high", 5)):
        tasks.after_commit.using(priority=priority).enqueue(text)
    tasks.after_commit.using(priority=9, run_after=NINE + SECOND).enqueue("later")
    runner.run_due(MINUTE)
    assert [text for text in order if text.islower()] == ["high", "first", "second", "low", "later"]


def test_failures_are_tried_again_and_then_dead(runner):
    failing = using(app_tasks.fail, max_attempts=2, backoff=60)
    result = failing.enqueue()
    runner.run_due(SECOND)
    result.refresh()
    assert (result.status, len(result.errors), result.attempts) == (TaskResultStatus.READY, 1, 1)
    runner.run_due(MINUTE)
    result.refresh()
    assert (result.status, len(result.errors), result.attempts) == (TaskResultStatus.FAILED, 2, 2)
    assert timedelta(seconds=48) <= result.finished_at - result.started_at <= MINUTE
    assert "no luck" in result.errors[0].traceback
    runner.run_due(timedelta(days=29))
    result.refresh()
    app_tasks.fail.using(run_after=runner.now + timedelta(days=2)).enqueue("this one's death makes room")
    runner.run_due(timedelta(days=2))
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_result_lives_for_a_day(runner):
    result = app_tasks.add.enqueue(1)
    runner.run_due(timedelta(hours=23, minutes=59))
    result.refresh()
    runner.run_due(MINUTE)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    assert [job.args for job in runner.assert_enqueued(app_tasks.add)] == [[1]], "what was enqueued stays known"


def test_a_unique_key_counts_while_its_job_waits(runner):
    once = using(app_tasks.add, unique_key="one")
    first = once.enqueue(1)
    assert once.enqueue(2).id == first.id
    runner.takes(app_tasks.add, MINUTE)
    runner.run_due()
    assert once.enqueue(3).id != first.id, "the first one has started"
    runner.assert_enqueued(app_tasks.add, count=2)


def test_cancelling_and_putting_off(runner):
    backend = task_backends["default"]
    cancelled, moved = app_tasks.add.enqueue(1), app_tasks.add.enqueue(2)
    assert backend.cancel(cancelled.id)
    assert backend.reschedule(moved.id, timedelta(hours=2))
    runner.run_due(HOUR)
    for result in (cancelled, moved):
        result.refresh()
    assert cancelled.errors[0].exception_class_path == "django_delayq.exceptions.JobCancelled"
    assert moved.status == TaskResultStatus.READY
    runner.run_due(HOUR)
    moved.refresh()
    assert moved.started_at.timestamp() == (NINE + 2 * HOUR).timestamp()
    assert not backend.cancel(moved.id)


def test_a_job_that_takes_its_time_is_running_meanwhile(runner):
    runner.takes(app_tasks.add, 10 * MINUTE)
    result = app_tasks.add.enqueue(1)
    runner.run_due(5 * MINUTE)
    result.refresh()
    assert result.status == TaskResultStatus.RUNNING
    with pytest.raises(JobHeld):
        task_backends["default"].cancel(result.id)
    runner.run_due(5 * MINUTE)
    result.refresh()
    assert result.finished_at - result.started_at == 10 * MINUTE


def test_a_job_is_stopped_by_its_timeout(runner):
    runner.takes(app_tasks.add, 10 * MINUTE)
    long, real = using(app_tasks.add, timeout=60).enqueue(1), using(app_tasks.spin, timeout=0.1).enqueue(30)
    runner.run_due(HOUR)
    for result in (long, real):
        result.refresh()
        assert result.errors[0].exception_class_path == "django_delayq.exceptions.TaskTimeout"
    assert long.finished_at - long.started_at == MINUTE


def test_async_tasks_and_contexts(runner, tmp_path):
    path = tmp_path / "x"
    runner.takes(app_tasks.anote, MINUTE)
    written, known = app_tasks.anote.enqueue(str(path)), tasks.keys.enqueue()
    runner.run_due(MINUTE)
    written.refresh()
    known.refresh()
    assert (written.return_value, path.read_text()) == ("async", "async\n")
    assert known.return_value == [known.id, 1, False]


def test_jobs_of_jobs_run_too_and_signals_are_sent(runner, order):
    finished = []

    def note(sender, task_result, **kwargs):
        finished.append(task_result.task.name)

    task_finished.connect(note)
    try:
        tasks.follow_up.enqueue("child")
        runner.run_due()
    finally:
        task_finished.disconnect(note)
    assert order == ["CHILD", "child"] or order == ["child", "CHILD"]
    assert finished == ["follow_up", "after_commit"]


def test_jobs_and_schedules_share_the_clock(runner, order):
    for name, minute in (("a", 10), ("c", 30)):
        Schedule.objects.create(
            name=name, task="tests.testing.tasks.after_commit", args=[name], kind="once", at=NINE + minute * MINUTE
        )
    tasks.after_commit.using(run_after=NINE + 20 * MINUTE).enqueue("b")
    assert len(runner.run_due(HOUR)) == 2
    assert [text for text in order if text.islower()] == ["a", "b", "c"]


def test_many_at_once(runner):
    results = using(app_tasks.add).enqueue_many([([n], {}) for n in range(20)])
    runner.run_due()
    runner.assert_enqueued(app_tasks.add, count=20)
    for n, result in enumerate(results):
        result.refresh()
        assert result.return_value == n + 1


def test_it_needs_no_redis_and_leaves_nothing_behind(settings, monkeypatch):
    from django_delayq import conf, fields
    from django_delayq.backend.memory import MemoryJobs
    from django_delayq.backend.sending import shared
    from django_delayq.broker import Broker

    before = datetime.now(UTC)
    with monkeypatch.context() as patch, Runner() as runner:
        patch.setattr(Broker, "client", property(lambda broker: pytest.fail("asks Redis")))
        assert not conf.get_config().mirror
        schedule = Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron="* * * * *")
        app_tasks.add.enqueue(1)
        assert len(runner.run_due(MINUTE)) == 1
        schedule.delete()
    assert conf.get_config().mirror
    assert not isinstance(shared().jobs, MemoryJobs)
    assert before <= fields.utcnow()
    assert fields.datetime is datetime


def test_a_schedule_that_is_handed_over_becomes_a_job(runner):
    Schedule.objects.create(
        name="s", task="tests.app.tasks.add", args=[1], kind="every", every=HOUR, backend="default", max_runs=1
    )
    (run,) = runner.run_due(HOUR)
    (result,) = runner.assert_enqueued(app_tasks.add, args=[1], count=1)
    assert (run.status, result.return_value) == ("succeeded", 2)
