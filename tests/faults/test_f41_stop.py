"""F41: what runs is stopped by a person while Redis is flushed, and whoever executed it is killed."""

import pytest

from django_delayq.models import Run
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules, soon
from tests.faults.harness.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
THREADS = 25


def running():
    return Run.objects.filter(status="running", started_at__isnull=False)


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.everything)])
def test_f41_everything_that_is_stopped_is_recorded_as_cancelled_also_while_redis_is_flushed(
    server, trace, tmp_path, rounds
):
    """How long it takes is told, not asserted: up to 2 s where the machine has nothing else to do."""
    gate = tmp_path / "gate"
    gate.touch()
    took = []
    with WorkerProcess("--threads", str(THREADS), folder=tmp_path) as worker:
        for number in range(rounds):
            values = {"task": "tests.faults.tasks.held_at", "max_attempts": 3, "name": f"round {number} ", **soon(1)}
            schedules(THREADS, trace, kwargs={"path": str(trace.path), "gate": str(gate)}, **values)
            wait_until(lambda: running().count() == THREADS, 60, f"executions: {worker.log()[-500:]}")
            runs = list(running())
            for run in runs:
                assert run.cancel(by="F41")
            server.flush()
            wait_until(lambda: not running().exists(), 60, "their ends")
            for run in Run.objects.filter(pk__in=[run.pk for run in runs]):
                assert (run.status, run.reason, run.attempt) == ("failed", "cancelled by F41", 1)
                took.append((run.finished_at - run.stop_requested_at).total_seconds())
    assert len(took) == rounds * THREADS
    print(f"{len(took)} stopped, each within {max(took):.2f} s")


def test_f41_whoever_takes_over_from_a_killed_worker_follows_the_request_too(server, trace, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    values = {"task": "tests.faults.tasks.held_at", "kwargs": {"path": str(trace.path), "gate": str(gate)}, **soon(1)}
    schedules(1, trace, **values)
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=2) as worker:
        wait_until(lambda: running().exists(), 60, "an execution")
        worker.kill()
    Run.objects.get().cancel()
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=2):
        wait_until(lambda: Run.objects.get().status == "failed", 60, "the end")
    assert Run.objects.get().reason == "cancelled"
