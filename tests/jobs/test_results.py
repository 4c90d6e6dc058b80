"""Results as Django documents them: what stands of a job before, during and after it, and what a worker adds."""

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from django.utils.module_loading import import_string

from django_delayq import sync
from django_delayq.calls.capture import capture_output
from django_delayq.calls.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.exceptions import InvalidArguments, ResultTooLarge
from django_delayq.models import Output, Run
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import wait_until
from tests.app import tasks as app_tasks
from tests.faults.live import live_worker
from tests.jobs import tasks
from tests.jobs.support import LOGGER, SUCCESSFUL, Standing, row, rows, run, run_burst, tasks_setting

pytestmark = pytest.mark.django_db(transaction=True)

#: As long as the random part of an id.
TOKEN = "x" * 22
FAILED, READY, RUNNING = TaskResultStatus.FAILED, TaskResultStatus.READY, TaskResultStatus.RUNNING


def mismatch():
    """Return the exception of a task that asks for another one's result."""
    return import_string(f"{LOGGER}.exceptions.TaskResultMismatch")


# -- getting


def test_a_result_is_found_by_its_id_and_equals_what_enqueue_returned():
    result = tasks.echo.enqueue(1, two=3)
    assert tasks.echo.get_result(result.id) == result
    assert async_to_sync(tasks.echo.aget_result)(result.id) == result
    assert task_backends["default"].get_result(result.id) == result
    assert async_to_sync(task_backends["default"].aget_result)(result.id) == result


def test_refresh_brings_what_has_become_of_it():
    one, two = tasks.echo.enqueue(1), tasks.echo.enqueue(2)
    run_burst()
    one.refresh()
    async_to_sync(two.arefresh)()
    assert (one.return_value, two.return_value) == ([[1], {}], [[2], {}])
    assert one.is_finished


def test_a_result_of_another_task_is_a_mismatch():
    result = tasks.echo.enqueue()
    for get in (tasks.aecho.get_result, async_to_sync(tasks.aecho.aget_result)):
        with pytest.raises(mismatch(), match=r"tests\.jobs\.tasks\.echo"):
            get(result.id)
    assert tasks.echo.using(priority=5, queue_name="mail").get_result(result.id).id == result.id


@pytest.mark.parametrize(
    "unknown",
    ["123", "", f"1-{TOKEN}", f"1-{TOKEN[1:]}", f"0-{TOKEN}", f"-1-{TOKEN}", f"1-\u00e9{TOKEN[1:]}", "x" * 500,
     f"1-{TOKEN}\n", f"{10**30}-{TOKEN}", f"\u0661-{TOKEN}", None, 5, b"x"],
    ids=ascii,
)  # fmt: skip
def test_what_is_no_id_of_a_job_does_not_exist(unknown):
    for get in (tasks.echo.get_result, async_to_sync(tasks.echo.aget_result)):
        with pytest.raises(TaskResultDoesNotExist):
            get(unknown)


def test_the_id_of_another_alias_does_not_exist(settings):
    settings.TASKS = tasks_setting(other={})
    result = tasks.echo.using(backend="other").enqueue()
    assert result.backend == "other"
    assert task_backends["other"].get_result(result.id).backend == "other"
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result.id)
    run_burst()
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result.id)
    result.refresh()
    assert (result.status, result.return_value) == (SUCCESSFUL, [[], {}])


def test_the_result_of_a_task_that_is_no_more_does_not_exist(monkeypatch):
    from django_delayq.calls import registry

    result = tasks.echo.enqueue()
    monkeypatch.setattr(registry, "_tasks", {})
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result.id)


def test_what_is_enqueued_in_a_queue_that_the_alias_has_no_more_can_still_be_read_and_runs(settings):
    result = tasks.echo.using(queue_name="mail", priority=5).enqueue(1)
    made = tasks_setting()
    made["default"]["QUEUES"] = ["default"]
    settings.TASKS = made
    assert task_backends["default"].get_result(result.id).status == READY
    run_burst()
    assert task_backends["default"].get_result(result.id).return_value == [[1], {}]


# -- statuses


def test_a_successful_one_has_all_its_times(use_tz):
    before = timezone.now()
    result = run(tasks.echo.enqueue())
    assert (result.status, result.is_finished, result.return_value) == (SUCCESSFUL, True, [[], {}])
    times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
    assert times == sorted(times)
    assert timedelta(milliseconds=-1) <= times[0] - before
    assert times[-1] <= timezone.now()
    assert timezone.is_aware(times[0]) == use_tz


def test_while_it_runs_it_is_running_and_names_its_worker(tmp_path, use_tz, settings):
    settings.DELAYQ = {**settings.DELAYQ, "RUNNING_AFTER_SECONDS": 0.1}
    gate = tmp_path / "gate"
    result = app_tasks.stubborn.enqueue(str(tmp_path / "path"), str(gate))
    with live_worker("one"):
        wait_until(lambda: result.refresh() or result.status == RUNNING)
        assert not result.is_finished
        assert (result.worker_ids, result.attempts) == (["one"], 1)
        assert result.enqueued_at <= result.started_at <= timezone.now() + timedelta(seconds=1)
        assert result.last_attempted_at == result.started_at
        assert result.finished_at is None
        with pytest.raises(ValueError, match="not finished"):
            _ = result.return_value
        gate.touch()
        wait_until(lambda: result.refresh() or result.is_finished)
        assert (result.status, result.return_value) == (SUCCESSFUL, "late")
        assert result.worker_ids == ["one"]
    assert (tmp_path / "path").read_text().splitlines()[-1] == "end held"


