"""What a recorder does with what the database refuses: `worker/recorder.py`, Note [Fault needs evidence]."""

import logging
import math
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    connection,
)

from django_delayq import actions, ledger
from django_delayq.index import Shard
from django_delayq.index.counters import Counts
from django_delayq.ledger.rows import RunRow
from django_delayq.models import Origin, Run, Status
from django_delayq.recurrence.point import utcnow
from django_delayq.worker import recorder
from django_delayq.worker.held import Lease, Verdicts
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from django_delayq.worker.recorder import Recorder, is_passing
from tests.app import tasks
from tests.integration.mirroring import schedule, until
from tests.support import make_due

KEPT = [InternalError, InterfaceError, OperationalError, ProgrammingError]
MAYBE_AT_FAULT = [DataError, IntegrityError, ValueError]
PLACE = Shard("default", 0)


def of_postgresql(code, constraint):
    """Return an error as PostgreSQL reports it, in whatever language."""
    error = IntegrityError("»django_delayq_run_pkey« will nicht")
    error.__cause__ = Exception()
    error.__cause__.diag = SimpleNamespace(sqlstate=code, constraint_name=constraint)
    return error


class Row(Lease):
    """An entry whose sort is the first letter of its member."""

    labels = {}

    @property
    def sort(self):
        return self.member[0]


class Table:
    """A trip whose table takes members, but for those that it refuses. It takes all of a batch, or nothing."""

    def __init__(self):
        self.refused, self.rows, self.counted = {}, [], Counts()

    def record(self, batch):
        """Write members, and let go of what is written."""
        for held in batch:
            if held.member in self.refused:
                raise self.refused[held.member]
        self.rows += [held.member for held in batch]
        for held in batch:
            held.taken = True
        return Verdicts(gone=list(batch))


class Play:
    """A recorder by a clock that stands still."""

    def __init__(self, size, monkeypatch):
        self.now, self.errors, self.let_go = 100.0, [], []
        self.table = Table()
        trouble = SimpleNamespace(
            until=0.0,
            note_database_failure=lambda error, writing: self.errors.append(type(error)),
            note_database_success=lambda wrote: None,
        )
        keeper = SimpleNamespace(batch_size=size, discard=self.discard)
        monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.recorder = Recorder(self.table, keeper, trouble, None)

    def discard(self, held):
        self.let_go += [item.member for item in held if item.member not in self.table.rows]

    def write(self, *members):
        """Write these, and what is to be tried again at once; return what is refused and waits."""
        self.recorder.add([Row(PLACE, member, "", math.inf, *[None] * 5) for member in members])
        self.recorder.flush()
        while not self.errors and self.recorder.again <= self.now:
            self.recorder.flush()
        return [held.member for held in self.recorder.refusals.rows]

    def refuse(self, *members, error=IntegrityError):
        self.table.refused = dict.fromkeys(members, error)

    def wait(self):
        """Let the time of the next try come; return what waits then."""
        self.now = max(self.now, self.recorder.again)
        return self.write()


@pytest.fixture
def play(monkeypatch):
    return Play(4, monkeypatch)


@pytest.mark.parametrize("error", KEPT)
def test_where_any_row_would_be_refused_nothing_is_let_go(play, error):
    play.refuse("a2", error=error)
    play.write("a0", "a1", "a2", "a3")
    assert (play.table.rows, play.let_go, len(play.errors)) == ([], [], 1)
    assert [held.member for held in play.recorder._unrecorded] == ["a0", "a1", "a2", "a3"]


@pytest.mark.parametrize("error", MAYBE_AT_FAULT)
def test_a_row_that_stays_refused_while_others_are_taken_is_let_go_and_holds_up_no_other(play, error, caplog):
    play.refuse("a1", error=error)
    assert play.write("a0", "a1", "a2", "a3", "a4") == []
    assert (play.table.rows, play.let_go, play.errors) == (["a0", "a2", "a3", "a4"], ["a1"], [])
    assert caplog.text.count("cannot be recorded") == 1
    assert play.table.counted == {("points", "default", ""): {"discarded": 1}}


