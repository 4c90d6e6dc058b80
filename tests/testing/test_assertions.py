"""The assertions: what passes, and what a failure says."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.calls.compat import task_backends
from django_delayq.models import Schedule
from django_delayq.recurrence import Cron
from django_delayq.testing import Runner, next_points
from tests.app import tasks

pytestmark = pytest.mark.django_db

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def runner(delayq: Runner) -> Runner:
    """It is nine o'clock, and there is an hourly schedule."""
    delayq.start_at(NINE)
    Schedule.objects.create(
        name="sums", task="tests.app.tasks.add", args=[1], kwargs={"b": 2}, kind="cron", cron="0 * * * *"
    )
    return delayq


def said(assertion, *args, **kwargs) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion(*args, **kwargs)
    return str(caught.value)


def test_scheduled_by_name_by_task_and_by_path(runner):
    for known in ("sums", "tests.app.tasks.add", tasks.add):
        assert runner.assert_scheduled(known, at=NINE + HOUR, args=[1], kwargs={"b": 2}).name == "sums"
    runner.run_due(HOUR)
    runner.assert_scheduled("sums", at=NINE + 2 * HOUR)


SHOWN = "\n  'sums': tests.app.tasks.add(1, b=2), due 2026-03-02 10:00:00 UTC"


def test_what_is_not_scheduled_is_shown_beside_what_is(runner):
    assert said(runner.assert_scheduled, tasks.noop) == (f"'tests.app.tasks.noop' is not scheduled. Schedules: {SHOWN}")
    assert said(runner.assert_scheduled, "sums", at=NINE) == (
        f"'sums' is not scheduled with at=2026-03-02 09:00:00+00:00. Schedules: {SHOWN}"
    )
    assert said(runner.assert_scheduled, "sums", args=[3]).startswith("'sums' is not scheduled with args=[3].")
    assert "with kwargs={'b': 3}" in said(runner.assert_scheduled, "sums", kwargs={"b": 3})
    Schedule.objects.all().delete()
    assert said(runner.assert_scheduled, "sums") == "'sums' is not scheduled. Schedules: none."


def test_paused_and_finished_schedules_are_not_scheduled(runner):
    schedule = Schedule.objects.get()
    schedule.pause("holidays")
    assert "paused holidays" in said(runner.assert_scheduled, "sums")
    runner.assert_not_scheduled("sums")
    schedule.resume()
    Schedule.objects.update(max_runs=1)
    assert "will run: 'sums'" in said(runner.assert_not_scheduled, tasks.add)
    runner.run_due(HOUR)
    assert "It has run 1 times" in said(runner.assert_scheduled, "sums")
    runner.assert_not_scheduled(tasks.noop)


def test_next_points(runner):
    schedule = Schedule.objects.get()
    hours = [NINE + n * HOUR for n in range(1, 9)]
    assert next_points(schedule, 3) == hours[:3]
    runner.run_due(2 * HOUR)
    assert next_points(schedule, 2) == hours[2:4]
    assert next_points(schedule, 1, after=NINE + 5 * HOUR) == hours[5:6]
    Schedule.objects.update(end_at=NINE + 4 * HOUR)
    assert next_points(schedule) == hours[2:4]
    assert next_points(Cron("0 * * * *"), 2, after=NINE) == hours[:2]
    with pytest.raises(ValueError, match="has no now"):
        next_points(Cron("0 * * * *"), 2)


def test_enqueued(runner):
    tasks.add.enqueue(1, b=2)
    tasks.add.enqueue(3)
    tasks.add.using(run_after=NINE + HOUR).enqueue(4)
    assert [result.args for result in runner.assert_enqueued(tasks.add)] == [[1], [3], [4]]
    runner.assert_enqueued("tests.app.tasks.add", args=(1,), kwargs={"b": 2}, count=1)
    runner.assert_enqueued(tasks.add, run_after=NINE + HOUR, count=1)
    runner.assert_enqueued(tasks.noop, count=0)
    runner.run_due()
    runner.assert_enqueued(tasks.add, count=3)


def test_what_was_not_enqueued_is_shown_beside_what_was(runner):
    assert said(runner.assert_enqueued, tasks.add) == "tests.app.tasks.add was not enqueued. Jobs: none."
    tasks.add.enqueue(1, b=2)
    later = tasks.add.using(run_after=NINE + HOUR).enqueue(4)
    runner.run_due()
    when = task_backends["default"].get_result(later.id).task.run_after  # local where the project has no time zones
    shown = f"\n  tests.app.tasks.add(1, b=2), successful\n  tests.app.tasks.add(4), ready, for {when}"
    assert said(runner.assert_enqueued, tasks.noop) == f"tests.app.tasks.noop was not enqueued. Jobs: {shown}"
    assert said(runner.assert_enqueued, tasks.add, args=[5], count=3) == (
        f"tests.app.tasks.add was not enqueued with args=[5], count=3. Jobs: {shown}"
    )
    assert "with run_after=2026-03-02 11:00:00+00:00." in said(
        runner.assert_enqueued, tasks.add, run_after=NINE + 2 * HOUR
    )
