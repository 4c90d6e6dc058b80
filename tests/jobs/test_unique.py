"""Unique keys: one job for each, until it starts or has ended, also in open transactions and within one call."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction

from django_delayq.calls import hash_key
from django_delayq.calls.compat import TaskResultStatus, task_backends
from django_delayq.exceptions import KeyTaken
from django_delayq.ledger import jobs as ledger_jobs
from django_delayq.models import Run
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.app import tasks as app_tasks
from tests.faults.live import live_worker
from tests.jobs import tasks
from tests.jobs.support import died, in_thread, retried, row, rows, run, run_burst, tasks_setting, told

pytestmark = pytest.mark.django_db(transaction=True)
postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
HOUR = timedelta(hours=1)
READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED


def unique(made=app_tasks.add, key="k", **options):
    return retried(made, unique_key=key, **options)


def held(result):
    """The key that the row of a job holds."""
    return rows(result).values_list("unique_key", flat=True).get()


# -- taken


def test_while_a_job_waits_another_with_its_key_is_the_same_one():
    made = unique(run_after=HOUR)
    with told() as heard:
        first, second = made.enqueue(1), made.enqueue(2)
    assert second.id == first.id
    assert [id for _, _, id, _ in heard] == [first.id]
    second.refresh()
    assert second.status == READY
    assert task_backends["default"].reschedule(first.id, timedelta(0))
    assert run(second).return_value == 2
    assert app_tasks.CALLS == [(1, 1)]


def test_a_key_is_stored_as_a_hash_of_the_task_and_the_text(settings):
    keys = ["k", "K", "k ", "\u00e9", "e\u0301", "x" * 255, "\udcff"]
    results = [unique(key=key).enqueue(1) for key in keys] + [unique(tasks.echo).enqueue(1)]
    assert len({result.id for result in results}) == len(keys) + 1
    assert held(results[0]) == hash_key(app_tasks.add.module_path, "k")
    assert all(len(held(result)) == 32 for result in results)


def test_a_taken_key_returns_the_job_that_has_it_whatever_its_queue_and_its_alias(settings):
    settings.TASKS = tasks_setting(other={})
    first = unique(run_after=HOUR, queue_name="mail", priority=3, backend="other").enqueue(1)
    second = unique().enqueue(2)
    assert (second.id, second.backend, second.task.queue_name, second.task.priority) == (first.id, "other", "mail", 3)
    second.refresh()
    assert second.status == READY


def test_in_a_transaction_a_taken_key_fails_no_statement_and_a_rollback_frees_it():
    first = unique(run_after=HOUR).enqueue(1)
    with transaction.atomic():
        assert unique().enqueue(2).id == first.id
        other = unique(key="other").enqueue(3)
        assert unique(key="other").enqueue(4).id == other.id
        assert Run.objects.count() == 2, "the transaction goes on"
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        lost = unique(key="third", run_after=HOUR).enqueue(5)
        raise ZeroDivisionError
    assert unique(key="third", run_after=HOUR).enqueue(6).id != lost.id


def test_many_with_one_key_are_one_and_it_is_told_and_put_as_one():
    with told() as heard:
        results = unique(tasks.echo).enqueue_many(((n,), {}) for n in range(50))
    assert len({result.id for result in results}) == 1
    assert [id for _, _, id, _ in heard] == [results[0].id]
    with told() as heard:
        mixed = task_backends["default"].enqueue_many(
            (made, (n,), {}) for n, made in enumerate([unique(key="b"), tasks.echo, unique(key="a"), unique(key="b")])
        )
    assert [each.id == mixed[0].id for each in mixed] == [True, False, False, True]
    assert {id for _, _, id, _ in heard} == {each.id for each in mixed}
    assert run(results[-1]).return_value == [[0], {}]
    assert sorted(app_tasks.CALLS) == [(0, 1), (2, 1)]


def test_keys_of_one_call_are_taken_in_their_order(monkeypatch):
    taken, real = [], ledger_jobs._add_unique

    def add_unique(row, using):
        taken.append(row.unique_key)
        return real(row, using)

    monkeypatch.setattr(ledger_jobs, "_add_unique", add_unique)
    task_backends["default"].enqueue_many((unique(key=key), (1,), {}) for key in "zmabcy")
    assert len(taken) == 6
    assert taken == sorted(taken)


def test_where_the_others_always_start_first_a_job_goes_without_its_key(monkeypatch):
    first = unique(run_after=HOUR).enqueue(1)
    monkeypatch.setattr(ledger_jobs, "lock_rows", lambda rows: Run.objects.none())
    second = unique(run_after=HOUR).enqueue(2)
    assert (second.id != first.id, held(second)) == (True, None)


# -- until when


@pytest.mark.parametrize("until", [None, "start"])
def test_once_it_has_started_another_one_is_added(until):
    made = unique(unique_until=until)
    first = made.enqueue(1)
    died(first)
    assert made.enqueue(2).id != first.id
    assert held(first) is None


def test_a_job_that_waits_for_its_next_attempt_has_started():
    made = unique(app_tasks.fail, max_attempts=2, backoff=3600)
    first = made.enqueue()
    run_burst()
    assert made.enqueue().id != first.id


def test_until_the_end_it_is_kept_over_starts_retries_take_overs_and_flushes(broker):
    made = unique(app_tasks.fail, unique_until="end", max_attempts=2, backoff=3600)
    first = made.enqueue()
    died(first, times=2)
    assert made.enqueue().id == first.id
    run_burst()
    assert (row(first).status, row(first).reclaims, made.enqueue().id) == ("retrying", 2, first.id)
    broker.purge()
    run_burst()
    assert made.enqueue().id == first.id
    assert task_backends["default"].reschedule(first.id, timedelta(0))
    assert (run(first).status, held(first)) == (FAILED, None)
    assert made.enqueue().id != first.id


@pytest.mark.parametrize("until", ["start", "end"])
def test_a_key_is_freed_by_the_end_a_cancellation_and_a_deletion(until, settings):
    settings.TASKS = tasks_setting(brief={"result_ttl": 0})
    made = unique(unique_until=until)
    first = run(made.enqueue(1))
    second = made.using(run_after=HOUR).enqueue(2)
    assert second.id != first.id
    assert task_backends["default"].cancel(second.id)
    third = made.using(run_after=HOUR).enqueue(3)
    assert (third.id != second.id, held(second)) == (True, None)
    rows(third).delete()
    fourth = made.using(backend="brief").enqueue(4)
    run_burst()
    assert made.enqueue(5).id not in (first.id, second.id, third.id, fourth.id)


def test_a_job_that_kills_its_workers_gives_its_key_up():
    made = unique(unique_until="end")
    first = made.enqueue(1)
    died(first, times=4)
    run_burst()
    assert (row(first).status, held(first)) == ("lost", None)


# -- retrying a job whose key is taken


@pytest.mark.parametrize("until", ["start", "end"])
def test_a_failed_job_is_not_retried_while_another_one_has_its_key(until):
    made = unique(app_tasks.fail, unique_until=until)
    first = run(made.enqueue())
    second = made.using(run_after=HOUR).enqueue()
    backend = task_backends["default"]
    with transaction.atomic():
        with pytest.raises(KeyTaken, match=rf"{first.id} is not retried: the job {second.id} has its unique key"):
            backend.retry(first.id)
        assert row(first).status == "failed", "the transaction goes on"
    assert backend.cancel(second.id)
    assert backend.retry(first.id)
    assert made.enqueue().id == first.id


# -- open transactions


@postgresql
def test_two_transactions_that_enqueue_one_key_get_one_job_for_both():
    made = unique(run_after=HOUR)
    for commits in (True, False):
        with transaction.atomic():
            first = made.using(unique_key=f"k{commits}").enqueue(1)
            thread, found = in_thread(lambda: made.using(unique_key=f"k{commits}").enqueue(2))  # noqa: B023
            thread.join(0.5)
            assert thread.is_alive(), "it waits for this transaction"
            transaction.set_rollback(not commits)
        thread.join(60)
        assert (found[0].id == first.id) is commits
        assert rows(found[0]).exists()


@postgresql
def test_a_job_does_not_start_while_a_transaction_that_was_told_of_it_is_open():
    """So that it finds what that transaction writes; the worker comes back to it, and other jobs go on."""
    made = unique(tasks.echo)
    result = made.using(run_after=timedelta(seconds=0.5)).enqueue(1)
    with live_worker():
        with transaction.atomic():
            assert made.enqueue(2).id == result.id
            time.sleep(1)  # its time comes meanwhile, and the worker leaves it alone
            thread, other = in_thread(lambda: tasks.echo.enqueue(3).wait(20))
            thread.join(60)
            assert other[0].return_value == [[3], {}]
            found = row(result)
            assert (found.status, found.attempts, found.reclaims) == ("queued", None, 0)
        assert result.wait(20).return_value == [[1], {}]
    assert (row(result).attempts, row(result).attempt, row(result).reclaims) == (None, 1, 0)


@postgresql
def test_two_transactions_that_take_two_keys_in_opposite_order_end_by_an_error_of_the_database():
    made, both = unique(run_after=HOUR), threading.Barrier(2, timeout=30)

    def take(keys):
        with transaction.atomic():
            made.using(unique_key=keys[0]).enqueue(1)
            both.wait()
            made.using(unique_key=keys[1]).enqueue(2)

    work = [in_thread(lambda keys=keys: take(keys)) for keys in ("ab", "ba")]
    for thread, _ in work:
        thread.join(60)
    results = [found[0] for _, found in work]
    assert sorted(type(result) is type(None) for result in results) == [False, True]
    assert any(isinstance(result, OperationalError) for result in results)
    assert Run.objects.count() == 2


# -- handed back


@pytest.mark.parametrize("taken", [False, True])
def test_a_job_that_is_handed_back_unstarted_has_its_key_again_unless_another_has_taken_it(broker, taken):
    waits = unique().enqueue(1)
    worker = Worker(WorkerOptions(queues=("default",), threads=1))  # its slots are not started
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    while not worker.slots.waiting:
        worker.run_round(0.01)
    assert held(waits) is None
    other = unique().enqueue(2) if taken else None
    worker.dispatcher.release_all()
    worker.upkeep.sign_off()
    assert (row(waits).status, held(waits) is None) == ("queued", taken)
    assert unique().enqueue(3).id == (other or waits).id
    assert run(waits).return_value == 2
