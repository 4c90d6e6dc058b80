"""The three signals of Django's tasks: when, from whom, with what, and the logs that Django makes of them."""

import logging

import pytest

from django_delayq.backend import DelayQBackend
from django_delayq.calls.compat import task_finished, task_started
from django_delayq.recurrence.point import utcnow
from tests.app import tasks as app_tasks
from tests.jobs import tasks
from tests.jobs.support import LOGGER, SUCCESSFUL, connected, row, rows, run_burst, tasks_setting, told

pytestmark = pytest.mark.django_db(transaction=True)

GOOD = str(SUCCESSFUL)


def test_each_is_sent_once_by_the_backends_class():
    with told() as heard:
        result = tasks.echo.enqueue()
        assert heard == [("enqueued", DelayQBackend, result.id, "READY")]
        run_burst()
    assert heard[1:] == [("started", DelayQBackend, result.id, "RUNNING"), ("finished", DelayQBackend, result.id, GOOD)]


def test_a_subclass_is_its_own_sender(settings):
    made = tasks_setting()
    made["default"]["BACKEND"] = f"{__name__}.Own"
    settings.TASKS = made
    with told() as heard:
        tasks.echo.enqueue()
        run_burst()
    assert {sender for _, sender, _, _ in heard} == {Own}


class Own(DelayQBackend):
    """A project's own backend."""


def test_an_attempt_that_is_not_the_last_one_is_started_and_not_finished(tmp_path):
    with told() as heard:
        app_tasks.flaky.using(max_attempts=2, backoff=0).enqueue(str(tmp_path / "f"), 1)
        run_burst()
        run_burst()
    assert [(name, status) for name, _, _, status in heard] == [
        ("enqueued", "READY"), ("started", "RUNNING"), ("started", "RUNNING"), ("finished", GOOD),
    ]  # fmt: skip


def test_finished_tells_value_and_errors_once_they_are_recorded():
    seen = []

    def receive(sender, task_result, **kwargs):
        seen.append((task_result._return_value, [error.exception_class for error in task_result.errors]))
        seen.append(task_result.finished_at is not None and row(task_result).finished_at is not None)

    with connected(receive, task_finished):
        for made in (tasks.echo, app_tasks.fail):
            made.enqueue()
            run_burst()
    assert seen == [([[], {}], []), True, (None, [RuntimeError]), True]


def test_an_end_that_another_worker_has_recorded_is_not_told_by_the_one_that_lost():
    def decide(sender, task_result, **kwargs):
        rows(task_result).update(status="succeeded", fence="1.another", worker="another", finished_at=utcnow())

    with connected(decide, task_started), told() as heard:
        result = tasks.echo.enqueue(1)
        run_burst()
    assert [name for name, *_ in heard] == ["enqueued", "started"]
    assert row(result).worker == "another"


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_receiver_that_fails_changes_no_outcome(error, caplog):
    def broken(sender, **kwargs):
        raise error("broken receiver")

    with connected(broken, task_started, task_finished):
        good, bad = tasks.echo.enqueue(), app_tasks.fail.enqueue()
        run_burst()
    good.refresh()
    bad.refresh()
    assert (str(good.status), str(bad.status)) == (GOOD, "FAILED")
    assert "broken receiver" in caplog.text


def test_the_logs_are_those_of_the_framework(caplog):
    caplog.set_level(logging.DEBUG, LOGGER)
    for made, end in ((tasks.echo, ("INFO", GOOD)), (app_tasks.fail, ("ERROR", "FAILED"))):
        assert "NoneType" not in caplog.text
        caplog.clear()
        result, about = made.enqueue(), f"path={made.module_path}"
        run_burst()
        records = [record for record in caplog.records if record.name == LOGGER]
        assert [(record.levelname, record.getMessage()) for record in records] == [
            ("DEBUG", f"Task id={result.id} {about} enqueued backend=default"),
            ("INFO", f"Task id={result.id} {about} state=RUNNING"),
            (end[0], f"Task id={result.id} {about} state={end[1]}"),
        ]
    assert records[-1].exc_info[0] is RuntimeError
    assert "raise RuntimeError(message)" in caplog.text
