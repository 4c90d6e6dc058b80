"""Attempts, backoff and timeouts: said by the decorator, by `using`, or by the alias' OPTIONS."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_delayq.calls import Retries
from django_delayq.calls.compat import TaskResultStatus, task_backends, task_finished
from django_delayq.calls.task import get_retries
from django_delayq.exceptions import JobHeld, TaskCancelled, TaskTimeout
from django_delayq.worker import loop
from django_delayq.worker.options import RECYCLE
from tests.acceptance.support import wait_until
from tests.app import tasks as app_tasks
from tests.faults.live import live_worker
from tests.jobs import tasks
from tests.jobs.support import (
    DECORATOR_OPTIONS,
    SUCCESSFUL,
    Standing,
    connected,
    retried,
    rows,
    run,
    run_burst,
    tasks_setting,
    told,
)

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
#: Far beyond what any of these tests takes.
LONG = 300
FAIL = "tests.app.tasks.fail"


def comes_due(*results):
    """Run what is due; return for each of these in how many seconds it comes due: (at least, at most)."""
    standing = [Standing(result) for result in results]
    before = standing[0].broker.read_now_ms()
    run_burst()
    after = standing[0].broker.read_now_ms()
    scores = [one.view.score_ms for one in standing]
    return [((score - after) / 1000, (score - before) / 1000) for score in scores]


# -- attempts


def test_the_decorator_says_how_often(tmp_path):
    assert tasks.stubborn_once.max_attempts == 3
    result = run(tasks.stubborn_once.enqueue(str(tmp_path / "f"), 2))
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, "attempt 3", 3)
    result = run(tasks.stubborn_once.enqueue(str(tmp_path / "g"), 9))
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 3, 3)


def test_frameworks_from_which_the_decorator_hands_options_on():
    import django

    assert DECORATOR_OPTIONS or django.VERSION < (6, 1)


@pytest.mark.parametrize(
    ("options", "used", "attempts"),
    [
        ({}, {}, 1),
        ({"max_attempts": 2}, {}, 2),
        ({"max_attempts": 2}, {"max_attempts": 4}, 4),
        ({"max_attempts": 2, "tasks": {FAIL: {"max_attempts": 3}}}, {}, 3),
        ({"max_attempts": 2, "tasks": {FAIL: {"max_attempts": 3}}}, {"max_attempts": 1}, 1),
        ({"max_attempts": 2, "tasks": {"tests.app.tasks.other": {"max_attempts": 3}}}, {}, 2),
        ({"tasks": {FAIL: {"backoff": 0}}}, {}, 1),
    ],
)
def test_the_nearest_word_counts(settings, options, used, attempts):
    settings.TASKS = tasks_setting(default={"backoff": 0, **options})
    result = app_tasks.fail.using(**used).enqueue()
    assert (run(result).status, result.attempts) == (FAILED, attempts)


def test_what_was_said_when_it_was_enqueued_counts_and_options_of_the_alias_as_they_are_now(settings):
    said, unsaid = app_tasks.fail.using(max_attempts=2, backoff=0).enqueue(), app_tasks.fail.enqueue()
    settings.TASKS = tasks_setting(default={"max_attempts": 3, "backoff": 0})
    run_burst()
    said.refresh()
    unsaid.refresh()
    assert (said.attempts, unsaid.attempts) == (2, 3)


# -- backoff


def test_the_delay_doubles_and_ends_at_an_hour():
    result = app_tasks.fail.using(max_attempts=100, backoff=timedelta(seconds=600)).enqueue()
    for seconds in (600, 1200, 2400, 3600, 3600):
        [(least, most)] = comes_due(result)
        assert least <= seconds
        assert most >= 0.8 * seconds
        result.refresh()
        assert result.status == READY
        assert result.finished_at is None
        Standing(result).make_due()


def test_the_delay_of_the_alias_counts_where_nothing_is_said(settings):
    settings.TASKS = tasks_setting(default={"max_attempts": 2, "tasks": {FAIL: {"backoff": timedelta(hours=1)}}})
    one, two = app_tasks.fail.enqueue(), tasks.complicated.enqueue()
    (least_one, most_one), (least_two, most_two) = comes_due(one, two)
    assert least_one <= 3600 <= most_one / 0.8
    assert least_two <= 10 <= most_two / 0.8


# -- timeouts


@pytest.mark.parametrize("how", ["using", "options"])
def test_who_takes_too_long_is_stopped_by_an_exception(settings, how):
    settings.TASKS = tasks_setting(default={"timeout": 0.2} if how == "options" else {})
    result = (app_tasks.spin if how == "options" else app_tasks.spin.using(timeout=0.2)).enqueue(LONG, swallow=True)
    assert run(result).errors[0].exception_class is TaskTimeout
    assert "in spin" in result.errors[0].traceback
    assert timedelta(seconds=0.15) <= result.finished_at - result.started_at < timedelta(seconds=LONG)


def test_a_task_may_clean_up_and_succeed(tmp_path):
    result = run(app_tasks.tidy.using(timeout=0.2).enqueue(str(tmp_path / "f"), LONG))
    assert (result.return_value, (tmp_path / "f").read_text()) == ("stopped early", "tidied")


def test_a_coroutine_is_cancelled(tmp_path):
    result = run(app_tasks.aspin.using(timeout=timedelta(seconds=0.2)).enqueue(str(tmp_path / "f"), LONG))
    assert (result.errors[0].exception_class, (tmp_path / "f").read_text()) == (TaskTimeout, "cancelled")


def test_a_timeout_is_a_failed_attempt_like_any_other():
    result = run(app_tasks.spin.using(timeout=0.1, max_attempts=2, backoff=0).enqueue(LONG))
    assert (result.status, result.attempts) == (FAILED, 2)


def test_a_timeout_of_the_alias_is_taken_away_by_zero(settings):
    settings.TASKS = tasks_setting(default={"timeout": 0.1})
    assert run(app_tasks.spin.using(timeout=0).enqueue(0.3)).return_value == "spun"


def test_who_does_not_react_has_its_outcome_without_it_and_the_process_is_to_be_recycled(
    tmp_path, settings, monkeypatch
):
    monkeypatch.setattr(loop, "SLOTS_SECONDS", 0.2)
    settings.DELAYQ = {**settings.DELAYQ, "TIMEOUT_GRACE_SECONDS": 0.2, "DRAIN_SECONDS": 0.5}
    gate = tmp_path / "gate"
    result = app_tasks.stubborn.using(timeout=0.2).enqueue(str(tmp_path / "f"), str(gate))
    told_errors = []

    def note(task_result, **kwargs):
        told_errors.append([error.exception_class for error in task_result.errors])

    try:
        with connected(note, task_finished), told() as heard:
            assert run_burst() == RECYCLE
        assert [(name, status) for name, _, _, status in heard] == [("started", "RUNNING"), ("finished", "FAILED")]
        assert told_errors == [[TaskTimeout]]
        result.refresh()
        assert (result.status, result.errors[0].exception_class, len(result.errors)) == (FAILED, TaskTimeout, 1)
        assert "Still running" in result.errors[0].traceback
        assert "in stubborn" in result.errors[0].traceback
    finally:
        gate.touch()
    wait_until(lambda: "end" in (tmp_path / "f").read_text())
    assert (tmp_path / "f").read_text().splitlines()[-1] == "end lost"
    result.refresh()
    assert result.status == FAILED


@pytest.mark.parametrize("how", ["datetime", "timedelta"])
def test_a_retry_that_is_moved_comes_when_it_was_moved_to(how, broker):
    backend = task_backends["default"]
    result = app_tasks.fail.using(max_attempts=3, backoff=3600).enqueue()
    run_burst()
    for hours in (2, 5):
        when = timedelta(hours=hours)
        assert backend.reschedule(result.id, timezone.now() + when if how == "datetime" else when)
        broker.purge()  # what the row says counts
        [(least, most)] = comes_due(result)
        assert least <= hours * 3600 <= most + 1
        Standing(result).make_due()  # as damage would
        [(least, most)] = comes_due(result)
        assert least <= hours * 3600 <= most + 5
    assert backend.reschedule(result.id, timezone.now() - timedelta(days=1) if how == "datetime" else timedelta(0))
    assert (run(result).status, result.attempts) == (READY, 2)
    [(least, most)] = comes_due(result)
    assert most > 2_800, "the next backoff counts anew"


def test_a_job_that_is_stopped_while_it_runs_is_not_tried_again_until_it_is_retried(settings, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "RUNNING_AFTER_SECONDS": 0.1}
    backend = task_backends["default"]
    result = retried(app_tasks.tidy, max_attempts=3).enqueue(str(tmp_path / "f"), LONG)
    spun = retried(app_tasks.spin, max_attempts=3).enqueue(LONG)
    with live_worker() as live:
        wait_until(lambda: len(live.worker.slots.list_executing()) == 2, 20, "the executions")
        for each in (result, spun):
            with pytest.raises(JobHeld):
                backend.cancel(each.id)
            assert backend.cancel(each.id, running=True, by="ann")
        wait_until(lambda: result.refresh() or spun.refresh() or (result.is_finished and spun.is_finished))
    assert (result.return_value, spun.status, spun.attempts) == ("stopped early", FAILED, 1)
    assert [error.exception_class for error in spun.errors] == [TaskCancelled]
    assert not backend.cancel(spun.id, running=True)
    rows(spun).update(call={"args": [2], "kwargs": {}})  # the stop that was asked for before would be seen by then
    assert backend.retry(spun.id)
    assert run(spun).return_value == "spun"


def test_a_task_of_another_class_says_nothing_of_retries():
    assert get_retries(object()) == Retries()
