"""F33: rows of the app are locked by somebody's long transaction, or deleted in bulk while they run.

Whatever is not locked goes on, what is locked is recorded once it is free, and nobody's transaction is the victim of a
deadlock with a worker.
"""

import time
from contextlib import ExitStack

import pytest
from django.db import connection, transaction

from django_delayq import ledger
from django_delayq.fields import utcnow
from django_delayq.ledger import Outcome, Won, recording
from django_delayq.models import Declaration, Run, Schedule, ScheduleState
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.workers import Fleet
from tests.integration.mirroring import schedule
from tests.jobs.durable_support import in_thread

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="needs PostgreSQL: set DATABASE_URL"),
]
DELETIONS = {"bulk": lambda rows: rows.delete(), "each": lambda rows: [row.delete() for row in rows]}


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
    Declaration.objects.create(schedule=row, key="k")
    outcome = Outcome(Run.of(row, now, status="succeeded", claimed_at=now, started_at=now, finished_at=now), row)
    real = recording.save_states
    with ExitStack() as until_the_end:

        def save_states(*args):
            until_the_end.enter_context(in_thread(lambda: DELETIONS[how](Schedule.objects.all())))
            wait_until(keeps_somebody_waiting, what="the deletion to wait for the recording")
            return real(*args)

        monkeypatch.setattr(recording, "save_states", save_states)
        assert ledger.record([outcome]) == [Won.YES]
    assert not (Schedule.objects.exists() or ScheduleState.objects.exists() or Declaration.objects.exists())


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