@pytest.mark.parametrize(("code", "constraint"), [("23505", "django_delayq_run_pkey"), ("23514", None)])
def test_a_row_that_meets_a_sequence_behind_its_table_or_no_partition_is_kept_while_others_are_written(
    play, code, constraint, caplog
):
    caplog.set_level(logging.INFO)
    play.refuse("a1", "a2", error=of_postgresql(code, constraint))
    assert play.write("a0", "a1", "a2", "a3") == ["a1", "a2"]
    for n in range(10):
        assert play.write(f"b{n}", f"a9{n}") and len(play.wait()) == 2
    assert (len(play.table.rows), play.let_go, play.errors) == (22, [], [])
    assert len(caplog.records) == 1
    play.refuse()
    assert play.wait() == []
    assert sorted(play.table.rows)[1:3] == ["a1", "a2"]


def test_rows_of_another_sort_written_before_a_refused_one_is_tried_again_end_nothing(play, caplog):
    caplog.set_level(logging.INFO)
    play.refuse("j0")
    play.write("j0")
    began = play.now
    for n in range(10):
        play.now = max(play.now, play.recorder.again)
        play.write(f"a{n}")
    assert len(caplog.records) == 1
    assert play.now - began > 20, "the pauses grow"


def test_what_every_row_meets_is_kept_said_once_and_written_when_it_is_over(play, caplog):
    caplog.set_level(logging.INFO)
    members = [f"a{n}" for n in range(10)]
    play.refuse(*members)
    assert play.write(*members) == members
    for _ in range(20):
        assert len(play.wait()) == 10
    play.now += 1  # between two tries
    assert (play.table.rows, play.let_go, play.errors) == ([], [], [])
    assert caplog.text.count("is refused") == len(caplog.records) == 1
    play.refuse()
    assert play.wait() == []
    assert sorted(play.table.rows) == members
    assert caplog.text.count("The database takes all outcomes again") == 1


def test_rows_taken_before_are_no_evidence_so_that_an_outage_may_begin_within_a_batch(play):
    play.refuse("a1", "a2")
    assert play.write("a0", "a1", "a2") == ["a1", "a2"]
    assert play.wait() == ["a2", "a1"], "another one is tried each time"
    assert play.let_go == []


def test_a_lone_bad_row_stops_nothing_and_is_let_go_when_another_one_was_taken(play):
    play.refuse("a0")
    assert play.write("a0") == ["a0"]
    assert play.write("a1") == []
    assert (play.table.rows, play.let_go) == (["a1"], ["a0"])


def test_rows_of_another_sort_are_no_evidence(play):
    play.refuse("a0", "a1")
    assert play.write("a0") == ["a0"]
    assert play.write("b0") == ["a0"]
    assert play.wait() == ["a0"]
    assert play.write("a1", "b1") == ["a0", "a1"]
    assert play.let_go == []


def test_what_was_written_one_by_one_before_an_outage_is_not_written_again(play):
    play.table.refused = {"a1": DataError, "a3": InternalError}
    play.write("a0", "a1", "a2", "a3")
    assert (play.table.rows, play.errors) == (["a0", "a2"], [InternalError])
    assert [held.member for held in play.recorder._unrecorded] == ["a3"]
    play.errors.clear()
    play.table.refused.pop("a3")
    assert play.write() == []
    assert (play.table.rows, play.let_go) == (["a0", "a2", "a3"], ["a1"])


