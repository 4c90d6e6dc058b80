"""A job comes with the caller's transaction or not at all, and after the commit into Redis, now or by a sweep."""

import subprocess
import sys
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_delayq import sync
from django_delayq.calls.compat import TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from django_delayq.exceptions import WaitRefused
from django_delayq.index import Broker, EntryView
from django_delayq.models import Run
from django_delayq.sync import after_commit
from tests.acceptance.support import ROOT, command_environment, lines, wait_until, worker
from tests.app import tasks as app_tasks
from tests.faults.harness.database import gone
from tests.faults.harness.servers import pointing_at
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Standing, connected, row, run, run_burst, told

pytestmark = pytest.mark.django_db(transaction=True)
NOBODY = "redis://127.0.0.1:1/0"
HOUR = timedelta(hours=1)


@pytest.fixture
def scripts(monkeypatch):
    """The shard and the number of members of each script by which something is put into Redis."""
    calls, real = [], Broker.upsert

    def upsert(self, shard, definitions, **options):
        calls.append((shard.queue, len(definitions)))
        return real(self, shard, definitions, **options)

    monkeypatch.setattr(Broker, "upsert", upsert)
    return calls


def test_it_is_put_into_redis_by_the_commit_and_not_before(broker):
    with told() as heard, transaction.atomic():
        result = tasks.echo.enqueue(1)
        assert Standing(result).gone()
        assert tasks.echo.get_result(result.id) == result
        assert heard == []
    assert [(name, id) for name, _, id, _ in heard] == [("enqueued", result.id)]
    assert Standing(result).view.score_ms is not None
    assert run(result).return_value == [[1], {}]


def test_a_rollback_leaves_nothing_anywhere(broker):
    with told() as heard, pytest.raises(ZeroDivisionError), transaction.atomic():
        result = tasks.echo.enqueue(1)
        standing = Standing(result)
        raise ZeroDivisionError
    assert (heard, Run.objects.count(), standing.gone()) == ([], 0, True)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.echo.get_result(result.id)


def test_what_a_savepoint_takes_back_is_not_run_and_the_rest_is():
    with transaction.atomic():
        app_tasks.add.enqueue(1)
        for number, error in ((2, ZeroDivisionError), (3, None)):
            try:
                with transaction.atomic():
                    app_tasks.add.enqueue(number)
                    app_tasks.add.enqueue(10 * number)
                    if error:
                        raise error
            except ZeroDivisionError:
                pass
        app_tasks.add.enqueue(4)
    assert Run.objects.count() == 4
    run_burst()
    assert sorted(app_tasks.CALLS) == [(1, 1), (3, 1), (4, 1), (30, 1)]


def test_one_transaction_is_one_script_for_each_shard(scripts):
    run_burst()
    with told() as heard, transaction.atomic():
        results = [tasks.echo.enqueue(n) for n in range(3)]
        results += tasks.echo.using(queue_name="mail").enqueue_many([((n,), {}) for n in range(4)])
        results += [tasks.echo.enqueue(n) for n in range(2)]
        scripts.clear()
    assert sorted(scripts) == [("default", 5), ("mail", 4)]
    assert [id for _, _, id, _ in heard] == [result.id for result in results]
    with transaction.atomic():
        tasks.echo.enqueue()
    assert scripts[2:] == [("default", 1)], "another transaction has its own"


def test_an_enqueue_is_one_statement_and_many_are_a_few(scripts):
    run_burst()
    with transaction.atomic(), CaptureQueriesContext(connection) as one:
        tasks.echo.enqueue(1)
    with CaptureQueriesContext(connection) as many:
        results = tasks.echo.enqueue_many([((n,), {}) for n in range(2_500)])
    assert len([query for query in one if query["sql"].startswith("INSERT")]) == len(one) == 1
    assert len(many) <= 8  # begin, one or two for each 1,000 rows, commit
    assert [result.args for result in results] == [[n] for n in range(2_500)]
    assert [row(result).call["args"] for result in (results[0], results[999], results[2_499])] == [[0], [999], [2_499]]


def test_a_receiver_that_fails_takes_nothing_back_and_the_others_are_told(caplog):
    def broken(**kwargs):
        raise RuntimeError("broken receiver")

    with connected(broken, task_enqueued), told() as heard:
        results = tasks.echo.enqueue_many([((1,), {}), ((2,), {})])
    assert len(heard) == 2
    assert "broken receiver" in caplog.text
    assert run(results[1]).return_value == [[2], {}]


def test_what_nobody_foresaw_takes_nothing_back_either(monkeypatch, caplog):
    with monkeypatch.context() as patched:
        patched.setattr(after_commit, "put_runs", lambda broker, runs: 1 / 0)
        result = tasks.echo.enqueue(1)
        with transaction.atomic():
            other = tasks.echo.enqueue(2)
    assert "division by zero" in caplog.text
    run_burst()
    for each in (result, other):
        each.refresh()
        assert each.status == SUCCESSFUL


