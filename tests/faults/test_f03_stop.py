"""F3: a worker that is stopped for longer than its lease wakes up as a stranger: it starts, records and moves nothing
that somebody else has taken over.
"""

import time
from contextlib import ExitStack

import pytest

from tests.acceptance.support import wait_until
from tests.faults.harness.load import overdue, schedules
from tests.faults.harness.verdict import leases_end_within
from tests.faults.harness.workers import LEASE, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]
sharded = pytest.mark.usefixtures("shards")
#: At which passing it is stopped. The first claims, one per place, find what is due.
STEPS = {"after_claim": 8, "after_judge": 3, "before_ledger": 1}


def begun(trace, worker, moment):
    """Return what began in a worker after a moment."""
    return [item for item in trace.executions() if item.pid == worker.pid and item.began >= moment]


@sharded
@pytest.mark.parametrize("step", [pytest.param("after_claim", marks=pytest.mark.smoke), "after_judge", "before_ledger"])
def test_f03_a_worker_stopped_between_two_steps_changes_nothing_when_it_wakes(step, server, trace, tmp_path, report):
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE).ready() as other, ExitStack() as stack:
        broker = stack.enter_context(server.broker())
        other.stop()
        histories = overdue(20, trace)
        stopped = WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE, failpoints=f"{step}=stop@{STEPS[step]}")
        stack.enter_context(stopped)
        wait_until(stopped.stopped, 30, "the failpoint")
        moment = time.time()
        assert leases_end_within(LEASE, broker, histories), "it was stopped with nothing in its hands"
        other.resume()
        wait_until(lambda: len(trace.first_after(moment, stopped.pid)) == len(histories), 30, "the others to go on")
        recovery = max(trace.first_after(moment, stopped.pid).values())
        resumed = stopped.resume()
        wait_until(lambda: begun(trace, stopped, resumed), 30, "new runs in the one that was stopped")
        report(f"F3 stopped {step}", histories, recovery=recovery, limit=LEASE + 1)
        assert stopped.alive
    assert [item for item in begun(trace, stopped, resumed) if item.due_ms < moment * 1000] == []


def test_f03_a_worker_stopped_between_ledger_and_settle_does_not_settle_what_another_one_holds(
    server, trace, tmp_path, report
):
    gate = tmp_path / "gate"
    kwargs = {"path": str(trace.path), "gate": str(gate), "seconds": 3}
    histories = schedules(4, trace, task="tests.faults.tasks.gated", kwargs=kwargs, overlap="queue_all", missed="all")
    stopped = WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=LEASE, failpoints="after_ledger=stop@2")
    with stopped:
        wait_until(stopped.stopped, 30, "the failpoint")
        gate.touch()
        with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=LEASE) as other:
            wait_until(lambda: len(trace.running_in(other.pid)) == len(histories), 30, "long runs in the other one")
            held = trace.running_in(other.pid)
            resumed = stopped.resume()
            wait_until(lambda: trace.over(held), 30, "their ends")
            gate.unlink()
            report("F3 stopped after_ledger", histories)
            assert "Lost the lease" not in other.log()
    points = {item.point for item in held}
    assert [item for item in trace.executions() if item.point in points and item.began > resumed] == []


@sharded
def test_f03_a_task_stopped_for_longer_than_its_lease_is_recorded_once(server, trace, tmp_path, report):
    histories = schedules(20, trace, seconds=0.4)
    stopped, other = (WorkerProcess(folder=tmp_path, cold=True, LEASE_SECONDS=LEASE) for _ in range(2))
    with stopped, other, server.broker() as broker:
        other.ready()
        wait_until(lambda: len(trace.running_in(stopped.pid)) >= 2, 30, "tasks that run")
        moment = stopped.stop()
        leases_end_within(LEASE, broker, histories)
        held = trace.running_in(stopped.pid)
        wait_until(lambda: len(trace.first_after(moment, stopped.pid)) == len(histories), 30, "the others to go on")
        recovery = max(trace.first_after(moment, stopped.pid).values())
        stopped.resume()
        ended = {item.point for item in held}
        wait_until(lambda: not ended & {item.point for item in trace.running_in(stopped.pid)}, 30, "the stale runs")
        report("F3 stopped mid-task", histories, recovery=recovery, limit=LEASE + 1)
    assert held
