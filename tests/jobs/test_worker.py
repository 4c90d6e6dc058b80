"""Jobs in a worker: what it does not know, rows that are not what they were, and what runs beside schedules."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq import sync
from django_delayq.calls import registry
from django_delayq.calls.compat import TaskResultStatus
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import Broker
from django_delayq.models import Run, Schedule
from django_delayq.worker import dispatch
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until
from tests.app import tasks as app_tasks
from tests.faults.harness.workers import WorkerProcess
from tests.faults.live import live_worker
from tests.integration import mirroring
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Standing, died, row, rows, run, run_burst, tasks_setting
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY


# -- what it does not know


def test_an_unknown_task_is_kept_for_other_workers(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "UNKNOWN_TASK_FIRST_MS", 30_000)  # not while the test is looking
    result, other = tasks.echo.enqueue(1), app_tasks.add.enqueue(2)
    known = dict(registry.get_tasks())
    lacking = {name: made for name, made in known.items() if name != tasks.echo.module_path}
    monkeypatch.setattr(registry, "_tasks", lacking)
    standing = Standing(result)
    before = standing.broker.read_now_ms()
    assert run(other).status == SUCCESSFUL
    assert "No installed app has a @task function 'tests.jobs.tasks.echo'" in caplog.text
    assert before + 30_000 <= standing.view.score_ms <= standing.broker.read_now_ms() + 30_000
    monkeypatch.setattr(registry, "_tasks", known)
    assert tasks.echo.get_result(result.id).status == READY
    standing.make_due()
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
    Standing(result).make_due()
    settings.TASKS = tasks_setting(other={})
    assert run(result).return_value == [[1], {}]


class Foreign:
    """Another backend."""

    def __init__(self, alias, params):
        self.alias = alias

    def validate_task(self, task):
        """Accept everything."""


# -- rows that are not what they were


def test_what_has_ended_was_deleted_or_is_in_another_queue_by_now_is_not_run(broker):
    results = [app_tasks.add.enqueue(n) for n in range(4)]
    ended, deleted, moved = results[:3]
    rows(ended).update(status="succeeded")
    rows(deleted).delete()
    rows(moved).update(queue="mail")
    run_burst(queues=("default",))
    assert [n for n, _ in app_tasks.CALLS] == [3]
    assert sum(stats.members + stats.jobs for stats in broker.read_stats(broker.list_shards()[:1])) == 0
    sync.sweep_fully(broker)
    run_burst()
    assert sorted(n for n, _ in app_tasks.CALLS) == [2, 3]


@pytest.mark.parametrize("lapsed", [False, True], ids=["waiting", "leased"])
def test_a_row_of_a_restored_database_is_not_run_under_the_lease_of_another_one(broker, lapsed):
    """Its key was given once more: the member in Redis stands for a row that is there no more."""
    run_burst()
    old = app_tasks.add.using(run_after=timedelta(hours=1)).enqueue(1)
    standing, pk = Standing(old), row(old).pk
    if lapsed:
        standing.make_due()
        assert broker.claim(standing.shard, limit=1, lease_ms=1, request=1).entries
    rows(old).delete()
    new = tasks.echo.using(run_after=timedelta(hours=5)).enqueue(2)
    broker.remove(standing.shard, [(Standing(new).member, 2**53 - 1, "")], gone=True)
    rows(new).update(id=pk)
    standing.make_due()
    run_burst()
    found = Run.objects.get()
    assert (found.status, found.attempts, found.reclaims, app_tasks.CALLS) == ("queued", None, 0, [])
    view = broker.read_views([(standing.member, "default")])[0]
    assert view.generation == int(found.created_at.timestamp()) * 1_000_000 + found.created_at.microsecond
    assert view.score_ms == view.point_ms == int(found.due_at.timestamp() * 1000)


def test_a_batch_is_read_in_one_query_and_its_outcomes_are_written_in_a_few(broker):
    run_burst()
    tasks.echo.enqueue_many(((n,), {}) for n in range(40))
    with CaptureQueriesContext(connection) as captured:
        run_burst(threads=1)
    texts = [query["sql"] for query in captured if "django_delayq_run" in query["sql"]]
    assert sum("options" in text and text.startswith("SELECT") for text in texts) <= 2
    assert sum(text.startswith("UPDATE") for text in texts) <= (40 if connection.vendor == "sqlite" else 10)


# -- beside schedules


def test_jobs_and_points_run_in_one_worker(broker):
    schedules = [
        Schedule.objects.create(name=f"s{n}", task="tests.app.tasks.add", args=[n], kind="cron", cron=DAILY_CRON)
        for n in range(5)
    ]
    for each in schedules:
        make_due(broker, each)
    results = app_tasks.add.enqueue_many(((100 + n,), {}) for n in range(20))
    run_burst()
    assert sorted(n for n, _ in app_tasks.CALLS) == [*range(5), *range(100, 120)]
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}
    results[-1].refresh()
    assert results[-1].return_value == 120


def test_a_worker_that_ends_after_so_many_runs_counts_executions_of_jobs_and_no_others(broker):
    poisonous = app_tasks.add.enqueue(99)
    died(poisonous, times=4)
    for deleted in app_tasks.add.enqueue_many(((n,), {}) for n in range(3)):
        rows(deleted).delete()
    for n in range(5):
        app_tasks.add.enqueue(n)
    run_burst(max_runs=2, threads=1)
    assert len(app_tasks.CALLS) == 2
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))
    worker.run()
    assert (len(app_tasks.CALLS), worker.recorder.runs, row(poisonous).status) == (5, 3, "lost")


def test_jobs_that_cannot_be_settled_hold_up_no_outcome(settings, broker, monkeypatch, tmp_path):
    """The ledger takes outcomes also while Redis does not answer."""

    def away(self, *args, **kwargs):
        raise BrokerUnavailable("away")

    settings.DELAYQ = {**settings.DELAYQ, "DRAIN_SECONDS": 0}
    point = mirroring.schedule("beside", task="tests.app.tasks.note", args=[str(tmp_path / "ran"), "x", 0.5])
    make_due(broker, point)
    result = tasks.echo.enqueue()
    with live_worker(), monkeypatch.context() as patched:
        patched.setattr(Broker, "settle", away)
        wait_until(lambda: Run.objects.filter(schedule_id=point.pk, status="succeeded").exists(), 10)
        wait_until(lambda: row(result).status == "succeeded", 10)


# -- workers are killed


@pytest.mark.everything
@pytest.mark.parametrize("step", ["after_claim", "after_judge", "before_ledger", "after_ledger"])
def test_a_worker_that_is_killed_leaves_every_job_to_the_next_one_and_nothing_recorded_is_run_again(
    step, broker, tmp_path
):
    path = tmp_path / "ran"
    results = app_tasks.note.enqueue_many(((str(path), f"n{n}"), {}) for n in range(20))
    failpoint = f"{step}=kill@1"
    with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=1, failpoints=failpoint) as victim:
        victim.wait()
    recorded = Run.objects.filter(status="succeeded").count()
    before = path.read_text() if path.exists() else ""
    with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=1):
        wait_until(lambda: Run.objects.filter(status="succeeded").count() == 20, 20)
    assert bool(recorded) == (step == "after_ledger")
    text = path.read_text()
    for number, result in enumerate(results):
        ran = text.count(f"start n{number} ")
        assert ran >= 1
        if row(result).attempts is None and row(result).reclaims == 0 and step == "after_ledger":
            assert ran == 1 or f"start n{number} " in before
