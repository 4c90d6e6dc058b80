"""The attempts of a job: retries, what its workers did not end, and what is shown of those before it was retried."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq import conf, ledger
from django_delayq.calls.attempt import NOT_ENDED
from django_delayq.calls.compat import TaskResultStatus, task_backends, task_started
from django_delayq.index.counters import select_outcomes
from django_delayq.models import Run
from django_delayq.monitoring import minutes
from tests.app import tasks
from tests.jobs.support import SUCCESSFUL, connected, died, row, rows, run, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, READY = TaskResultStatus.FAILED, TaskResultStatus.READY


def seen(result):
    """Return what stands of a job's attempts."""
    return ledger.list_attempts(row(result))


def titles(result):
    return [each.title for each in seen(result)]


def whole(attempts):
    """Say whether each attempt has its worker and its times, and they follow each other."""
    times = [time for each in attempts for time in (each.started, each.finished)]
    return None not in times and times == sorted(times) and all(each.worker for each in attempts)


def retry(result):
    assert task_backends[result.backend].retry(result.id)


def counted(broker):
    found = minutes.sum_rows(minutes.read_rows(datetime.now(UTC) - timedelta(hours=1), broker=broker))
    return {(kind, task.rpartition(".")[2]): select_outcomes(tally) for (kind, _, task), tally in found.items()}


def test_a_job_that_succeeds_at_once_keeps_no_attempts_beside_its_row():
    result = run(tasks.add.enqueue(1))
    assert (row(result).attempts, row(result).attempt) == (None, 1)
    assert titles(result) == [""]


def test_each_attempt_is_kept_with_its_worker_and_its_error_and_counted(tmp_path, broker):
    result = tasks.flaky.using(max_attempts=3, backoff=3600).enqueue(str(tmp_path / "f"), 2)
    for name in ("one", "two", "three"):
        run_burst(name=name)
        if name != "three":
            result.refresh()
            assert (result.status, result.finished_at) == (READY, None)
            assert task_backends["default"].reschedule(result.id, timedelta(0))
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, "attempt 3", 3)
    assert result.worker_ids == ["one", "two", "three"]
    assert [error.exception_class for error in result.errors] == [RuntimeError, RuntimeError]
    for count, error in enumerate(result.errors, 1):
        assert f"attempt {count} fails" in error.traceback
    assert result.started_at < result.last_attempted_at <= result.finished_at
    assert titles(result) == ["RuntimeError: attempt 1 fails", "RuntimeError: attempt 2 fails", ""]
    assert whole(seen(result))
    assert all("in flaky" in each.trace for each in seen(result)[:2])
    assert counted(broker) == {("jobs", "flaky"): {"retried": 2, "succeeded": 1}}


def test_a_retried_job_keeps_all_attempts_and_its_result_tells_of_the_new_ones(tmp_path):
    result = tasks.flaky.using(max_attempts=2, backoff=0).enqueue(str(tmp_path / "f"), 5)
    expected = [f"RuntimeError: attempt {number} fails" for number in range(1, 6)]
    for count in (2, 4):
        assert (run(result).status, result.attempts, len(result.errors)) == (FAILED, 2, 2)
        assert titles(result) == expected[:count]
        retry(result)
        result.refresh()
        assert (result.status, result.attempts, result.errors, result.started_at) == (READY, 0, [], None)
        assert titles(result) == expected[:count], "while it waits"
    assert (run(result).status, result.attempts, len(result.errors)) == (SUCCESSFUL, 2, 1)
    assert titles(result) == [*expected, ""]
    assert whole(seen(result))


def test_the_context_of_a_retried_job_counts_from_one():
    attempts = []

    def note(task_result, **kwargs):
        attempts.append(task_result.attempts)

    with connected(note, task_started):
        result = run(tasks.fail.using(max_attempts=2, backoff=0).enqueue())
        retry(result)
        run_burst()
    assert attempts == [1, 2, 1, 2]


# -- take-overs


def test_a_worker_that_takes_a_job_over_knows_whose_execution_did_not_end():
    result = tasks.add.enqueue(1)
    died(result, times=2)
    assert run(result).status == SUCCESSFUL
    first, second, last = seen(result)
    assert [each.title for each in (first, second, last)] == [NOT_ENDED, NOT_ENDED, ""]
    assert (second.worker, second.finished) == ("thief", None)
    assert first.started <= second.started <= last.started
    assert (result.attempts, result.errors, row(result).reclaims) == (1, [], 2)
    assert tasks.CALLS == [(1, 1)]


def test_a_job_that_kills_its_workers_is_lost_with_each_execution_and_can_be_retried(broker):
    most = conf.get_config().max_reclaims
    result = tasks.add.enqueue(1)
    died(result, times=most + 1)
    assert (run(result).status, row(result).status, tasks.CALLS) == (FAILED, "lost", [])
    assert result.errors[-1].exception_class_path == "django_delayq.exceptions.JobLost"
    assert f"died, {most + 1} times in a row" in result.errors[-1].traceback
    assert titles(result) == [NOT_ENDED] * (most + 1)
    assert counted(broker) == {("jobs", "add"): {"lost": 1}}
    retry(result)
    assert (run(result).status, result.attempts, result.errors) == (SUCCESSFUL, 1, [])


def test_the_take_overs_of_a_job_survive_a_flush(broker):
    result = tasks.add.enqueue(1)
    died(result, times=conf.get_config().max_reclaims + 1)
    broker.purge()
    assert (run(result).status, row(result).status, tasks.CALLS) == (FAILED, "lost", [])


def test_a_flush_grants_no_attempts_and_takes_no_backoff_away(broker, tmp_path):
    result = tasks.flaky.using(max_attempts=2, backoff=3600).enqueue(str(tmp_path / "f"), 9)
    run_burst()
    broker.purge()
    run_burst()
    assert (tmp_path / "f").read_text() == "x"
    rows(result).update(finished_at=row(result).finished_at - timedelta(hours=1))
    broker.purge()
    assert (run(result).status, result.attempts) == (FAILED, 2)


def test_an_outcome_of_before_a_retry_is_not_taken_for_one_of_the_new_attempts():
    """A worker that was overtaken comes back after the retry: the row must not look as that one has read it."""
    for end in (lambda result: run_burst(), lambda result: task_backends["default"].cancel(result.id)):
        result = tasks.fail.using(run_after=timedelta(hours=1)).enqueue()
        stale = ledger.load_runs([row(result).pk])[row(result).pk]
        if end(result) in (None, 0):
            task_backends["default"].reschedule(result.id, timedelta(0))
            run_burst()
        retry(result)
        late = ledger.Outcome(stale, None, ledger.get_version(stale), job=None)
        stale.status, stale.fence, stale.worker, stale.attempt = "succeeded", "1.x", "late", 1
        assert ledger.record([late]) == [ledger.Won.LOST]
        assert Run.objects.get(pk=row(result).pk).status == "queued"
