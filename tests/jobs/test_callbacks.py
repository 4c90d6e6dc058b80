"""`on_success` and `on_failure`: what follows an end, once for each outcome that is recorded."""

from contextvars import copy_context
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError

from django_delayq import ledger, sync
from django_delayq.actions import run_now
from django_delayq.calls.compat import InvalidTask, TaskResultDoesNotExist, task_backends, task_enqueued
from django_delayq.exceptions import InvalidArguments, UnknownTask
from django_delayq.models import Run
from django_delayq.testing.plugin import delayq
from django_delayq.worker.calling import execute, give_up
from django_delayq.worker.timeouts import Timeouts
from django_delayq.worker.trip import Trip
from tests.app import tasks as app_tasks
from tests.app.tasks import CALLS
from tests.integration.mirroring import schedule
from tests.jobs import tasks
from tests.jobs.support import (
    SUCCESSFUL,
    Standing,
    connected,
    died,
    retried,
    row,
    run,
    run_burst,
    tasks_setting,
)  # fmt: skip
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["delayq"]
HEARD, OF_RUN = tasks.heard.module_path, tasks.heard_of_run.module_path


def burst():
    """Run what is due, and what follows it."""
    run_burst()
    run_burst()


def callbacks():
    """The rows of callbacks."""
    return Run.objects.filter(task__in=[HEARD, OF_RUN])


# -- of jobs


@pytest.mark.parametrize("name", ["on_success", "on_failure"])
@pytest.mark.parametrize("given", [tasks.heard, HEARD], ids=["task", "path"])
def test_a_task_follows_the_end_that_it_is_named_for_and_gets_the_id_of_the_result(name, given):
    options = {name: given, "queue_name": "mail"}
    good, bad = app_tasks.noop.using(**options).enqueue(), app_tasks.fail.using(**options).enqueue()
    burst()
    assert [(good.id if name == "on_success" else bad.id,)] == CALLS


def test_it_is_a_job_of_the_same_alias_and_queue_with_the_priority_of_its_task_and_not_told_of():
    told = []

    def note(task_result, **kwargs):
        told.append(task_result.id)

    with connected(note, task_enqueued):
        bad = app_tasks.fail.using(backend="second", queue_name="mail", on_failure=HEARD, priority=5).enqueue()
        run_burst(max_runs=1)
        found = callbacks().get()
        run_burst()
    assert (found.backend, found.queue, found.priority, found.call["args"]) == ("second", "mail", 0, [bad.id])
    assert told == [bad.id]
    assert task_backends["second"].get_result(found.result_id).status == SUCCESSFUL
    assert [(bad.id,)] == CALLS


def test_a_retry_calls_nothing_only_the_last_attempt_does(tmp_path):
    path = str(tmp_path / "f")
    options = {"on_success": tasks.heard, "on_failure": tasks.heard, "max_attempts": 3, "backoff": 0}
    result = app_tasks.flaky.using(**options).enqueue(path, 2)
    run_burst()
    assert run(result).status == SUCCESSFUL
    run_burst()
    assert [(result.id,)] == CALLS


def test_a_callback_has_no_callbacks_of_its_own():
    app_tasks.fail.using(on_failure=tasks.heard.using(on_success=tasks.heard)).enqueue()
    burst()
    run_burst()
    assert len(CALLS) == 1


def test_a_job_that_is_cancelled_while_it_waits_calls_nothing():
    result = app_tasks.noop.using(on_failure=tasks.heard, run_after=timedelta(hours=1)).enqueue()
    assert task_backends["default"].cancel(result.id)
    burst()
    assert (CALLS, callbacks().count()) == ([], 0)


def test_a_retried_job_calls_once_for_each_outcome():
    result = app_tasks.fail.using(on_failure=tasks.heard).enqueue()
    burst()
    assert task_backends["default"].retry(result.id)
    burst()
    assert [(result.id,)] * 2 == CALLS


@pytest.mark.parametrize("made", [app_tasks.noop, app_tasks.fail], ids=["successful", "failed"])
def test_where_nothing_is_kept_of_the_job_it_is_called_too(settings, made):
    settings.TASKS = tasks_setting(default={"result_ttl": 0, "failure_ttl": 0})
    result = made.using(on_success=tasks.heard, on_failure=tasks.heard).enqueue()
    burst()
    assert ([(result.id,)], Run.objects.count()) == (CALLS, 0)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_after_a_take_over_and_when_its_workers_died_too_often_it_is_called_once():
    options = {"on_success": tasks.heard, "on_failure": tasks.heard}
    taken_over, lost = (app_tasks.noop.using(**options, queue_name=name).enqueue() for name in ("default", "mail"))
    died(taken_over, times=2)
    died(lost, times=4)
    burst()
    assert (row(taken_over).status, row(lost).status) == ("succeeded", "lost")
    assert sorted([(taken_over.id,), (lost.id,)]) == sorted(CALLS)


@pytest.mark.parametrize("name", ["on_success", "on_failure"])
def test_what_could_never_be_called_is_refused_when_it_is_enqueued(name):
    with pytest.raises(UnknownTask, match=r"tests\.jobs\.tasks\.heart"):
        app_tasks.noop.using(**{name: "tests.jobs.tasks.heart"}).enqueue()
    with pytest.raises(InvalidArguments, match="noop"):
        app_tasks.noop.using(**{name: app_tasks.noop}).enqueue()
    with pytest.raises(InvalidTask, match="@task function or its path"):
        app_tasks.noop.using(**{name: print})
    assert not Run.objects.exists()


