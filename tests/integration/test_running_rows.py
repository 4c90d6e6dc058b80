"""What has run for a while has a row that says so, written once, and by nobody's leave but the database's."""

import math
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import DataError, OperationalError

from django_delayq import ledger
from django_delayq.ledger import Won
from django_delayq.models import Run, Status
from django_delayq.worker import showing
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import lines
from tests.app import tasks
from tests.integration import mirroring
from tests.integration.mirroring import until
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def at_once(settings, monkeypatch):
    """A row for everything that runs, however short a time, at the next look."""
    settings.DELAYQ = {**settings.DELAYQ, "RUNNING_AFTER_SECONDS": 0}
    monkeypatch.setattr(showing, "LOOK_SECONDS", 0.0)


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def schedule(broker, gate, ago=None, **values):
    kwargs = {"path": str(gate.parent / "ran"), "gate": str(gate)}
    values = {"kind": "every", "cron": "", "every": timedelta(hours=1), **values}
    row = mirroring.schedule(task="tests.app.tasks.note", kwargs=kwargs, **values)
    make_due(broker, row, ago)
    return row


@contextmanager
def a_worker(gate, name="w1"):
    """A worker whose slots run, and whose loop is played by hand; what it runs ends with the gate's opening."""
    worker = Worker(WorkerOptions(queues=("default", "mail"), threads=2, name=name))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    worker.slots.start()
    try:
        yield worker
    finally:
        gate.touch()
        worker.slots.stop(10)
        worker.broker.close()


def begin(worker, gate):
    """Have a worker claim and begin one task."""
    until(worker, lambda: lines(gate.parent / "ran"))


def finish(worker, gate):
    """Have the task end and be recorded."""
    gate.touch()
    until(worker, lambda: not len(worker.keeper))


@pytest.mark.parametrize("what", ["point", "job"])
def test_what_runs_has_a_row_that_says_where_and_since_when_and_is_written_once(broker, gate, monkeypatch, what):
    if what == "job":
        tasks.note.enqueue(str(gate.parent / "ran"), gate=str(gate))
    else:
        schedule(broker, gate)
    written, start = [], ledger.start
    monkeypatch.setattr(ledger, "start", lambda outcomes: written.append(len(outcomes)) or start(outcomes))
    with a_worker(gate) as worker:
        begin(worker, gate)
        until(worker, Run.objects.filter(status=Status.RUNNING).exists)
        row = Run.objects.get()
        assert (row.status, row.worker, row.attempt, row.reclaims) == (Status.RUNNING, "w1", 0, 0)
        assert row.claimed_at <= row.started_at
        assert row.finished_at is None
        for _ in range(5):
            worker.run_round(0.01)
        finish(worker, gate)
    assert written == [1]
    ended = Run.objects.get()
    assert (ended.pk, ended.status, ended.attempt, ended.reclaims) == (row.pk, Status.SUCCEEDED, 1, 0)
    assert ended.started_at == row.started_at


@pytest.mark.parametrize("answer", [Won.LOST, DataError])
def test_what_somebody_else_has_decided_or_is_at_fault_is_tried_once_and_holds_up_nothing(
    broker, gate, monkeypatch, answer
):
    schedule(broker, gate)
    tried = []

    def start(outcomes):
        tried.append(outcomes)
        if answer is DataError:
            raise DataError("no")
        return [answer] * len(outcomes)

    monkeypatch.setattr(ledger, "start", start)
    with a_worker(gate) as worker:
        begin(worker, gate)
        until(worker, lambda: tried)
        for _ in range(5):
            worker.run_round(0.01)
        assert (len(tried), worker.trouble.until) == (1, 0.0)
        finish(worker, gate)
    assert Run.objects.get().status == Status.SUCCEEDED


def test_a_task_that_ends_before_costs_no_write(broker, gate, settings, monkeypatch):
    settings.DELAYQ = {**settings.DELAYQ, "RUNNING_AFTER_SECONDS": 300}
    monkeypatch.setattr(ledger, "start", lambda outcomes: pytest.fail("written"))
    schedule(broker, gate)
    with a_worker(gate) as worker:
        begin(worker, gate)
        for _ in range(5):
            worker.run_round(0.01)
        assert not Run.objects.exists()
        finish(worker, gate)
    assert Run.objects.get().status == Status.SUCCEEDED


def test_what_is_skipped_for_it_stands_beside_it(broker, gate):
    row = schedule(broker, gate, missed="latest", every=timedelta(seconds=10), ago=timedelta(seconds=55))
    with a_worker(gate) as worker:
        begin(worker, gate)
        until(worker, Run.objects.exists)
        stretch, running = Run.objects.order_by("due_at")
        assert (stretch.status, running.status) == (Status.SKIPPED, Status.RUNNING)
        assert stretch.last_due_at + row.every == running.due_at
        finish(worker, gate)
    rows = list(Run.objects.order_by("due_at").values_list("pk", "status")[:2])
    assert rows == [(stretch.pk, "skipped"), (running.pk, "succeeded")]


def test_a_database_that_does_not_take_it_ends_no_task(broker, gate, monkeypatch, caplog):
    schedule(broker, gate)
    tried = []

    def refuse(outcomes):
        tried.append(outcomes)
        raise OperationalError("no")

    with a_worker(gate) as worker, monkeypatch.context() as patch:
        patch.setattr(ledger, "start", refuse)
        begin(worker, gate)
        until(worker, lambda: tried)
        patch.undo()
        until(worker, Run.objects.exists)
        finish(worker, gate)
    assert Run.objects.get().status == Status.SUCCEEDED
    assert "The database cannot be used now: no." in caplog.text
    assert len([line for line in lines(gate.parent / "ran") if line[0] == "start"]) == 1


def test_who_takes_over_counts_one_take_over_and_the_first_holder_is_refused(broker, gate, settings):
    settings.DELAYQ = {**settings.DELAYQ, "LEASE_SECONDS": 1}
    schedule(broker, gate)
    with a_worker(gate) as first, a_worker(gate, "w2") as second:
        begin(first, gate)  # and nobody renews its lease
        until(first, Run.objects.exists)
        until(second, lambda: Run.objects.get().worker == "w2")
        assert (Run.objects.get().status, Run.objects.get().reclaims) == (Status.RUNNING, 1)
        gate.touch()
        until(first, lambda: not first.slots.running and first.recorder.again == math.inf)
        finish(second, gate)
    row = Run.objects.get()
    assert (row.status, row.worker, row.reclaims, row.attempt) == (Status.SUCCEEDED, "w2", 1, 1)


def test_a_schedule_that_is_deleted_meanwhile_leaves_no_open_row(broker, gate):
    row = schedule(broker, gate)
    with a_worker(gate) as worker:
        begin(worker, gate)
        until(worker, Run.objects.exists)
        row.delete()
        finish(worker, gate)
    assert not Run.objects.open().exists()