@contextmanager
def every_row_refused():
    """Have triggers refuse what is inserted into runs, and what changes one, as IntegrityError."""
    table, deeds = Run._meta.db_table, ("INSERT", "UPDATE")
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for what in deeds:
                text = f"CREATE TRIGGER no_{what} BEFORE {what} ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"
                cursor.execute(text)
        elif connection.vendor == "postgresql":
            body = "BEGIN RAISE 'no' USING ERRCODE = '23514'; END"
            cursor.execute(f"CREATE OR REPLACE FUNCTION refusing() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
            for what in deeds:
                text = f"CREATE TRIGGER no_{what} BEFORE {what} ON {table} FOR EACH ROW EXECUTE FUNCTION refusing()"
                cursor.execute(text)
        else:
            pytest.skip("no trigger for this database here")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for what in deeds:
                on = f" ON {table}" if connection.vendor == "postgresql" else ""
                cursor.execute(f"DROP TRIGGER no_{what}{on}")


@pytest.mark.django_db(transaction=True)
def test_a_worker_loses_and_repeats_nothing_while_a_trigger_refuses_every_row(built, tmp_path, caplog):
    gate, path = tmp_path / "closed", tmp_path / "ran"
    rows = [schedule(f"s{n}", task="tests.app.tasks.stubborn", args=[str(path), str(gate)]) for n in range(3)]
    for _ in range(3):
        tasks.stubborn.enqueue(str(path), str(gate))
    for row in rows:
        make_due(built, row)
    worker = Worker(WorkerOptions(queues=("default",), threads=8))
    worker.slots.start()
    try:
        with every_row_refused():
            gate.touch()
            until(worker, lambda: len(worker.recorder.refusals.rows) == 6)
            for _ in range(20):
                worker.run_round(0.01)
            worker.keeper.renew_all()
            assert len(worker.keeper) == 6
            assert set(Run.objects.values_list("origin", "status")) == {(Origin.JOB, Status.QUEUED)}
        until(worker, lambda: not len(worker.keeper))
    finally:
        worker.slots.stop(1.0)
        worker.broker.close()
    ran = Run.objects.filter(status=Status.SUCCEEDED)
    assert sorted(ran.filter(origin=Origin.DUE).values_list("schedule", flat=True)) == [row.pk for row in rows]
    assert ran.filter(origin=Origin.JOB).count() == 3 == Run.objects.count() - 3
    assert path.read_text().count("start") == 6
    assert caplog.text.count("is refused") == 1 and "cannot be recorded" not in caplog.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="others have no sequences and partitions")
@pytest.mark.parametrize("what", ["a sequence behind its table", "no partition", "a check"])
def test_postgresqls_errors_that_meet_rows_by_turns_are_known(what):
    row = schedule("s")
    with pytest.raises(IntegrityError) as caught, connection.cursor() as cursor:
        if what == "a sequence behind its table":
            first = Run.build_for(row, utcnow(), status=Status.QUEUED)
            first.save()
            Run.objects.bulk_create(
                [Run.build_for(row, utcnow() + timedelta(days=1), pk=first.pk, status=Status.QUEUED)]
            )
        elif what == "no partition":
            cursor.execute("CREATE TEMP TABLE cut (day int) PARTITION BY RANGE (day)")
            cursor.execute("INSERT INTO cut VALUES (1)")
        else:
            cursor.execute("CREATE TEMP TABLE checked (name text CHECK (name <> '_pkey\"'))")
            cursor.execute("INSERT INTO checked VALUES ('_pkey\"')")
    assert is_passing(caught.value) is (what != "a check")


@pytest.mark.django_db(transaction=True)
def test_a_running_row_that_is_refused_is_left_for_a_later_try():
    row = schedule("s")
    running = RunRow.build_for(row, utcnow(), status=Status.RUNNING, fence="1.e", worker="w1")
    outcome = ledger.Outcome(running, ledger.load_schedules([row.pk])[row.pk])
    with every_row_refused():
        assert ledger.start([outcome]) == [ledger.Won.LOCKED]
    assert ledger.start([outcome]) == [ledger.Won.YES]


@pytest.mark.django_db(transaction=True)
def test_a_backfill_that_the_table_refuses_is_an_error(broker):
    row = schedule("s")
    dates = utcnow() - timedelta(days=2), utcnow()
    with every_row_refused(), pytest.raises(IntegrityError):
        actions.backfill(row, *dates)
    assert actions.backfill(row, *dates)