def test_a_callback_that_was_written_and_not_put_is_put_by_the_sweep(broker, monkeypatch):
    result = app_tasks.noop.using(on_success=tasks.heard).enqueue()
    with monkeypatch.context() as patched:
        patched.setattr("django_delayq.worker.trip.sync.put_runs", lambda broker, runs: 0)
        run_burst()
    assert (callbacks().get().status, CALLS) == ("queued", [])
    sync.sweep_delta(broker)
    run_burst()
    assert [(result.id,)] == CALLS


def test_where_the_end_is_written_by_two_there_is_one_callback(broker):
    """The first one's lease has run out while it executed; both say that the job has ended."""
    run_burst()
    standing = Standing(retried(app_tasks.noop, on_success=tasks.heard).enqueue())
    timeouts = Timeouts(grace_seconds=5, give_up=give_up, overdue=lambda held: None, forget=lambda: None)
    timeouts.start()
    held = []
    try:
        for request in (1, 2):
            trip = Trip(standing.broker)
            _, [entry] = trip.claim(standing.shard, 1, request, 10.0**12)
            verdicts = trip.judge([entry])
            held.append((trip, (verdicts.start or trip.begin(verdicts.suspects).start)[0]))
            standing.make_due()
        for _, job in held:
            copy_context().run(execute, job, timeouts, 10_000)
        for trip, job in held:
            trip.settle(standing.shard, trip.record([job]).settle)
    finally:
        timeouts.stop()
    burst()
    assert [(standing.row.result_id,)] == CALLS
    assert row_count() == (1, 1)


def row_count():
    """How many jobs and how many callbacks there are."""
    return Run.objects.exclude(task=HEARD).count(), callbacks().count()


# -- of schedules


def due(broker, **values):
    """Return a schedule that is due now."""
    row = schedule(**values)
    make_due(broker, row)
    return row


def test_of_a_schedule_the_task_gets_the_run_and_its_due_point(broker):
    due(broker, name="good", on_success=OF_RUN, on_failure=OF_RUN)
    due(broker, name="bad", task="tests.app.tasks.fail", on_failure=OF_RUN, queue="mail")
    due(broker, name="quiet", task="tests.app.tasks.fail", on_success=OF_RUN)
    burst()
    runs = Run.objects.filter(schedule_name__in=["good", "bad"])
    assert sorted(CALLS) == sorted(("run", each.pk, each.due_at.isoformat()) for each in runs)
    assert set(callbacks().values_list("queue", "backend")) == {("default", "default"), ("mail", "default")}


def test_what_is_retried_or_skipped_calls_nothing(broker):
    due(broker, task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(hours=1), on_failure=OF_RUN)
    other = schedule(name="late", missed="skip", on_failure=OF_RUN, on_success=OF_RUN, grace=timedelta(0))
    make_due(broker, other, timedelta(days=2))
    burst()
    assert set(Run.objects.values_list("status", flat=True)) == {"retrying", "skipped"}
    assert (CALLS, callbacks().count()) == ([], 0)


def test_what_is_ordered_by_hand_calls_too_and_what_is_lost_counts_as_a_failure(broker):
    row = schedule(on_success=OF_RUN, on_failure=OF_RUN)
    run_burst()
    ordered = run_now(row)
    burst()
    assert [("run", ordered.pk, ordered.due_at.isoformat())] == CALLS
    CALLS.clear()
    abandoned = Run.objects.create(
        schedule_id=row.pk, schedule_name=row.name, task=row.task, queue=row.queue, generation=row.generation,
        due_at=datetime(2026, 1, 1, tzinfo=UTC), status="running", fence="1.x", worker="w", attempt=1,
    )  # fmt: skip
    row.pause()
    ledger.close_abandoned(ledger.load_abandoned())
    abandoned.refresh_from_db()
    assert abandoned.status == "lost"
    sync.sweep_fully(broker)
    burst()
    assert [("run", abandoned.pk, abandoned.due_at.isoformat())] == CALLS


@pytest.mark.parametrize("name", ["on_success", "on_failure"])
@pytest.mark.parametrize(
    ("path", "words"), [("tests.jobs.tasks.heart", "No installed app"), ("tests.app.tasks.noop", "too many positional")]
)
def test_a_schedule_refuses_what_could_never_be_called(name, path, words):
    with pytest.raises(ValidationError, match=words) as error:
        schedule(**{name: path})
    assert error.value.message_dict.keys() == {name}


def test_a_schedule_refuses_a_callback_where_no_backend_of_ours_is(settings):
    settings.TASKS = {"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}
    with pytest.raises(ValidationError, match="DelayQBackend"):
        schedule(on_failure=OF_RUN)


def test_without_redis_callbacks_run_too(delayq):
    delayq.start_at(datetime(2026, 3, 2, 9, tzinfo=UTC))
    result = app_tasks.noop.using(on_success=tasks.heard).enqueue()
    schedule(kind="every", cron="", every=timedelta(hours=1), on_success=OF_RUN)
    delayq.run_due(timedelta(minutes=61))
    found = Run.objects.get(origin="due")
    assert [(result.id,), ("run", found.pk, found.due_at.isoformat())] == CALLS
