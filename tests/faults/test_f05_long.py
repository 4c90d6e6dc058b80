"""F5: a task of several leases is executed once; one that ignores its timeout costs its process, nobody else."""

from datetime import timedelta

import pytest

from django_delayq.models import Run
from django_delayq.worker.options import RECYCLE
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules, soon
from tests.faults.harness.verdict import Stall
from tests.faults.harness.workers import ENDLESS, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]
#: Renewed in time by a worker that runs.
LEASE = 2


def test_f05_a_task_of_four_leases_is_executed_once(server, trace, tmp_path, report):
    histories = schedules(3, trace, seconds=4 * LEASE, **soon(0.5))
    with (
        WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE),
        WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE),
        Stall() as stall,
    ):
        wait_until(lambda: sum(item.ended is not None for item in trace.executions()) >= len(histories), 90, "ends")
        verdict = report("F5 four leases", histories)
    assert verdict.executions_max == 1 or stall.longer_than(LEASE / 3)


def test_f05_a_task_that_hangs_beyond_its_timeout_is_given_up_and_its_process_ends(server, trace, tmp_path, report):
    gate = tmp_path / "gate"
    gate.touch()
    kwargs = {"path": str(trace.path), "gate": str(gate), "seconds": 600}
    histories = schedules(10, trace, seconds=0.3)
    hanging = {"task": "tests.faults.tasks.gated", "kwargs": kwargs, "timeout": timedelta(seconds=1)}
    histories += schedules(1, trace, name="hangs", **hanging)
    rows = Run.objects.filter(schedule_id=histories[-1].pk)
    worker = WorkerProcess(folder=tmp_path, LEASE_SECONDS=ENDLESS, TIMEOUT_GRACE_SECONDS=1, DRAIN_SECONDS=5)
    with worker:
        wait_until(lambda: rows.filter(status="failed", reason="timeout").exists(), 30, "the hard timeout")
        gate.unlink()
        assert worker.process.wait(30) == RECYCLE
        with WorkerProcess(folder=tmp_path, LEASE_SECONDS=ENDLESS):
            wait_until(lambda: rows.filter(status="succeeded").exists(), 30, "the schedule to go on in another process")
            verdict = report("F5 hard timeout", histories)
        assert "held at the gate" in worker.log()
    cut_off = rows.get(status="failed", reason="timeout")
    assert cut_off.outputs.get().text == "held at the gate\n"
    assert verdict.executions_max == 1
    assert set(Run.objects.exclude(schedule_id=histories[-1].pk).values_list("status", flat=True)) <= {
        "succeeded",
        "skipped",
    }
