"""OPTIONS["results"] = "database": jobs of Redis whose results are rows."""

import pytest

from django_delayq.backend import operating
from django_delayq.backend.operating import Outcome
from django_delayq.broker import JobBroker, NewJob
from django_delayq.compat import InvalidTaskBackend, TaskResultDoesNotExist, TaskResultStatus
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.jobs import encode, parse_id
from django_delayq.jobs.options import parse
from django_delayq.models import Job
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.faults.harness.servers import Server, pointing_at
from tests.faults.harness.workers import WorkerProcess
from tests.jobs.durable_support import backend, counts, row_of, started
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
NOBODY = "redis://127.0.0.1:1/0"


def stored(task, **options):
    return task.using(backend="stored", **options)


def test_a_row_is_written_when_the_job_has_ended_and_not_before(broker):
    good, bad = stored(tasks.add, priority=3).enqueue(1, b=2), stored(tasks.fail).enqueue("why")
    assert (Job.objects.count(), backend("stored").get_result(good.id).status) == (0, TaskResultStatus.READY)
    run_burst()
    assert Job.objects.count() == 2
    for result in (good, bad):
        result.refresh()
    assert (good.status, good.return_value, good.args, good.kwargs) == (TaskResultStatus.SUCCESSFUL, 3, [1], {"b": 2})
    assert good.enqueued_at <= good.started_at <= good.finished_at
    assert (bad.status, bad.errors[0].exception_class) == (TaskResultStatus.FAILED, RuntimeError)
    row = row_of(good)
    assert (row.priority, row.queue, row.task) == (3, "default", "tests.app.tasks.add")
    assert ((row.expires_at - row.finished_at).days, (row_of(bad).expires_at - row_of(bad).finished_at).days) == (1, 30)


def test_the_result_outlives_redis_and_is_read_without_it(broker):
    result = stored(tasks.add).enqueue(1, b=2)
    waits = stored(tasks.add).enqueue(1)
    run_burst(max_runs=1, threads=1)
    broker.purge()
    with pointing_at(NOBODY):
        result.refresh()
        with pytest.raises(BrokerUnavailable):
            waits.refresh()
    assert result.return_value == 3
    result.refresh()
    assert result.return_value == 3
    with pytest.raises(TaskResultDoesNotExist):
        waits.refresh()  # the job itself lives in Redis


def test_the_value_does_not_stand_in_redis(broker):
    result = stored(tasks.add).enqueue(1, b=41_111)
    run_burst()
    parsed = parse_id(result.id)
    assert parsed is not None
    jobs = JobBroker(broker)
    assert jobs.view(jobs.shard_of(parsed[1], parsed[0]), parsed[1]).result == "row"
    row_of(result)
    Job.objects.all().delete()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_job_whose_enqueueing_is_repeated_after_its_end_is_not_run_again(broker, tmp_path):
    path = tmp_path / "ran"
    result = stored(tasks.note).enqueue(str(path))
    run_burst()
    row = row_of(result)
    jobs = JobBroker(broker)
    place = jobs.shard_of(row.member, row.queue)
    epoch = broker.epochs([place])[0]
    entry = NewJob(row.member, 0, 0, "", encode(row.queue, row.member, row.call))
    assert jobs.enqueue_each([(place, [entry])], {place: epoch}, again=True) == [(epoch, [row.member])]
    run_burst()
    assert started(path) == 1


def test_a_worker_that_is_killed_between_row_and_redis_leaves_nothing_to_run_again(prefix, tmp_path):
    path = tmp_path / "ran"
    with Server() as server, pointing_at(server.url):
        result = stored(tasks.note).enqueue(str(path))
        with WorkerProcess(folder=tmp_path, LEASE_SECONDS=1, failpoints="after_ledger=kill@1") as victim:
            victim.wait()
        with server.broker() as own:
            assert (counts(own)[2], row_of(result).status, started(path)) == (1, "SUCCESSFUL", 1)
            with WorkerProcess(folder=tmp_path, LEASE_SECONDS=1):
                wait_until(lambda: sum(counts(own)) == 0, 20)
        assert started(path) == 1


