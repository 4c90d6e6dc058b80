"""F39: a worker is killed while it prunes; one that stood still records what was pruned meanwhile."""

from datetime import timedelta

import pytest

from django_delayq.models import Run, Schedule, ScheduleState
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import wait_until
from tests.faults.harness.load import overdue
from tests.faults.harness.workers import LEASE, WorkerProcess
from tests.integration.histories import ago, history, prune, schedule

pytestmark = [pytest.mark.django_db(transaction=True)]
#: Old rows of each schedule; two schedules fill a batch.
ROWS = 400
HOUR = timedelta(hours=1)


def unnoted(owners):
    """Return the schedules of which rows are gone that no horizon covers."""
    horizons = dict(ScheduleState.objects.values_list("pk", "pruned_until"))
    found = []
    for owner in owners:
        stand = set(Run.objects.filter(schedule_id=owner.pk).values_list("due_at", flat=True))
        gone = {ago(100 + number / 24) for number in range(ROWS)} - stand
        if gone and (horizons[owner.pk] is None or horizons[owner.pk] < max(gone)):
            found.append(owner.name)
    return found


@pytest.mark.parametrize("step", ["during_pruning", pytest.param("after_pruning", marks=pytest.mark.long)])
def test_f39_a_worker_killed_while_it_prunes_has_noted_what_is_gone_and_another_one_goes_on(
    step, server, trace, tmp_path, report
):
    owners = [schedule(f"old{number}", enabled=False) for number in range(6)]
    for owner in owners:
        history(owner, *(100 + number / 24 for number in range(ROWS)), 1)
    histories = overdue(5, trace)
    with server.broker() as broker:
        with WorkerProcess(folder=tmp_path, HISTORY_DAYS=30, failpoints=f"{step}=kill@2") as victim:
            victim.wait()
        old = Run.objects.filter(schedule_id__in=[owner.pk for owner in owners])
        assert 6 < old.count() < 6 * (ROWS + 1), "it was killed on the way"
        assert unnoted(owners) == []
        assert broker.read_upkeep_holder(), "the next one waits for the end of its lease"
        broker.forget_sweep()
        with WorkerProcess(folder=tmp_path, HISTORY_DAYS=30).ready():
            wait_until(lambda: old.count() == 6, 60, "that all is pruned")
            report(f"F39 kill -9 {step}", histories)
        assert unnoted(owners) == []


def test_f39_a_worker_that_stood_still_records_nothing_of_what_was_pruned(server, trace, tmp_path):
    options = {"LEASE_SECONDS": LEASE, "RUNNING_AFTER_SECONDS": 3600}
    stopped = WorkerProcess(folder=tmp_path, failpoints="before_ledger=stop@1", **options)
    overdue(5, trace, keep="none")
    with stopped:
        wait_until(stopped.stopped, 30, "the failpoint")
        held = {item.point for item in trace.executions()}
        assert held
        keys = [pk for pk, _ in held]
        with WorkerProcess(folder=tmp_path, **options).ready():
            runs = Run.objects.filter(schedule_id__in=keys).finished()
            wait_until(lambda: all(runs.filter(schedule_id=pk).count() > 2 for pk in keys), 30, "that another goes on")
        prune(utcnow() + HOUR)  # what is young would stay
        points = {(pk, due_ms / 1000) for pk, due_ms in held}

        def recorded():
            return {
                (pk, due_at.timestamp()) for pk, due_at in Run.objects.values_list("schedule_id", "due_at")
            } & points

        assert recorded() == set()
        Schedule.objects.update(enabled=False)
        stopped.resume()
        wait_until(lambda: "was decided by another worker" in stopped.log(), 30, "that it has tried to record")
        assert recorded() == set()
