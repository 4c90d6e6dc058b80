"""F33: rows of the app are locked by somebody's long transaction, or deleted in bulk while they run.

Whatever is not locked goes on, what is locked is recorded once it is free, and nobody's transaction is the victim of a
deadlock with a worker.
"""

import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction

from django_delayq import ledger, sync
from django_delayq.ledger import Outcome, Won, recording
from django_delayq.models import Run, Schedule, ScheduleState, Status
from django_delayq.recurrence.point import utcnow
from django_delayq.sync import after_commit
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import lines, wait_until
from tests.app import tasks
from tests.databases.test_threads import known, ordered
from tests.faults.harness.load import SECOND, schedules, soon
from tests.faults.harness.workers import Fleet, WorkerProcess
from tests.faults.live import live_worker
from tests.integration.mirroring import mirrored, schedule
from tests.integration.probing import build
from tests.jobs.support import died, rows
from tests.jobs.support import row as job
from tests.support import OTHER_DAILY_CRON, make_due

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="needs PostgreSQL: set DATABASE_URL"),
]
DELETIONS = {"bulk": lambda rows: rows.delete(), "each": lambda rows: [row.delete() for row in rows]}


def hold_and_wait():
    """Lock the schedule `ticking`, and wait for another job of the same worker when a point of that one has run."""
    with transaction.atomic():
        assert Schedule._base_manager.select_for_update().get(name="ticking")
        before = len(tasks.CALLS)
        wait_until(lambda: len(tasks.CALLS) > before, 20, "a point whose outcome cannot be recorded")
        with in_thread(lambda: tasks.add.enqueue(99)):  # not in this transaction
            pass
        wait_until(lambda: (99, 1) in tasks.CALLS, 20, "the other job")


@contextmanager
def in_thread(function):
    """Run this in a thread with a connection of its own; raises what it raised."""
    errors = []

    def run():
        try:
            function()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    wait_until(lambda: not thread.is_alive(), 20, "the end of the thread")
    if errors:
        raise errors[0]


def started(path):
    """Return how many executions of `tasks.note` have begun."""
    return sum(line[0] == "start" for line in lines(path))


def keeps_somebody_waiting():
    """Say whether another connection waits for a lock of this one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
        )
        return cursor.fetchone()[0]


@pytest.mark.parametrize("how", DELETIONS)
def test_f33_a_deletion_that_meets_a_recording_waits_and_both_are_done(broker, monkeypatch, how):
    row, now = schedule(), utcnow()
    outcome = Outcome(Run.build_for(row, now, status="succeeded", claimed_at=now, started_at=now, finished_at=now), row)
    real = recording.write_states
    with ExitStack() as until_the_end:

        def write_states(*args):
            until_the_end.enter_context(in_thread(lambda: DELETIONS[how](Schedule.objects.all())))
            wait_until(keeps_somebody_waiting, what="the deletion to wait for the recording")
            return real(*args)

        monkeypatch.setattr(recording, "write_states", write_states)
        assert ledger.record([outcome]) == [Won.YES]
    assert not (Schedule.objects.exists() or ScheduleState.objects.exists())


@pytest.mark.parametrize("bulk", [lambda rows: rows.update(description="new"), lambda rows: rows.delete()])
def test_f33_a_bulk_write_locks_by_primary_key_wherever_the_rows_lie(broker, bulk):
    first, second = schedule("first"), schedule("second")
    Schedule._base_manager.filter(pk=first.pk).update(description="now it lies behind the second")
    rows = Schedule._base_manager.select_for_update()
    with ExitStack() as until_the_end, transaction.atomic():
        assert rows.get(pk=first.pk)
        until_the_end.enter_context(in_thread(lambda: bulk(Schedule.objects.all())))
        wait_until(keeps_somebody_waiting, what="the bulk write to wait for the first row")
        assert rows.get(pk=second.pk)
    assert not Schedule.objects.filter(description__startswith="now it lies").exists()


@contextmanager
def locking(rows):
    """Lock these rows by a transaction of somebody else's, until the end of the `with`."""
    holder = connection.copy()
    holder.settings_dict["OPTIONS"] = {**holder.settings_dict["OPTIONS"], "application_name": "the nightly import"}
    holder.set_autocommit(False)
    text, params = rows.query.sql_with_params()
    try:
        with holder.cursor() as cursor:
            cursor.execute(f"{text} FOR UPDATE", params)
            assert cursor.fetchall(), "nothing was locked"
        yield
    finally:
        holder.rollback()
        holder.close()


def go_on(trace, histories):
    """Wait until each of these has begun twice from now on."""
    since = time.time()

    def ran_twice():
        began = Counter(item.schedule for item in trace.executions() if item.began > since)
        return all(began[history.pk] >= 2 for history in histories)

    return wait_until(ran_twice, 20, "all others to go on")