def test_a_retry_writes_no_row_before_the_last_attempt(broker, tmp_path):
    result = stored(tasks.flaky, max_attempts=2, backoff=0.001).enqueue(str(tmp_path / "tries"), 9)
    run_burst(max_runs=1)
    assert Job.objects.count() == 0
    run_burst()
    result.refresh()
    assert (result.status, result.attempts, row_of(result).attempt) == (TaskResultStatus.FAILED, 2, 2)


@pytest.mark.parametrize("options", [{"durable": 1}, {"results": "db"}, {"durably": True}])
def test_wrong_options_are_refused_with_what_to_write(options):
    with pytest.raises(InvalidTaskBackend, match=r"True or False|'redis' or 'database'|Did you mean 'durable'"):
        parse("default", options)


# -- a dead job that starts anew


def dead(broker, path, failures=1):
    """Enqueue a job that fails as often as this and let it die; return its result."""
    result = stored(tasks.flaky).enqueue(str(path), failures)
    run_burst()
    assert (row_of(result).status, counts(broker)[3]) == ("FAILED", 1)
    return result


def test_a_revived_job_waits_and_the_outcome_of_its_new_run_is_the_one_that_is_recorded(broker, tmp_path):
    result = dead(broker, tmp_path / "tries")
    assert operating.revive(broker, result.id) == Outcome.DONE
    assert backend("stored").get_result(result.id).status == TaskResultStatus.READY
    with pointing_at(NOBODY), pytest.raises(BrokerUnavailable):
        backend("stored").get_result(result.id)  # it is not failed: nobody knows
    run_burst()
    again = backend("stored").get_result(result.id)
    assert (again.status, again.return_value, again.attempts) == (TaskResultStatus.SUCCESSFUL, "attempt 2", 1)
    broker.purge()
    assert backend("stored").get_result(result.id).return_value == "attempt 2"


def test_a_revived_job_that_fails_again_has_its_new_errors(broker, tmp_path):
    result = dead(broker, tmp_path / "tries", 9)
    first = row_of(result)
    operating.revive(broker, result.id)
    run_burst()
    assert ("attempt 2" in row_of(result).state, row_of(result).fence == first.fence) == (True, False)


def test_a_revived_job_whose_first_worker_dies_is_executed_by_the_next_one(broker, tmp_path):
    result = dead(broker, tmp_path / "tries")
    operating.revive(broker, result.id)
    parsed = parse_id(result.id)
    assert parsed is not None
    jobs = JobBroker(broker)
    place = jobs.shard_of(parsed[1], parsed[0])
    assert len(jobs.claim(place, limit=1, lease_ms=1, request=1).entries) == 1
    wait_until(lambda: run_burst() or counts(broker) == (0, 0, 0, 0), 10)
    assert backend("stored").get_result(result.id).return_value == "attempt 2"


@pytest.mark.parametrize("reply", ["WAITING", "GONE", "HELD"])
def test_a_revival_that_redis_refuses_leaves_the_result(broker, tmp_path, monkeypatch, reply):
    """Somebody else revived it, or it was buried, between the look and the order."""
    result = dead(broker, tmp_path / "tries")
    before = Job.objects.values().get()
    monkeypatch.setattr(JobBroker, "change", lambda *args, **kwargs: reply)
    assert operating.revive(broker, result.id) != Outcome.DONE
    assert Job.objects.values().get() == before


def test_where_redis_is_lost_meanwhile_the_dead_job_itself_still_tells_its_errors(broker, tmp_path, monkeypatch):
    result = dead(broker, tmp_path / "tries")

    def change(*args, **kwargs):
        raise BrokerUnavailable("lost")

    with monkeypatch.context() as patched, pytest.raises(BrokerUnavailable):
        patched.setattr(JobBroker, "change", change)
        operating.revive(broker, result.id)
    assert backend("stored").get_result(result.id).status == TaskResultStatus.FAILED
    assert operating.revive(broker, result.id) == Outcome.DONE
    run_burst()
    assert backend("stored").get_result(result.id).status == TaskResultStatus.SUCCESSFUL


def test_a_dead_job_is_deleted_with_its_row(broker, tmp_path):
    result = dead(broker, tmp_path / "tries")
    assert operating.delete(broker, result.id) == Outcome.DONE
    assert Job.objects.count() == 0
    with pytest.raises(TaskResultDoesNotExist):
        backend("stored").get_result(result.id)
