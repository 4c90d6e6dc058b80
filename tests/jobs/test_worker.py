"""Jobs in a worker: what it does not know, whom it takes over, and what runs beside schedules."""

from dataclasses import asdict, fields
from datetime import timedelta

import pytest
from django_delayq.jobs.record import encode

from django_delayq import registry
from django_delayq.broker import JobBroker
from django_delayq.compat import TaskResultStatus
from django_delayq.exceptions import BrokerUnavailable, JobLost
from django_delayq.jobs import Call
from django_delayq.models import Job, Run, Schedule
from django_delayq.worker import Worker, WorkerOptions, dispatch
from tests.acceptance.support import wait_until
from tests.app import tasks as app_tasks
from tests.faults.live import live_worker
from tests.integration import mirroring
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Stored, run, run_burst, tasks_setting
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY


def died(*results, times=1, started=True):
    """Let workers claim these jobs, begin to execute them, and die; so many times."""
    stored = Stored(results[0])
    members = [Stored(result).member for result in results]
    for request in range(times):
        claim = stored.jobs.claim(stored.shard, limit=100, lease_ms=0, request=request + 1)
        leases = [(entry.member, claim.holder) for entry in claim.entries if entry.member in members and entry.lapsed]
        if started and leases:
            stored.jobs.renew(stored.shard, leases, lease_ms=0, start=True)
            stored.client.zadd(stored.names["jobs"], {member: 1 for member, _ in leases})


# -- what it does not know


def test_an_unknown_task_is_kept_for_other_workers(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "UNKNOWN_TASK_FIRST_MS", 30_000)  # not while the test is looking
    result, other = tasks.echo.enqueue(1), app_tasks.add.enqueue(2)
    known = dict(registry.get_tasks())
    lacking = {name: made for name, made in known.items() if name != tasks.echo.module_path}
    monkeypatch.setattr(registry, "_tasks", lacking)
    stored = Stored(result)
    before = stored.jobs.broker.now_ms()
    assert run(other).status == SUCCESSFUL
    assert "No installed app has a @task function 'tests.jobs.tasks.echo'" in caplog.text
    assert before + 30_000 <= stored.wakes_ms <= stored.jobs.broker.now_ms() + 30_000
    monkeypatch.setattr(registry, "_tasks", known)
    assert tasks.echo.get_result(result.id).status == READY
    stored.make_due()
    assert (run(result).return_value, result.attempts) == ([[1], {}], 1)


def test_jobs_that_no_worker_knows_hold_nobody_else_up(monkeypatch):
    """Such as those of a task that is gone. Two workers once left them to each other, for a second every few jobs."""
    tasks.echo.enqueue_many(((n,), {}) for n in range(600))
    app_tasks.CALLS.clear()
    app_tasks.add.enqueue(2)
    lacking = {name: made for name, made in registry.get_tasks().items() if name != tasks.echo.module_path}
    monkeypatch.setattr(registry, "_tasks", lacking)
    with live_worker("a", threads=2), live_worker("b", threads=2):
        wait_until(lambda: app_tasks.CALLS, 120, "what is behind them")


@pytest.mark.parametrize("other", [None, f"{__name__}.Foreign"], ids=["unknown", "another backend"])
def test_an_unknown_alias_is_kept_for_other_workers(settings, other, caplog):
    settings.TASKS = tasks_setting(other={})
    result, neighbour = tasks.echo.using(backend="other").enqueue(1), app_tasks.add.enqueue(2)
    settings.TASKS = tasks_setting() if other is None else {**tasks_setting(), "other": {"BACKEND": other}}
    assert run(neighbour).status == SUCCESSFUL
    assert "TASKS" in caplog.text
    assert "'other'" in caplog.text
    Stored(result).make_due()
    settings.TASKS = tasks_setting(other={})
    assert run(result).return_value == [[1], {}]


class Foreign:
    """Another backend."""

    def __init__(self, alias, params):
        self.alias = alias

    def validate_task(self, task):
        """Accept everything."""


def test_a_text_of_a_later_version_is_kept_for_other_workers(caplog):
    result, neighbour = tasks.echo.enqueue(1), app_tasks.add.enqueue(2)
    stored = Stored(result)
    payload, line = stored.payload, stored.payload.split("\n")[1]
    stored.payload = encode(stored.queue, stored.member, line[:-1] + ',"a field of tomorrow":1}')
    assert run(neighbour).status == SUCCESSFUL
    assert "later version" in caplog.text
    assert stored.payload
    stored.payload = payload
    stored.make_due()
    assert run(result).return_value == [[1], {}]


def test_a_call_is_stored_whole():
    """Each field of a call is in its text, or is what it is by default."""
    from django_delayq.jobs import decode

    made = tasks.echo.using(priority=3, max_attempts=4, backoff=1.5, timeout=9, unique_key="k", on_success=tasks.echo)
    result = made.enqueue(1, a=2)
    _, call, _ = decode("default", Stored(result).member, Stored(result).payload)
    left = {"enqueued", "unique", "run_after"}
    assert {name: value for name, value in asdict(call).items() if name not in left} == {
        "task": "tests.jobs.tasks.echo", "args": [1], "kwargs": {"a": 2}, "backend": "default", "priority": 3,
        "max_attempts": 4, "backoff": 1.5, "timeout": 9.0, "durable": False,
        "on_success": "tests.jobs.tasks.echo", "on_failure": "",
    }  # fmt: skip
    assert (len(call.unique), call.run_after) == (22, None)
    assert {item.name for item in fields(Call)} == set(asdict(call))