@pytest.mark.parametrize("table", [Schedule, ScheduleState])
def test_f33_a_row_that_somebody_locks_holds_up_its_schedule_only(server, trace, tmp_path, report, table):
    histories = schedules(30, trace)
    first, *others = histories
    with WorkerProcess("--threads", "4", folder=tmp_path) as worker:
        wait_until(lambda: len(trace.executions()) > 60, 30, "a load")
        with locking(table._base_manager.filter(pk=first.pk)):
            since = time.time()
            recovery = go_on(trace, others)
            wait_until(lambda: "Other transactions have locked the rows" in worker.log(), 20, "that it logs the lock")
            go_on(trace, others)
            assert sum(item.schedule == first.pk for item in trace.executions() if item.began > since) <= 1
        go_on(trace, histories)
        report(f"F33 {table._meta.model_name} locked", histories, recovery=recovery)
        log = worker.log()
    assert log.count("Other transactions have locked the rows") == 1
    assert "cannot be used" not in log


def test_f33_a_retry_whose_row_is_locked_begins_once_it_is_free(server, trace, tmp_path, report):
    values = {"task": "tests.faults.tasks.fail_first", "max_attempts": 2, "backoff": timedelta(seconds=3)}
    retrying, others = schedules(1, trace, name="retries", **values, **soon(1)), schedules(10, trace)
    with WorkerProcess(folder=tmp_path):
        open_rows = Run.objects.filter(status="retrying")
        wait_until(open_rows.exists, 20, "a retry")
        with locking(open_rows):
            for _ in range(4):  # seconds: the retry has come due meanwhile
                go_on(trace, others)
            assert open_rows.exists()
        wait_until(lambda: not Run.objects.filter(schedule_id=retrying[0].pk).open().exists(), 20, "the retry")
        report("F33 run locked", [*retrying, *others])
    assert Run.objects.get(schedule_id=retrying[0].pk).status == "succeeded"


def test_f33_where_too_many_rows_are_locked_nothing_more_is_claimed_and_it_says_so(server, trace, tmp_path, report):
    histories = schedules(10, trace)
    with WorkerProcess(folder=tmp_path, BATCH_SIZE=5) as worker:
        go_on(trace, histories)
        with locking(Schedule._base_manager.filter(pk__in=[history.pk for history in histories])):
            wait_until(lambda: "Nothing more is claimed" in worker.log(), 20, "that it says so")
            assert worker.alive
        go_on(trace, histories)
        report("F33 all rows locked", histories)
        log = worker.log()
    assert log.count("Nothing more is claimed") == 1


def test_f33_a_job_whose_row_is_locked_holds_up_no_other(broker, tmp_path):
    path, gate = tmp_path / "ran", tmp_path / "gate"
    with live_worker(threads=2):
        first = tasks.note.enqueue(str(path), gate=str(gate))
        wait_until(lambda: started(path) == 1, 20, "its start")
        with locking(rows(first)):
            gate.touch()
            for _ in range(3):
                other = tasks.note.enqueue(str(path))
                wait_until(lambda other=other: job(other).status == "succeeded", 20, "the others")
            assert Status(job(first).status).is_open
        wait_until(lambda: job(first).status == "succeeded", 20, "its outcome")
    assert started(path) == 4


def test_f33_what_has_to_run_alone_does_not_wait_for_an_outcome_whose_row_is_locked(broker, tmp_path):
    path, gate = tmp_path / "ran", tmp_path / "gate"
    with live_worker(threads=2) as live:
        first = tasks.note.enqueue(str(path), gate=str(gate))
        wait_until(lambda: started(path) == 1, 20, "its start")
        with locking(rows(first)):
            gate.touch()
            wait_until(lambda: len(live.worker.recorder.locked), 20, "an outcome that cannot be recorded")
            with transaction.atomic():
                suspect = tasks.noop.enqueue()
                rows(suspect).update(status="running", fence="1.x", worker="dead", reclaims=1)
            wait_until(lambda: job(suspect).status == "succeeded", 20, "its turn")
        wait_until(lambda: job(first).status == "succeeded", 20, "its outcome")


def test_f33_a_take_over_of_a_job_whose_row_is_locked_begins_once_it_is_free(broker, tmp_path):
    path = tmp_path / "ran"
    first = tasks.note.enqueue(str(path))
    died(first)
    with ExitStack() as until_the_end:
        with locking(rows(first)):
            until_the_end.enter_context(live_worker(threads=2))
            for number in range(3):
                tasks.note.enqueue(str(path))
                wait_until(lambda number=number: started(path) == number + 1, 20, "the others")
        wait_until(lambda: job(first).status == "succeeded", 20, "its outcome")
    assert started(path) == 4


