"""What people do to durable jobs: cancel, reschedule, one job for a key; and the races with workers."""

from contextlib import ExitStack
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_delayq import ledger
from django_delayq.backend import in_database as module
from django_delayq.broker import JobBroker, JobSettlement
from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus
from django_delayq.exceptions import BrokerUnavailable, JobHeld
from django_delayq.fields import utcnow
from django_delayq.jobs.results import instant
from django_delayq.models import Job
from django_delayq.timing import to_ms
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.faults.harness.servers import pointing_at
from tests.faults.live import live_worker
from tests.jobs.durable_support import (
    backend,
    built,
    claim,
    counts,
    durable,
    in_thread,
    put,
    row_of,
    started,
    view,
)
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
NOTHING = (0, 0, 0, 0)
NOBODY = "redis://127.0.0.1:1/0"
needs_row_locks = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one writer: nobody reads a row that another one is writing"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ran"


# -- cancel


def test_a_cancelled_job_is_failed_in_the_row_gone_from_redis_and_not_run(broker, path):
    result = durable(tasks.note).enqueue(str(path))
    assert backend().cancel(result.id) is True
    result.refresh()
    assert (result.status, counts(broker)) == (TaskResultStatus.FAILED, NOTHING)
    assert [error.exception_class_path for error in result.errors] == ["django_delayq.exceptions.JobCancelled"]
    assert row_of(result).expires_at - row_of(result).finished_at == timedelta(days=1)
    run_burst()
    assert started(path) == 0
    assert backend().cancel(result.id) is False
    assert backend().reschedule(result.id, timedelta(0)) is False


def test_a_job_that_is_cancelled_between_two_attempts_keeps_what_went_wrong(broker, path):
    result = durable(tasks.flaky, max_attempts=3, backoff=60).enqueue(str(path), 9)
    run_burst()
    assert backend().cancel(result.id)
    result.refresh()
    kinds = [error.exception_class_path.rpartition(".")[2] for error in result.errors]
    assert (kinds, result.attempts) == (["RuntimeError", "JobCancelled"], 1)


def test_a_job_that_a_worker_has_cannot_be_cancelled_and_its_outcome_stands(broker, tmp_path, path):
    gate = tmp_path / "gate"
    result = durable(tasks.stubborn).enqueue(str(path), str(gate))
    with live_worker():
        wait_until(path.exists, 10)
        assert backend().get_result(result.id).status == TaskResultStatus.RUNNING
        with pytest.raises(JobHeld):
            backend().cancel(result.id)
        with pytest.raises(JobHeld):
            backend().reschedule(result.id, timedelta(hours=1))
        gate.touch()
        wait_until(lambda: row_of(result).status == "SUCCESSFUL", 10)


def test_a_job_that_is_claimed_between_the_look_and_the_cancellation_is_left_as_it_was(broker, monkeypatch, path):
    built(broker)
    result = durable(tasks.note).enqueue(str(path))
    real, claimed = ledger.change_job, []

    def change_job(row, **values):
        written = real(row, **values)
        claimed.append(claim(broker, result))
        return written

    monkeypatch.setattr(module.ledger, "change_job", change_job)
    with pytest.raises(JobHeld):
        backend().cancel(result.id)
    assert (len(claimed), row_of(result).status, row_of(result).state) == (1, "READY", "")


def test_where_redis_changes_all_the_time_it_is_not_said_that_a_worker_has_the_job(broker, monkeypatch, path):
    """The job is lost and put back between any two looks."""
    result = durable(tasks.note).enqueue(str(path))
    row, change = row_of(result), JobBroker.change

    def lost_and_put_back(jobs, place, member, *args):
        assert change(jobs, place, member, "cancel", 1) == "OK"
        reply = change(jobs, place, member, *args)
        put(broker, row)
        return reply

    monkeypatch.setattr(JobBroker, "change", lost_and_put_back)
    for attempt in (lambda: backend().cancel(result.id), lambda: backend().reschedule(result.id, timedelta(1))):
        with pytest.raises(BrokerUnavailable, match="Try again"):
            attempt()
    assert row_of(result).status == "READY"