# -- take-overs


def test_what_a_dead_worker_had_is_run_again():
    run_burst()  # builds the shard
    result = tasks.tell.enqueue()
    died(result, times=1)
    assert run(result).return_value["attempt"] == 1
    assert result.worker_ids[0] != "thief"


def test_what_has_a_result_is_not_run_again():
    """A worker that recorded the end, and whose settlement's reply was lost, may not be the last one to see it."""
    run_burst()
    result = app_tasks.add.enqueue(1)
    stored = Stored(result)
    died(result, times=1)
    stored.result = "a result"
    run_burst()
    assert app_tasks.CALLS == []
    assert stored.result == "a result"
    stored.client.delete(stored.result_key)
    assert stored.gone()


def test_who_has_killed_its_workers_too_often_is_dead_without_being_run(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RECLAIMS": 2}
    run_burst()
    result = app_tasks.add.enqueue(1)
    died(result, times=3)
    neighbour = app_tasks.add.enqueue(2)
    assert (run(result).status, result.errors[0].exception_class) == (FAILED, JobLost)
    assert "2 times in a row" in result.errors[0].traceback
    assert Stored(result).dead
    neighbour.refresh()
    assert neighbour.status == SUCCESSFUL
    assert app_tasks.CALLS == [(2, 1)]


def test_who_was_taken_over_less_often_runs(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RECLAIMS": 2}
    run_burst()
    result = app_tasks.add.enqueue(1)
    died(result, times=2)
    assert run(result).return_value == 2


def test_take_overs_begin_anew_with_each_attempt():
    run_burst()
    result = app_tasks.fail.using(max_attempts=2, backoff=3600).enqueue()
    died(result, times=3)
    run_burst()
    stored = Stored(result)
    assert not stored.client.hexists(stored.names["reclaims"], stored.member)
    stored.make_due()
    assert (run(result).attempts, result.status) == (2, FAILED)


# -- beside schedules


def test_jobs_and_points_run_in_one_worker(broker):
    rows = [
        Schedule.objects.create(name=f"s{n}", task="tests.app.tasks.add", args=[n], kind="cron", cron=DAILY_CRON)
        for n in range(5)
    ]
    for row in rows:
        make_due(broker, row)
    results = app_tasks.add.enqueue_many(((100 + n,), {}) for n in range(20))
    run_burst()
    assert sorted(n for n, _ in app_tasks.CALLS) == [*range(5), *range(100, 120)]
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}
    results[-1].refresh()
    assert results[-1].return_value == 120


def test_a_worker_that_ends_after_so_many_runs_counts_jobs_too():
    for n in range(10):
        app_tasks.add.enqueue(n)
    run_burst(max_runs=4, threads=1)
    assert [n for n, _ in app_tasks.CALLS] == [0, 1, 2, 3]
    run_burst(threads=1)
    assert [n for n, _ in app_tasks.CALLS] == list(range(10))


def poisonous_point(broker):
    """Make a schedule whose point has killed as many workers as it may."""
    row = mirroring.schedule("poison", task="tests.app.tasks.add", args=[1])
    point = make_due(broker, row)
    Run.of(row, point, status="running", reclaims=3, fence="old", started_at=point).save()


def test_what_was_not_executed_is_no_run_of_a_worker_and_each_attempt_is_one(broker):
    run_burst()
    jobs = app_tasks.add.using(backend="durable").enqueue_many(((n,), {}) for n in range(3))
    Job.objects.filter(member__in=[f"j{result.id.rpartition('.')[2]}" for result in jobs]).delete()
    died(app_tasks.add.enqueue(3), times=4)
    poisonous_point(broker)
    failing = mirroring.schedule("fails", task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(hours=1))
    make_due(broker, failing)
    app_tasks.fail.using(max_attempts=2).enqueue()
    app_tasks.add.enqueue(4)
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))
    worker.run()
    assert set(Run.objects.values_list("status", "reason")) >= {("lost", "poison")}
    assert [n for n, _ in app_tasks.CALLS] == [4]
    assert worker.runs == 3


def test_a_worker_that_ends_after_so_many_runs_makes_them_although_jobs_were_deleted(broker):
    app_tasks.add.using(backend="durable").enqueue_many(((n,), {}) for n in range(3))
    Job.objects.all().delete()
    for n in range(5):
        app_tasks.add.enqueue(n)
    run_burst(max_runs=2, threads=1)
    assert [n for n, _ in app_tasks.CALLS] == [0, 1]


# -- beside schedules, with Redis away


def test_jobs_that_cannot_be_settled_hold_up_no_outcome_of_schedules(settings, broker, monkeypatch, tmp_path):
    """The ledger takes outcomes also while Redis does not answer, whatever else waits for it."""

    def away(self, *args, **kwargs):
        raise BrokerUnavailable("away")

    settings.DELAYQ = {**settings.DELAYQ, "DRAIN_SECONDS": 0}
    monkeypatch.setattr(JobBroker, "settle", away)
    row = mirroring.schedule("beside", task="tests.app.tasks.note", args=[str(tmp_path / "ran"), "x", 0.5])
    make_due(broker, row)
    tasks.echo.enqueue()
    with live_worker():
        wait_until(lambda: Run.objects.filter(schedule_id=row.pk, status="succeeded").exists(), 10)
