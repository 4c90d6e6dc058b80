"""The rows of durable jobs under two writers: who may write, and what is taken back."""

import math

import pytest

from django_delayq import ledger
from django_delayq.broker import Shard
from django_delayq.fields import utcnow
from django_delayq.ledger import JobOutcome, Won
from django_delayq.worker import Worker, WorkerOptions
from tests.app import tasks
from tests.jobs.durable_support import built, durable, row_of, rows_of, view
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def read(result):
    """Return what a worker would read of a job now."""
    member = row_of(result).member
    return ledger.load_jobs([member])[member]


def outcome(row, fence, status="SUCCESSFUL", attempt=1):
    return JobOutcome(row, fence, status, attempt, "", utcnow(), utcnow(), None)


@pytest.fixture
def result(broker):
    built(broker)
    return durable(tasks.noop).enqueue()


def test_the_first_of_two_outcomes_stands(result):
    row = read(result)
    assert ledger.record_jobs([outcome(row, "1.x me")]) == [Won.YES]
    assert ledger.record_jobs([outcome(row, "2.x other", "FAILED")]) == [Won.GONE]
    assert (row_of(result).status, row_of(result).fence) == ("SUCCESSFUL", "1.x me")


def test_the_first_of_two_outcomes_in_one_batch_stands(result):
    row = read(result)
    won = ledger.record_jobs([outcome(row, "1.x me"), outcome(row, "2.x me", "FAILED")])
    assert (won, row_of(result).status) == ([Won.YES, Won.GONE], "SUCCESSFUL")


def test_an_outcome_whose_commit_was_not_answered_is_written_again_as_mine(result):
    row = read(result)
    for _ in range(2):
        assert ledger.record_jobs([outcome(row, "1.x me")]) == [Won.YES]


def test_an_attempt_that_somebody_else_has_taken_over_is_lost(result):
    row = read(result)
    [taken] = ledger.start_jobs([(row, "2.x other")])
    assert ledger.record_jobs([outcome(row, "1.x me")]) == [Won.LOST]
    assert ledger.record_jobs([outcome(taken, "2.x other")]) == [Won.YES]


def test_the_outcome_of_a_deleted_job_is_gone_and_makes_no_row(result):
    row = read(result)
    rows_of(result).delete()
    assert ledger.record_jobs([outcome(row, "1.x me")]) == [Won.GONE]
    assert ledger.load_jobs([row.member]) == {}


def claim(worker):
    """Have a worker claim jobs, as where points are due beside them."""
    _, jobs = worker.kinds
    worker.claims._claim(jobs, Shard("default", 0), 10)


def test_only_one_of_two_takes_a_job_over(result):
    row = read(result)
    assert ledger.start_jobs([(row, "2.x me")])[0].reclaims == 1
    assert ledger.start_jobs([(row, "3.x other")]) == [Won.LOST]
    assert (row_of(result).status, row_of(result).fence, row_of(result).reclaims) == ("RUNNING", "2.x me", 1)


def test_what_is_handed_back_unstarted_counts_no_take_over(broker, result):
    rows_of(result).update(status="RUNNING", fence="1.x dead", reclaims=0)
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))  # whose slots have not begun
    claim(worker)
    assert row_of(result).reclaims == 1
    worker.dispatcher.release_all()
    row = row_of(result)
    assert (row.status, row.fence, row.reclaims, view(broker, result).holder) == ("RUNNING", "1.x dead", 0, "-")
    run_burst()
    assert row_of(result).status == "SUCCESSFUL"


def test_a_take_over_that_meets_another_ones_row_is_looked_up_again(broker, result, monkeypatch):
    rows_of(result).update(status="RUNNING", fence="1.x dead")
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))
    real = ledger.start_jobs

    def start_jobs(starting):
        rows_of(result).update(status="SUCCESSFUL", fence="0.x late")
        return real(starting)

    monkeypatch.setattr(ledger, "start_jobs", start_jobs)
    claim(worker)
    assert (worker.slots.waiting, row_of(result).fence) == (0, "0.x late")
    assert view(broker, result).waits_until_ms is not None


def test_a_row_that_cannot_be_written_holds_up_no_other(broker, monkeypatch):
    built(broker)
    bad, *good = durable(tasks.noop).enqueue_many(((), {}) for _ in range(3))
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))
    claimed = []
    monkeypatch.setattr(worker.slots, "submit", claimed.extend)
    claim(worker)
    for held in claimed:
        assert held.kind.execute(held)
        worker.recorder.add([held])
    real = ledger.record_jobs

    def record_jobs(outcomes):
        if any(item.row.member == row_of(bad).member for item in outcomes):
            raise ValueError("a value that this table does not take")
        return real(outcomes)

    monkeypatch.setattr(ledger, "record_jobs", record_jobs)
    for _ in range(2):  # refused; and once more, after the others were taken
        worker.recorder.flush()
    assert [row_of(result).status for result in (bad, *good)] == ["READY", "SUCCESSFUL", "SUCCESSFUL"]
    assert (worker.recorder.again, len(worker.keeper)) == (math.inf, 0)