def test_a_cancellation_that_is_rolled_back_leaves_the_job_to_run(broker, path):
    built(broker)
    result = durable(tasks.note).enqueue(str(path))
    before = broker.now_ms()
    with transaction.atomic():
        assert backend().cancel(result.id) is True
        transaction.set_rollback(True)
    assert row_of(result).status == "READY"
    assert before <= view(broker, result).waits_until_ms - 60_000 <= broker.now_ms()
    from_now(broker, result)
    run_burst()
    assert started(path) == 1


def from_now(broker, result):
    """Let its time in Redis have come."""
    jobs, member = JobBroker(broker), row_of(result).member
    assert jobs.change(jobs.shard_of(member, "default"), member, "move", 1) == "OK"


def test_a_job_cancelled_while_redis_was_to_be_told_is_dropped_by_its_claimer(broker, monkeypatch, path):
    result = durable(tasks.note).enqueue(str(path))
    monkeypatch.setattr(module, "_follow", lambda *args: None)
    assert backend().cancel(result.id)
    assert sum(counts(broker)) == 1
    from_now(broker, result)
    run_burst()
    assert (started(path), counts(broker)) == (0, NOTHING)


def test_without_redis_nothing_can_be_cancelled_because_nobody_knows_whether_it_runs(broker, path):
    result = durable(tasks.note).enqueue(str(path))
    with pointing_at(NOBODY):
        for change in (lambda: backend().cancel(result.id), lambda: backend().reschedule(result.id, timedelta(1))):
            with pytest.raises(BrokerUnavailable):
                change()
    assert row_of(result).status == "READY"
    run_burst()
    assert started(path) == 1


def test_a_job_that_redis_has_not_yet_is_cancelled_although_it_is_just_being_put_there(broker, monkeypatch, path):
    built(broker)
    with pointing_at(NOBODY):
        result = durable(tasks.note).enqueue(str(path))
    real, put_off = module._hold_back, []

    def hold_back(row):
        real(row)
        put_off.append(view(broker, result).waits_until_ms)  # the enqueuer's own put would change nothing now

    monkeypatch.setattr(module, "_hold_back", hold_back)
    before = broker.now_ms()
    assert backend().cancel(result.id)
    assert put_off[0] >= before + 60_000
    run_burst()
    assert (started(path), counts(broker)) == (0, NOTHING)


def test_an_unknown_job_cannot_be_cancelled(broker):
    with pytest.raises(TaskResultDoesNotExist):
        backend().cancel("default.0123456789012345678901")


# -- reschedule


def test_a_rescheduled_job_runs_at_its_new_time_later_or_earlier(broker, path):
    built(broker)
    result = durable(tasks.note).enqueue(str(path))
    when = utcnow() + timedelta(days=3)
    assert backend().reschedule(result.id, when) is True
    run_burst()
    assert started(path) == 0
    assert view(broker, result).waits_until_ms == to_ms(when) == to_ms(row_of(result).wakes_at)
    assert backend().get_result(result.id).task.run_after == instant(to_ms(when))
    assert backend().reschedule(result.id, timedelta(0)) is True
    run_burst()
    assert started(path) == 1


def test_a_reschedule_of_which_redis_was_not_told_is_found_out_within_a_minute(broker, monkeypatch, path):
    built(broker)
    result = durable(tasks.note, run_after=timedelta(days=31)).enqueue(str(path))
    monkeypatch.setattr(module, "_follow", lambda *args: None)
    before = broker.now_ms()
    backend().reschedule(result.id, timedelta(hours=2))
    assert view(broker, result).waits_until_ms <= broker.now_ms() + 60_000
    from_now(broker, result)
    run_burst()
    assert before <= view(broker, result).waits_until_ms - 2 * 3_600_000 <= broker.now_ms()
    assert started(path) == 0