def test_f33_a_task_that_has_locked_a_schedule_may_wait_for_another_job_of_its_worker(broker, monkeypatch):
    tasks.CALLS.clear()
    schedule("ticking", task="tests.app.tasks.add", args=[1], kind="every", cron="", every=SECOND)
    holding = schedule("holding", task=known(monkeypatch, hold_and_wait))
    with live_worker(threads=4):
        assert ordered(holding).status == "succeeded"


def test_f33_a_point_behind_what_an_edit_left_is_handed_back_while_its_schedule_is_locked(broker):
    edited, other = schedule("edited"), schedule("other")
    point = make_due(broker, edited)
    make_due(broker, other)
    Schedule.objects.filter(pk=edited.pk).update(effective_from=point - 0.5 * SECOND)
    ScheduleState.objects.filter(pk=edited.pk).update(next_due_at=point - 0.7 * SECOND)
    worker = Worker(WorkerOptions(queues=("default",), threads=2))  # alone: no sweep is to find the difference first
    worker.slots.start()

    def runs(row):
        worker.run_round(0.05)
        return list(Run.objects.filter(schedule_id=row.pk).order_by("due_at").values_list("status", "reason"))

    with locking(Schedule._base_manager.filter(pk=edited.pk)):
        wait_until(lambda: runs(other) == [("succeeded", "")], 20, "the other")
        assert runs(edited) == []
    wait_until(lambda: len(runs(edited)) == 2, 20, "what the edit left, and the point")
    wait_until(lambda: runs(edited) == [("skipped", "edited"), ("succeeded", "")], 20, "its outcome")
    worker.drain()
    worker.broker.close()


def test_f33_a_sweep_leaves_out_what_is_locked(broker, monkeypatch):
    build(broker)
    first, second = schedule("first"), schedule("second")
    monkeypatch.setattr(after_commit, "MOST_AT_ONCE", 0)
    Schedule.objects.update(cron=OTHER_DAILY_CRON)
    with locking(Schedule._base_manager.filter(pk=first.pk)), in_thread(lambda: sync.sweep_delta(broker)):
        pass
    assert list(Schedule.objects.unmirrored()) == [first]
    assert mirrored(broker, second)
    assert sync.sweep_delta(broker) == 1
    assert mirrored(broker, first)
    assert not Schedule.objects.unmirrored().exists()


def test_f33_a_sweep_deletes_expired_results_but_for_those_that_are_locked(broker):
    build(broker)
    first, second = (tasks.noop.enqueue() for _ in range(2))
    for result in (first, second):
        rows(result).update(status="succeeded", expires_at=utcnow())
    with locking(rows(first)), in_thread(lambda: sync.sweep_fully(broker)):
        pass
    assert Run.objects.get() == job(first)
    sync.sweep_fully(broker)
    assert not Run.objects.exists()


def test_f33_schedules_deleted_in_bulk_while_they_run(server, trace, tmp_path, report):
    doomed = schedules(100, trace, name="doomed")
    histories = schedules(10, trace, name="stays")
    with Fleet(2, folder=tmp_path) as fleet:
        wait_until(lambda: len(trace.executions()) > 200, 30, "a load")
        for part in range(10):
            Schedule.objects.filter(name__in=[f"doomed{number}" for number in range(part, 100, 10)]).delete()
        gone = time.time()
        wait_until(lambda: len(trace.first_after(gone)) >= len(histories), 30, "the others to go on")
        for history in doomed:
            history.deleted = True
        report("F33 bulk delete", [*histories, *doomed])
        logs = "".join(worker.log() for worker in fleet.workers)
    assert "deadlock" not in logs
    assert Schedule.objects.count() == len(histories)


def test_f33_a_take_over_that_did_not_begin_is_taken_back_but_for_rows_that_are_locked(broker):
    """Those count one take-over more than there was, which ends in a poisonous outcome later, not earlier."""
    rows = [schedule(name) for name in ("free", "locked")]
    runs = [Run.build_for(row, utcnow(), status="running", fence="1.e", worker="w", reclaims=1) for row in rows]
    Run._base_manager.bulk_create(runs)
    before = {"status": "running", "fence": "0.e", "reclaims": 0}
    with locking(Run._base_manager.filter(pk=runs[1].pk)):
        ledger.undo_start([Outcome(run, row) for run, row in zip(runs, rows, strict=True)], [before, before])
    assert [(run.reclaims, run.fence) for run in Run.objects.order_by("schedule_name")] == [(0, "0.e"), (1, "1.e")]


def test_f33_an_open_row_without_a_schedule_is_left_to_the_sweep_while_it_is_locked(broker):
    row = schedule()
    run = Run.build_for(row, utcnow(), status="running", fence="1.e", worker="w")
    run.save(force_insert=True)
    with locking(Run._base_manager.filter(pk=run.pk)):
        ledger.close_orphan(run, "the schedule was deleted")
    assert Run.objects.get().status == "running"
    ledger.close_orphan(run, "the schedule was deleted")
    assert Run.objects.get().status == "lost"