# -- Redis is away, or somebody else's


@pytest.mark.parametrize("within", [False, True], ids=["autocommit", "transaction"])
def test_without_redis_nothing_fails_and_the_next_sweep_puts_it_there(broker, within, caplog):
    run_burst()
    with told() as heard, pointing_at(NOBODY):
        if within:
            with transaction.atomic():
                result = tasks.echo.enqueue(1)
        else:
            result = tasks.echo.enqueue(1)
        assert (tasks.echo.get_result(result.id).status, len(heard)) == (TaskResultStatus.READY, 1)
    assert "is not mirrored yet; a worker will do it within seconds." in caplog.text
    assert Standing(result).gone()
    sync.sweep_delta(broker)
    assert Standing(result).view.score_ms is not None
    assert run(result).return_value == [[1], {}]


def test_in_the_prefix_of_another_database_nothing_is_put_moved_or_removed(broker, monkeypatch, caplog):
    run_burst()
    waiting = tasks.echo.using(run_after=HOUR).enqueue()
    before = Standing(waiting).view
    monkeypatch.setattr("django_delayq.sync.layout.read_fingerprint", lambda: "another database")
    monkeypatch.setattr(after_commit, "_checked", (None, 0.0))
    result = tasks.echo.enqueue(1)
    assert "belongs to another database" in caplog.text
    monkeypatch.setattr("django_delayq.index.web._broken_until", 0.0)
    with pytest.raises(Exception, match="belongs to another database"):
        tasks.echo.get_backend().cancel(waiting.id)
    monkeypatch.undo()
    assert Standing(result).gone()
    assert Standing(waiting).view == before
    assert tasks.echo.get_result(waiting.id).status == TaskResultStatus.READY


def test_where_nothing_is_sent_to_redis_it_waits_in_the_database(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    result = tasks.echo.enqueue(1)
    with pytest.raises(WaitRefused):
        result.wait(0)
    assert tasks.echo.get_backend().reschedule(result.id, HOUR)
    assert tasks.echo.get_backend().reschedule(result.id, timedelta(0))
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": True}
    assert run(result).return_value == [[1], {}]


# -- the database is away, or takes nothing


def test_where_the_database_cannot_be_written_it_raises_and_nothing_is_left(broker):
    run_burst()
    with told() as heard:
        with gone(), pytest.raises(DatabaseError):
            tasks.echo.enqueue(1)
        with connection.cursor() as cursor:
            read_only = connection.vendor == "sqlite"
            cursor.execute("PRAGMA query_only=1" if read_only else "SET default_transaction_read_only = on")
            with pytest.raises(DatabaseError, match=r"readonly|read-only"):
                tasks.echo.enqueue_many([((2,), {}), ((3,), {})])
            cursor.execute("PRAGMA query_only=0" if read_only else "SET default_transaction_read_only = off")
    assert (heard, Run.objects.count()) == ([], 0)
    assert sum(stats.jobs for stats in broker.read_stats(broker.list_shards())) == 0


# -- in a TestCase


class InATestCase(TestCase):
    """Nothing is committed: the row is there, and Redis gets it by `captureOnCommitCallbacks`."""

    def test_each_capture_has_what_was_enqueued_in_it(self):
        before = tasks.echo.enqueue(0)
        for number in (1, 2):
            with self.captureOnCommitCallbacks(execute=True) as callbacks:
                results = [tasks.echo.enqueue(number)]
                with transaction.atomic():
                    results += [tasks.echo.enqueue(number), tasks.echo.enqueue(number)]
            self.assertGreaterEqual(len(callbacks), 2)
            for result in results:
                self.assertIsNotNone(Standing(result).view.score_ms)
        self.assertEqual(Standing(before).view, EntryView(None, None, None, leased=False))
        self.assertEqual(Run.objects.count(), 7)


# -- a process dies between the two


@pytest.mark.everything
def test_a_process_that_is_killed_between_commit_and_redis_leaves_a_job_that_starts_within_3_seconds(broker, tmp_path):
    path = tmp_path / "ran"
    program = f"import django; django.setup(); from tests.app.tasks import note; note.enqueue({str(path)!r})"
    environment = command_environment({"DELAYQ_FAILPOINTS": "before_mirror=kill"})
    with worker(IDLE_CAP_SECONDS=60):
        wait_until(lambda: broker.read_workers(), 20, "a worker")
        done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=False, timeout=600)
        assert done.returncode == -9
        assert Run.objects.count() == 1
        took = wait_until(lambda: lines(path), 20, "its start")
    assert took < 3
