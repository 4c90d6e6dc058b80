"""Attempts, backoff, timeouts and dead jobs: said by the decorator, by `using`, or by the alias' OPTIONS."""

from datetime import timedelta

import pytest

from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.exceptions import TaskTimeout
from django_delayq.jobs import Retries
from django_delayq.jobs.task import retries_of
from django_delayq.worker import loop
from django_delayq.worker.exit_codes import RECYCLE
from tests.acceptance.support import wait_until
from tests.app import tasks as app_tasks
from tests.jobs import tasks
from tests.jobs.support import DECORATOR_OPTIONS, SUCCESSFUL, Stored, run, run_burst, tasks_setting

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY
#: Far beyond what any of these tests takes.
LONG = 300
FAIL = "tests.app.tasks.fail"


def comes_due(*results):
    """Run what is due; return for each of these in how many seconds it comes due: (at least, at most)."""
    stored = [Stored(result) for result in results]
    before = stored[0].jobs.broker.now_ms()
    run_burst()
    after = stored[0].jobs.broker.now_ms()
    return [((one.wakes_ms - after) / 1000, (one.wakes_ms - before) / 1000) for one in stored]


# -- attempts


def test_without_a_word_a_failure_is_final():
    result = run(app_tasks.fail.enqueue())
    assert (result.status, result.attempts) == (FAILED, 1)


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
        Stored(result).make_due()


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
    try:
        assert run_burst() == RECYCLE
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, TaskTimeout)
        assert "Still running" in result.errors[0].traceback
        assert "in stubborn" in result.errors[0].traceback
    finally:
        gate.touch()
    wait_until(lambda: "end" in (tmp_path / "f").read_text())
    assert (tmp_path / "f").read_text().splitlines()[-1] == "end lost"
    result.refresh()
    assert result.status == FAILED


# -- dead jobs


def test_a_failed_job_is_kept_among_the_dead():
    result = run(app_tasks.fail.enqueue())
    assert Stored(result).dead
    assert Stored(result).result is None


def test_dead_jobs_are_kept_for_as_long_as_the_alias_says(settings):
    settings.TASKS = tasks_setting(default={"dead_ttl": 3600})
    old = run(app_tasks.fail.enqueue("old"))
    stored = Stored(old)
    stored.client.zadd(stored.names["dead"], {stored.member: stored.jobs.broker.now_ms() - 3_700_000})
    new = run(app_tasks.fail.enqueue("new"))
    assert new.status == FAILED
    with pytest.raises(TaskResultDoesNotExist):
        old.refresh()
    assert stored.gone()


def test_no_more_dead_jobs_are_kept_than_the_alias_says(settings):
    settings.TASKS = tasks_setting(default={"dead_max": 2})
    results = [run(app_tasks.fail.enqueue(str(n))) for n in range(4)]
    kept = [Stored(result).dead for result in results]
    assert kept == [False, False, True, True]


@pytest.mark.parametrize("options", [{"dead_max": 1}, {"dead_max": 0}, {"dead_ttl": 0}], ids=str)
def test_a_job_that_dies_deletes_no_dead_job_that_another_alias_of_its_queue_keeps(settings, options):
    settings.TASKS = tasks_setting(brief=options)
    others = [run(app_tasks.fail.enqueue(str(n))) for n in range(3)]
    own = run(app_tasks.fail.using(backend="brief").enqueue("brief"))
    assert [Stored(result).dead for result in (*others, own)] == [True] * 4


def test_what_aliases_of_other_queues_and_durable_ones_keep_does_not_count(settings):
    settings.TASKS = tasks_setting(default={"dead_max": 1}, durable={"durable": True}, other={})
    settings.TASKS["other"]["QUEUES"] = ["mail"]
    results = [run(app_tasks.fail.enqueue(str(n))) for n in range(2)]
    assert [Stored(result).dead for result in results] == [False, True]


def test_a_result_is_kept_for_as_long_as_the_alias_says(settings):
    settings.TASKS = tasks_setting(default={"result_ttl": timedelta(minutes=2)})
    stored = Stored(tasks.echo.enqueue())
    before = stored.jobs.broker.now_ms()
    run_burst()
    left = stored.client.pttl(stored.result_key)
    assert left <= 120_000 <= left + stored.jobs.broker.now_ms() - before + 1


def test_no_result_is_kept_where_none_is_wanted(settings):
    settings.TASKS = tasks_setting(default={"result_ttl": 0})
    result = app_tasks.add.enqueue(1)
    run_burst()
    assert app_tasks.CALLS == [(1, 1)]
    assert Stored(result).gone()
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result.id)


def test_a_task_of_another_class_says_nothing_of_retries():
    assert retries_of(object()) == Retries()
