"""`on_success` and `on_failure`: what follows an end, once for each outcome, wherever that stands."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django_delayq.backend.operating import revive

from django_delayq import ledger, mirror
from django_delayq.broker import JobBroker
from django_delayq.compat import InvalidTask, task_backends, task_finished
from django_delayq.exceptions import InvalidArguments, UnknownTask
from django_delayq.jobs import decode
from django_delayq.kinds import Jobs, Timeouts
from django_delayq.models import Job, Run
from django_delayq.orders import run_now
from django_delayq.testing.plugin import delayq
from tests.app import tasks as app_tasks
from tests.app.tasks import CALLS
from tests.integration.mirroring import schedule
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Stored, run, run_burst, tasks_setting, with_options
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["delayq"]
HEARD, OF_RUN = tasks.heard.module_path, tasks.heard_of_run.module_path
ALIASES = pytest.mark.parametrize("alias", ["default", "durable", "stored"])


def burst():
    """Run what is due, and what follows it."""
    run_burst()
    run_burst()


# -- of jobs


@ALIASES
@pytest.mark.parametrize("name", ["on_success", "on_failure"])
@pytest.mark.parametrize("given", [tasks.heard, HEARD], ids=["task", "path"])
def test_a_task_follows_the_end_that_it_is_named_for_and_gets_the_id_of_the_result(alias, name, given):
    options = {"backend": alias, name: given, "queue_name": "mail"}
    good, bad = app_tasks.noop.using(**options).enqueue(), app_tasks.fail.using(**options).enqueue()
    burst()
    assert [(good.id if name == "on_success" else bad.id,)] == CALLS


@ALIASES
def test_it_is_a_job_of_the_same_alias_and_queue_and_durable_where_the_outcome_is(alias, broker):
    bad = app_tasks.fail.using(backend=alias, queue_name="mail", on_failure=tasks.heard.using(priority=7)).enqueue()
    ended = []

    def note(sender, task_result, **kwargs):
        ended.append((task_result.task.module_path, task_result.backend, task_result.task.queue_name))

    task_finished.connect(note)
    try:
        burst()
    finally:
        task_finished.disconnect(note)
    assert ended[1:] == [(HEARD, alias, "mail")]
    rows = Job.objects.filter(task=HEARD)
    assert rows.count() == (alias != "default")
    assert [(bad.id,)] == CALLS


def test_a_retry_calls_nothing_only_the_last_attempt_does(tmp_path):
    path = str(tmp_path / "f")
    options = {"on_success": tasks.heard, "on_failure": tasks.heard, "max_attempts": 3, "backoff": 0}
    result = app_tasks.flaky.using(**options).enqueue(path, 2)
    run_burst()
    assert run(result).status == SUCCESSFUL
    run_burst()
    assert [(result.id,)] == CALLS


@with_options(on_failure=HEARD)
def unlucky() -> None:
    """Fail, and say so at the task."""
    raise LookupError


def test_it_may_stand_at_the_task():
    made = app_tasks.fail.using(on_failure=HEARD)
    result = made.using(priority=3).enqueue()
    burst()
    assert [(result.id,)] == CALLS
    assert unlucky.on_failure == HEARD


def test_a_callback_has_no_callbacks_of_its_own():
    app_tasks.fail.using(on_failure=tasks.heard.using(on_success=tasks.heard)).enqueue()
    burst()
    run_burst()
    assert len(CALLS) == 1


def test_a_cancelled_job_calls_nothing():
    result = app_tasks.noop.using(on_failure=tasks.heard, run_after=timedelta(hours=1)).enqueue()
    assert task_backends["default"].cancel(result.id)
    burst()
    assert CALLS == []


def test_a_revived_job_calls_once_for_each_outcome(broker):
    result = app_tasks.fail.using(on_failure=tasks.heard).enqueue()
    burst()
    revive(broker, result.id)
    burst()
    assert [(result.id,)] * 2 == CALLS


@pytest.mark.parametrize("name", ["on_success", "on_failure"])
def test_what_could_never_be_called_is_refused_when_it_is_enqueued(name, settings):
    settings.TASKS = tasks_setting()
    with pytest.raises(UnknownTask, match=r"tests\.jobs\.tasks\.heart"):
        app_tasks.noop.using(**{name: "tests.jobs.tasks.heart"}).enqueue()
    with pytest.raises(InvalidArguments, match="noop"):
        app_tasks.noop.using(**{name: app_tasks.noop}).enqueue()
    with pytest.raises(InvalidTask, match="@task function or its path"):
        app_tasks.noop.using(**{name: print})


def test_the_name_stands_signed_in_the_text_of_the_job():
    stored = Stored(app_tasks.noop.using(on_failure=tasks.heard).enqueue())
    _, call, _ = decode(stored.queue, stored.member, stored.payload)
    assert (call.on_success, call.on_failure) == ("", HEARD)


def test_of_a_lost_entry_the_row_of_a_callback_is_put_by_the_sweep(broker):
    result = app_tasks.noop.using(backend="durable", on_success=tasks.heard).enqueue()
    run_burst()
    run_burst()
    CALLS.clear()
    Job.objects.filter(task=HEARD).update(
        status="READY", finished_at=None, expires_at=None, mirrored=False, attempt=0, state="",
        enqueued_at=datetime(2020, 1, 1, tzinfo=UTC), wakes_at=datetime(2020, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    mirror.delta_sweep(broker)
    run_burst()
    assert [(result.id,)] == CALLS


@ALIASES
def test_where_the_end_is_written_by_two_there_is_one_callback(alias, broker):
    """The first one's lease has run out while it executed; both say that the job has ended."""
    run_burst()
    result = app_tasks.noop.using(backend=alias, on_success=tasks.heard).enqueue()
    stored = Stored(result)
    timeouts = Timeouts(grace_seconds=5, overdue=lambda held: None, forget=lambda: None)
    timeouts.start()
    jobs, held = JobBroker(broker), []
    try:
        for request in (1, 2):
            kind = Jobs(jobs, timeouts)
            claimed = kind.claim(stored.shard, 1, request, 10.0**12)
            verdicts = kind.judge(claimed.entries)
            begun = verdicts.start or kind.begin(verdicts.suspects).start
            held.append((kind, begun[0]))
            stored.make_due()
        for kind, job in held:
            kind.execute(job)
        for kind, job in held:
            settled = kind.record([job]).settle if job.stored else [job]
            if settled:
                kind.settle(stored.shard, settled)
    finally:
        timeouts.stop()
    mirror.full_sweep(broker)  # puts what a worker has written and not sent
    burst()
    assert [(result.id,)] == CALLS


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
    assert set(Job.objects.values_list("queue", "backend", "task")) == {
        ("default", "durable", OF_RUN), ("mail", "durable", OF_RUN)
    }  # fmt: skip


def test_what_is_retried_or_skipped_calls_nothing(broker):
    due(broker, task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(hours=1), on_failure=OF_RUN)
    other = schedule(name="late", missed="skip", on_failure=OF_RUN, on_success=OF_RUN, grace=timedelta(0))
    make_due(broker, other, timedelta(days=2))
    burst()
    assert set(Run.objects.values_list("status", flat=True)) == {"retrying", "skipped"}
    assert (CALLS, Job.objects.count()) == ([], 0)


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
    mirror.full_sweep(broker)
    burst()
    assert [("run", abandoned.pk, abandoned.due_at.isoformat())] == CALLS


@pytest.mark.parametrize("name", ["on_success", "on_failure"])
@pytest.mark.parametrize(
    ("path", "words"),
    [("tests.jobs.tasks.heart", "No installed app"), ("tests.app.tasks.noop", "too many positional")],
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
    found = Run.objects.get()
    assert [(result.id,), ("run", found.pk, found.due_at.isoformat())] == CALLS