# -- values


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("tuple", [1, [2, "x"]]),
        ("bytes", "caf\u00e9"),
        ("deep", {"a": [{"b": None}], "c": 1.5, "d": "\u2028 \\u0000"}),
        ("none", None),
    ],
)
def test_a_value_is_returned_as_plain_json(what, value):
    assert run(tasks.give.enqueue(what)).return_value == value


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("object", TypeError), ("set", TypeError), ("broken bytes", ValueError), ("nan", ValueError),
        ("lazy", KeyError), ("nul", ValueError), ("surrogate", ValueError),
    ],
)  # fmt: skip
def test_a_value_that_is_no_json_or_that_not_every_database_stores_is_a_failure_of_the_task(what, error):
    result, other = tasks.give.enqueue(what), tasks.echo.enqueue()
    assert (run(result).status, result.errors[0].exception_class) == (FAILED, error)
    other.refresh()
    assert other.status == SUCCESSFUL
    assert result._return_value is None
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_value_that_is_too_large_is_not_kept_and_the_task_has_succeeded(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RESULT_BYTES": 1_024}
    result = run(tasks.echo.enqueue("x" * 1_024))
    assert (result.status, row(result).status, row(result).result) == (SUCCESSFUL, "succeeded", None)
    assert result.errors[-1].exception_class is ResultTooLarge
    with pytest.raises(ResultTooLarge, match="at most 1,024 are kept"):
        _ = result.return_value


# -- how long they are kept


def test_each_is_kept_for_as_long_as_its_outcome_says_and_then_deleted_with_what_it_said(broker, settings):
    settings.TASKS = tasks_setting(other={"result_ttl": 60, "failure_ttl": timedelta(hours=1)})
    results = [made.enqueue() for made in (app_tasks.say, app_tasks.fail)]
    results += [made.using(backend="other").enqueue() for made in (app_tasks.say, app_tasks.fail)]
    with capture_output(1_000):
        run_burst()
    found = list(map(row, results))
    kept = [each.expires_at - each.finished_at for each in found]
    assert kept == [timedelta(days=1), timedelta(days=30), timedelta(minutes=1), timedelta(hours=1)]
    assert Output.objects.count() == 2
    rows(results[0]).update(expires_at=utcnow() - timedelta(milliseconds=1))
    with pytest.raises(TaskResultDoesNotExist):
        results[0].refresh()
    for _ in range(2):  # the second one has nothing to do
        sync.sweep_fully(broker)
        assert set(Run.objects.values_list("pk", flat=True)) == {each.pk for each in found[1:]}
    assert Output.objects.count() == 1


@pytest.mark.parametrize("made", [app_tasks.say, app_tasks.fail], ids=["successful", "failed"])
def test_where_nothing_is_kept_the_row_goes_with_the_outcome(broker, settings, made):
    settings.TASKS = tasks_setting(default={"result_ttl": 0, "failure_ttl": 0})
    result = made.enqueue()
    standing = Standing(result)
    with capture_output(1_000):
        run_burst()
    assert (Run.objects.count(), Output.objects.count(), standing.gone()) == (0, 0, True)
    for look in (result.refresh, lambda: result.wait(0)):
        with pytest.raises(TaskResultDoesNotExist):
            look()


# -- errors


def test_a_failed_one_tells_the_exception_and_where_it_was_raised(use_tz):
    result = run(app_tasks.fail.enqueue("the bank is closed"))
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 1)
    (error,) = result.errors
    assert (error.exception_class, error.exception_class_path) == (RuntimeError, "builtins.RuntimeError")
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert "raise RuntimeError(message)" in error.traceback
    assert error.traceback.endswith("RuntimeError: the bank is closed\n")
    times = [result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("how", "error"), [("exit", SystemExit), ("interrupt", KeyboardInterrupt), ("other", BaseException)]
)
def test_whatever_ends_a_task_is_its_failure_and_the_worker_goes_on(how, error):
    result, other = tasks.leave.enqueue(how), tasks.echo.enqueue()
    assert run(result).errors[0].exception_class is error
    other.refresh()
    assert other.status == SUCCESSFUL


def test_an_attempt_that_fails_with_what_cannot_be_printed_is_tried_again():
    result = run(tasks.unspeakable.using(max_attempts=2, backoff=0).enqueue())
    assert (run(result).status, result.attempts) == (FAILED, 2)


def test_arguments_that_do_not_fit_are_a_failure_that_is_not_tried_again():
    result = run(app_tasks.fail.using(max_attempts=5, backoff=0).enqueue(1, 2, 3))
    assert (result.status, result.attempts) == (FAILED, 1)
    assert result.errors[0].exception_class is InvalidArguments
    assert "fail(message" in result.errors[0].traceback


def test_what_looks_secret_is_in_no_error_and_no_log_of_ours(caplog):
    made = tasks.leak.using(max_attempts=2, backoff=0)
    result = run(made.enqueue("swordfish", note="plain"))
    result = result if result.is_finished else run(result)
    text = "".join(error.traceback for error in result.errors)
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("django_delayq"))
    assert len(result.errors) == 2
    assert "plain" in text
    assert "plain" in ours
    assert "swordfish" not in text + ours


# -- the worker and the context


def test_the_context_knows_the_job():
    result = tasks.tell.using(priority=3).enqueue(1, a=2)
    run(result)
    assert result.return_value == {
        "id": result.id,
        "attempt": 1,
        "status": "RUNNING",
        "args": [1],
        "kwargs": {"a": 2},
        "called with": [[1], {"a": 2}],
        "workers": 1,
        "key": result.id,
        "lost": False,
        "task": "tests.jobs.tasks.tell",
        "priority": 3,
        "queue": "default",
        "backend": "default",
        "run_after": "None",
        "started": True,
    }


def test_a_coroutine_has_the_context_too():
    result = tasks.atell.enqueue()
    assert run(result).return_value == result.id
