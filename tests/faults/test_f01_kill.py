"""F1: kill -9 at every step of a run. The points of the killed worker start elsewhere once its lease has ended."""

import time

import pytest
from django.db.models import Count

from django_delayq.models import Output, Run
from django_delayq.recurrence import to_ms
from tests.acceptance.support import wait_until
from tests.faults.harness.load import overdue, schedules
from tests.faults.harness.verdict import leases_end_within
from tests.faults.harness.workers import LEASE, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("shards")]
#: At which passing it is killed. The first claims, one per place, find what is due.
STEPS = {
    "before_claim": 9,
    "after_claim": 8,
    "after_judge": 3,
    "before_ledger": 1,
    "after_ledger": 1,
    "after_settle": 1,
}


def run_again(trace, victim):
    """Return the points that the victim had recorded and that were run again after its death."""
    recorded = {(row.schedule_id, to_ms(row.due_at)) for row in Run.objects.filter(worker=victim.name)}
    return [item for item in trace.executions() if item.pid != victim.pid and item.point in recorded]


def recovered(trace, histories, died, pid):
    """Wait until every schedule has started in another process; return the longest time that one of them took."""
    wait_until(lambda: len(trace.first_after(died, pid)) == len(histories), 30, "all schedules to go on")
    return max(trace.first_after(died, pid).values())


@pytest.mark.parametrize(
    "step", [pytest.param("after_claim", marks=pytest.mark.smoke), *(step for step in STEPS if step != "after_claim")]
)
def test_f01_a_worker_killed_at_any_step_of_a_round_leaves_no_gap(step, server, trace, tmp_path, report):
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE).ready() as survivor, server.broker() as broker:
        survivor.stop()
        histories = overdue(20, trace)
        with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE, failpoints=f"{step}=kill@{STEPS[step]}") as victim:
            victim.wait()
        died = time.time()
        held = leases_end_within(LEASE, broker, histories)
        assert held or step == "after_settle", "it was killed with nothing in its hands"
        survivor.resume()
        recovery = recovered(trace, histories, died, victim.pid)
        report(f"F1 kill -9 {step}", histories, recovery=recovery, limit=LEASE + 1)
    assert run_again(trace, victim) == []


def test_f01_what_was_said_is_kept_once_whether_its_worker_died_before_or_after_the_ledger(server, trace, tmp_path):
    gate = {
        "task": "tests.faults.tasks.gated",
        "kwargs": {"path": str(trace.path), "gate": str(tmp_path), "seconds": 0},
    }
    histories = overdue(5, trace, **gate)
    for step in ("before_ledger", "after_ledger"):
        with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE, failpoints=f"{step}=kill@1") as victim:
            victim.wait()
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE).ready() as survivor:
        done = Run.objects.filter(status="succeeded")
        wait_until(lambda: done.filter(worker=survivor.name).count() >= len(histories), 30, "what was left behind")
    assert done.exclude(worker=survivor.name).exists(), "recorded by whom was killed after the ledger"
    assert list(done.annotate(said=Count("outputs")).exclude(said=1)) == []
    assert Output.objects.count() == done.count()


def test_f01_a_worker_killed_before_the_reply_to_its_claim_leaves_no_gap(server, proxy, trace, tmp_path, report):
    histories = schedules(20, trace)
    survivor = WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE)
    victim = WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE, redis_url=proxy.url)
    with survivor, victim, server.broker() as broker:
        proxy.lose("claim", first=3, silent=True)
        wait_until(lambda: proxy.lost["claim"], 30, "a claim whose reply is held back")
        died = victim.kill()
        leases_end_within(LEASE, broker, histories)
        recovery = recovered(trace, histories, died, victim.pid)
        report("F1 kill -9 before reply", histories, recovery=recovery, limit=LEASE + 1)


def test_f01_a_worker_killed_while_its_tasks_run_leaves_no_gap(server, trace, tmp_path, report):
    histories = schedules(20, trace, seconds=0.4)
    victim, survivor = (WorkerProcess(folder=tmp_path, cold=True, LEASE_SECONDS=LEASE) for _ in range(2))
    with victim, survivor, server.broker() as broker:
        survivor.ready()
        wait_until(lambda: len(trace.running_in(victim.pid)) >= 2, 30, "tasks that run in the victim")
        died = victim.kill()
        leases_end_within(LEASE, broker, histories)
        wait_until(lambda: trace.taken_over(victim.pid, died) != float("inf"), 30, "the killed points to start again")
        recovery = trace.taken_over(victim.pid, died)
        assert recovery is not None
        report("F1 kill -9 mid-task", histories, recovery=recovery, limit=LEASE + 1)