def test_a_reschedule_that_is_rolled_back_leaves_the_former_time(broker, path):
    built(broker)
    result = durable(tasks.note, run_after=timedelta(days=31)).enqueue(str(path))
    before = row_of(result).wakes_at
    with transaction.atomic():
        backend().reschedule(result.id, timedelta(0))
        transaction.set_rollback(True)
    from_now(broker, result)
    began = broker.now_ms()
    run_burst()
    assert (started(path), row_of(result).wakes_at) == (0, before)
    assert 0 <= view(broker, result).waits_until_ms - to_ms(before) <= broker.now_ms() - began


# -- one job for a key


def unique(path, key="k"):
    return durable(tasks.note, unique_key=key).enqueue(str(path))


def test_while_a_job_waits_another_one_of_its_key_is_that_one(broker, path):
    first, second, other = unique(path), unique(path), unique(path, "another")
    assert (first.id == second.id, first.id == other.id) == (True, False)
    run_burst()
    assert started(path) == 2
    assert unique(path).id != first.id


def test_one_list_may_name_a_key_twice_and_gets_one_job_for_both(broker, path):
    task = durable(tasks.note, unique_key="k")
    results = task.enqueue_many([((str(path),), {}), ((str(path),), {})])
    assert results[0].id == results[1].id
    run_burst()
    assert started(path) == 1


def test_a_key_is_free_again_after_a_rollback_a_cancellation_and_the_start(broker, tmp_path, path):
    with transaction.atomic():
        gone = unique(path)
        transaction.set_rollback(True)
    second = unique(path)
    assert second.id != gone.id
    assert backend().cancel(second.id)
    assert unique(path).id != second.id
    gate = tmp_path / "gate"
    task = durable(tasks.stubborn, unique_key="k")
    runs = task.enqueue(str(tmp_path / "stubborn"), str(gate))
    with live_worker():
        wait_until((tmp_path / "stubborn").exists, 10)
        assert row_of(runs).status == "READY"
        assert task.enqueue(str(path), str(gate)).id != runs.id  # what changed since its start would be missed
        gate.touch()
        wait_until(lambda: not Job.objects.filter(status="READY").exists(), 10)


def test_a_key_that_redis_would_still_know_keeps_no_job_out(broker, monkeypatch, path):
    first = unique(path)
    monkeypatch.setattr(module, "_follow", lambda *args: None)  # so that Redis keeps the cancelled job for a minute
    assert backend().cancel(first.id)
    second = unique(path)
    assert view(broker, second).payload != ""  # the sweeps would put it there too, only later
    run_burst()
    assert started(path) == 1


def test_a_flush_lets_no_second_job_of_a_key_in(broker, path):
    first = unique(path)
    broker.purge()
    assert unique(path).id == first.id
    run_burst()
    assert started(path) == 1


@needs_row_locks
def test_two_transactions_that_enqueue_one_key_get_one_job_for_both(broker, path):
    ids = []
    with ExitStack() as stack, transaction.atomic():
        first = unique(path)
        thread = stack.enter_context(in_thread(lambda: ids.append(unique(path).id)))
        thread.join(0.5)
        assert thread.is_alive()  # it waits for our commit
    assert ids == [first.id]


@needs_row_locks
def test_a_job_does_not_start_while_somebody_who_was_told_of_it_has_not_committed(broker, path):
    first = unique(path)
    with transaction.atomic():
        assert unique(path).id == first.id
        with in_thread(run_burst):
            pass
        assert (started(path), row_of(first).status, row_of(first).unique != "") == (0, "READY", True)
        assert view(broker, first).holder == ""
    wait_until(lambda: run_burst() or started(path), 10)
    assert backend().get_result(first.id).status == TaskResultStatus.SUCCESSFUL


def test_a_job_that_a_worker_has_handed_back_can_be_cancelled(broker, path):
    built(broker)
    result = durable(tasks.note).enqueue(str(path))
    claimed = claim(broker, result, lease_ms=1)
    jobs, member = JobBroker(broker), claimed.entries[0].member
    place = jobs.shard_of(member, "default")
    jobs.settle(place, [JobSettlement(member, claimed.holder, "release")], dead_ms=1, dead_most=1)
    assert backend().cancel(result.id)
    run_burst()
    assert (started(path), row_of(result).status) == (0, "FAILED")
