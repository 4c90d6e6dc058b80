"""Durable jobs: with the caller's transaction or not at all, and what their rows tell."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import mirror
from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus, task_enqueued, task_started
from django_delayq.fields import utcnow
from django_delayq.jobs.results import instant
from django_delayq.models import Job
from django_delayq.status import judge, look
from django_delayq.timing import to_ms
from tests.app import tasks
from tests.jobs.durable_support import backend, built, counts, durable, put, row_of, rows_of, started, view
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
NOTHING = (0, 0, 0, 0)


@pytest.fixture
def told():
    """Ids of which `task_enqueued` was sent."""
    ids = []

    def note(task_result, **kwargs):
        ids.append(task_result.id)

    task_enqueued.connect(note)
    yield ids
    task_enqueued.disconnect(note)


# -- the caller's transaction


def test_a_job_is_put_into_redis_by_the_commit_and_not_before(broker, told):
    with transaction.atomic():
        result = durable(tasks.add).enqueue(2, b=3)
        assert (counts(broker), told) == (NOTHING, [])
        assert backend().get_result(result.id).status == TaskResultStatus.READY
    assert (sum(counts(broker)), told) == (1, [result.id])
    run_burst()
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 5)
    assert counts(broker) == NOTHING


def test_a_rollback_leaves_nothing_anywhere(broker, told):
    with pytest.raises(RuntimeError), transaction.atomic():
        result = durable(tasks.add).enqueue(1)
        raise RuntimeError
    assert (counts(broker), Job.objects.count(), told) == (NOTHING, 0, [])
    built(broker)
    assert counts(broker) == NOTHING
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result(result.id)


def test_what_a_savepoint_takes_back_is_not_run_and_the_rest_is(broker, tmp_path):
    path = tmp_path / "ran"
    with transaction.atomic():
        durable(tasks.note).enqueue(str(path), "outer")
        with pytest.raises(RuntimeError), transaction.atomic():
            durable(tasks.note).enqueue(str(path), "inner")
            raise RuntimeError
    run_burst()
    assert "outer" in path.read_text()
    assert "inner" not in path.read_text()


def test_many_jobs_are_added_in_a_few_statements_and_all_run(broker, tmp_path):
    path = tmp_path / "ran"
    with CaptureQueriesContext(connection) as captured:
        results = durable(tasks.note).enqueue_many(((str(path), f"n{n}"), {}) for n in range(250))
    assert len(captured) < 20
    assert Job.objects.filter(mirrored=True).count() == 250
    run_burst()
    assert started(path) == 250
    for number, result in enumerate(results):
        assert backend().get_result(result.id).args[1] == f"n{number}"
    assert set(Job.objects.values_list("status", flat=True)) == {"SUCCESSFUL"}


# -- results


def test_the_result_is_that_of_a_plain_job_in_every_field(broker):
    both = [task.enqueue() for task in (tasks.fail.using(priority=7), durable(tasks.fail, priority=7))]
    both += [task.enqueue(1, b=4) for task in (tasks.add, durable(tasks.add))]
    run_burst()
    for plain, own in (both[:2], both[2:]):
        plain.refresh()
        own.refresh()
        for name in ("status", "args", "kwargs", "worker_ids", "attempts", "_return_value"):
            assert getattr(plain, name) == getattr(own, name), name
        assert [error.exception_class for error in own.errors] == [error.exception_class for error in plain.errors]
        assert own.task.priority == plain.task.priority
        assert own.enqueued_at <= own.started_at == own.last_attempted_at <= own.finished_at
        row = row_of(own)
        assert (row.status == "SUCCESSFUL") == (own.status == TaskResultStatus.SUCCESSFUL)
        assert instant(to_ms(row.finished_at)) == own.finished_at


def test_a_failed_job_is_kept_for_dead_ttl_and_a_result_for_result_ttl(broker):
    good, bad = durable(tasks.add).enqueue(1), durable(tasks.fail).enqueue()
    run_burst()
    kept = [(row_of(result).expires_at - row_of(result).finished_at).days for result in (good, bad)]
    assert kept == [1, 30]
    assert counts(broker) == NOTHING


def test_an_expired_result_is_gone_at_once_and_its_row_with_the_next_full_sweep(broker):
    old, young = durable(tasks.add).enqueue(1), durable(tasks.add).enqueue(2)
    run_burst()
    rows_of(old).update(expires_at=utcnow() - timedelta(milliseconds=1))
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result(old.id)
    assert Job.objects.count() == 2
    mirror.full_sweep(broker)
    assert [row.result_id for row in Job.objects.all()] == [young.id]


def test_a_job_of_another_alias_is_not_shown(broker):
    result = durable(tasks.add).enqueue(1)
    with pytest.raises(TaskResultDoesNotExist):
        backend("stored").get_result(result.id.replace("default.", "mail."))
    rows_of(result).update(backend="another")
    run_burst()
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result(result.id)


def test_retries_and_their_errors_stand_in_the_row(broker, tmp_path):
    path = tmp_path / "tries"
    result = durable(tasks.flaky, max_attempts=3, backoff=0.001).enqueue(str(path), 2)
    for attempts in (1, 2):
        run_burst(max_runs=1)
        row = row_of(result)
        assert (row.status, row.attempt) == ("READY", attempts)
        assert len(backend().get_result(result.id).errors) == attempts
    run_burst(max_runs=1)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.SUCCESSFUL, 3, 2)


# -- what costs what


def test_a_batch_without_durable_jobs_asks_nothing_of_the_table_and_one_with_them_asks_once(broker):
    built(broker)

    def lookups():
        with CaptureQueriesContext(connection) as captured:
            run_burst(threads=2, max_runs=None)
        texts = [query["sql"] for query in captured if "delayq_job" in query["sql"]]
        looked_up = sum('"member" IN' in text or '"member" = ANY' in text for text in texts)
        return looked_up, sum(text.startswith("INSERT") for text in texts)

    tasks.noop.enqueue_many(((), {}) for _ in range(2))
    assert lookups() == (0, 0)
    durable(tasks.noop).enqueue_many(((), {}) for _ in range(2))
    assert lookups()[0] == 1


# -- what is left over in Redis


def test_a_job_whose_row_was_deleted_is_not_run(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    rows_of(result).delete()
    run_burst()
    assert (started(path), counts(broker)) == (0, NOTHING)


def test_a_job_that_has_its_outcome_is_not_run_again(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    run_burst()
    before = row_of(result)
    put(broker, before)
    run_burst()
    assert (started(path), counts(broker)) == (1, NOTHING)
    assert row_of(result).finished_at == before.finished_at


def test_a_job_that_redis_offers_too_early_waits_for_what_its_row_says(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    when = utcnow() + timedelta(hours=1)
    rows_of(result).update(wakes_at=when)
    before = broker.now_ms()
    run_burst()
    assert started(path) == 0
    waits = view(broker, result).waits_until_ms - to_ms(when)
    assert 0 <= waits <= broker.now_ms() - before  # at most the time between claim and release


def test_a_row_that_only_a_later_version_can_read_is_left_to_it(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    rows_of(result).update(state='{"unheard_of":1}')
    before = broker.now_ms()
    run_burst()
    assert (started(path), row_of(result).status) == (0, "READY")
    assert view(broker, result).waits_until_ms > before + 20_000
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result(result.id)


# -- take-overs


def test_a_running_row_is_a_take_over_and_counted_in_the_row(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    rows_of(result).update(status="RUNNING", fence="1.x dead")
    seen = []

    def look(**kwargs):
        seen.append((row_of(result).status, row_of(result).reclaims))

    task_started.connect(look)
    try:
        run_burst(threads=1)
    finally:
        task_started.disconnect(look)
    assert seen == [("RUNNING", 1)]
    row = row_of(result)
    assert (row.status, row.reclaims, started(path)) == ("SUCCESSFUL", 0, 1)


def test_a_job_that_has_killed_too_many_workers_is_lost_and_its_count_survives_a_flush(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    rows_of(result).update(status="RUNNING", fence="1.x dead", reclaims=3)
    run_burst()
    result.refresh()
    assert (started(path), result.status) == (0, TaskResultStatus.FAILED)
    assert result.errors[0].exception_class_path == "django_delayq.exceptions.JobLost"


# -- the sweeps and the status


def test_the_status_counts_jobs_that_no_sweep_has_put_into_redis(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    result = durable(tasks.add).enqueue(1)
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": True}
    built(broker)
    rows_of(result).update(mirrored=False, enqueued_at=utcnow() - timedelta(minutes=1))
    assert (mirror.drift(broker).jobs, mirror.drift(broker).total) == (1, 1)
    assert "stale_jobs" in [problem.code for problem in judge(look(seconds=5))]
    mirror.delta_sweep(broker)
    assert mirror.drift(broker).total == 0
    assert "stale_jobs" not in [problem.code for problem in judge(look(seconds=5))]


def test_the_status_counts_jobs_that_a_restored_database_has_open_again(broker):
    result = durable(tasks.add).enqueue(1)
    built(broker)
    rows_of(result).update(mirrored=True)
    saved = rows_of(result).values().get()
    run_burst()
    assert (row_of(result).status, mirror.drift(broker).total) == ("SUCCESSFUL", 0)
    rows_of(result).update(**saved)  # a backup, or a standby that lacks the last commits
    assert (mirror.drift(broker).missing_jobs, mirror.drift(broker).total) == (1, 1)
    assert "drift" in [problem.code for problem in judge(look(seconds=5))]
    mirror.full_sweep(broker)
    assert mirror.drift(broker).total == 0
    assert "drift" not in [problem.code for problem in judge(look(seconds=5))]


def test_a_dry_run_tells_what_is_missing_and_puts_nothing(broker):
    result = durable(tasks.add).enqueue(1)
    broker.purge()
    mirror.check_layout(broker)
    report = mirror.full_sweep(broker, dry_run=True)
    assert report.lines == [f"job {result.id}: put back"]
    assert counts(broker) == NOTHING
    mirror.full_sweep(broker)
    assert sum(counts(broker)) == 1
    assert mirror.full_sweep(broker).lines == []
