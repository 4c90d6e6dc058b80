"""Schedules that are handed over to other backends of Django's tasks framework, which are real, as are all workers."""

import json
import os
from datetime import timedelta

import pytest
import redis
from django.db import connection

from django_delayq.models import Run, Schedule
from tests.acceptance.support import PATIENCE_SECONDS, lines, wait_until, worker
from tests.handover.conftest import TABLE, run
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)

#: How each backend's own worker is told to execute what is there and to end.
WORKERS = {
    "rows": ("db_worker", "--backend", "rows", "--batch", "--interval", "0", "--no-startup-delay"),
    "deadly": ("db_worker", "--backend", "deadly", "--batch", "--interval", "0", "--no-startup-delay"),
    "rq": ("rqworker", "default", "--burst", "--job-class", "django_tasks_rq.Job"),
}


def handed_over(broker, backend, task="note", **values):
    """A schedule with one point, due now."""
    values = {"name": "s", "kind": "cron", "cron": DAILY_CRON, **values}
    row = Schedule.objects.create(task=f"tests.app.tasks.{task}", backend=backend, **values)
    make_due(broker, row)
    return row


def burst(process_environment, **options):
    """Have a worker process of ours run what is due."""
    with worker("--burst", environment=process_environment, **options) as process:
        assert process.wait(PATIENCE_SECONDS) == 0


def columns(*names):
    """Return these columns of the rows of django-tasks-db."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(names)} FROM {TABLE} ORDER BY enqueued_at")  # noqa: S608 - constants
        return cursor.fetchall()


def plain(result_id):
    """Return a UUID in the one spelling that all databases and drivers can be brought to."""
    return str(result_id).replace("-", "")


def job(server, result_id):
    """Return what RQ keeps of a job."""
    with redis.Redis.from_url(server.url) as client:
        return {key.decode(): value for key, value in client.hgetall(f"rq:job:{result_id}").items()}


@pytest.mark.parametrize("backend", ["rows", "rq"])
def test_a_point_is_accepted_by_the_backend_and_executed_by_its_own_worker(broker, others, tmp_path, backend):
    path = tmp_path / "f"
    handed_over(broker, backend, kwargs={"path": str(path), "text": backend})
    burst(others)
    found = Run.objects.get()
    assert (found.status, found.reason, found.attempt) == ("succeeded", "handed_over", 1), found.error
    assert found.result == {"backend": backend, "result_id": found.result["result_id"]}
    assert not path.exists()  # accepted is not executed
    run(*WORKERS[backend], within=others)
    assert [words[:2] for words in lines(path)] == [["start", backend], ["end", backend]]
    assert int(lines(path)[0][2]) != os.getpid()


def test_the_result_id_is_the_one_under_which_the_other_backend_keeps_it(broker, others, server):
    handed_over(broker, "rows", task="add", args=[2], kwargs={"b": 3}, priority=7)
    handed_over(broker, "rq", name="t", task="add", args=[2])
    burst(others)
    (stored,) = columns("id", "task_path", "args_kwargs", "priority", "queue_name", "backend_name")
    ids = {run.result["backend"]: run.result["result_id"] for run in Run.objects.all()}
    assert plain(stored[0]) == plain(ids["rows"])
    arguments = stored[2] if isinstance(stored[2], dict) else json.loads(stored[2])
    assert arguments == {"args": [2], "kwargs": {"b": 3}}
    assert (stored[1], *stored[3:]) == ("tests.app.tasks.add", 7, "default", "rows")
    assert job(server, ids["rq"])["status"] == b"queued"
    run(*WORKERS["rq"], within=others)
    assert job(server, ids["rq"])["status"] == b"finished"


@pytest.mark.parametrize("backend", ["rows", "rq"])
def test_a_task_gets_the_context_of_its_backend_and_a_coroutine_is_handed_over_within_its_timeout(
    broker, others, tmp_path, backend
):
    told, awaited = tmp_path / "told", tmp_path / "awaited"
    row = handed_over(broker, backend, task="tell_context", args=[str(told)])
    handed_over(broker, backend, name="t", task="anote", args=[str(awaited)], timeout=timedelta(minutes=10))
    burst(others)
    assert ({run.reason for run in Run.objects.all()}, awaited.exists()) == ({"handed_over"}, False)
    run(*WORKERS[backend], within=others)
    assert lines(told) == [["TaskContext", row.runs.get().result["result_id"], backend]]
    assert awaited.read_text() == "async\n"


def test_a_worker_killed_between_enqueue_and_ledger_hands_over_again_and_records_once(broker, others, tmp_path):
    path, killed = tmp_path / "f", tmp_path / "killed"
    dying = {**others, "DELAYQ_TEST_KILLED": str(killed)}
    row = handed_over(broker, "deadly", kwargs={"path": str(path)})
    with worker(environment=dying, LEASE_SECONDS=2) as first:
        assert first.wait(PATIENCE_SECONDS) == -9
    assert killed.exists() and len(columns("id")) == 1
    assert not Run.objects.finished().exists()
    with worker(environment=dying, LEASE_SECONDS=2):
        wait_until(lambda: Run.objects.finished().exists(), 20)
    found = Run.objects.get()
    assert (found.status, found.reason, found.schedule_id) == ("succeeded", "handed_over", row.pk)
    stored = [plain(pk) for (pk,) in columns("id")]
    assert len(stored) == 2 and plain(found.result["result_id"]) in stored
    run(*WORKERS["deadly"], within=dying)
    assert [words[0] for words in lines(path)] == ["start", "end"] * 2  # at-least-once
