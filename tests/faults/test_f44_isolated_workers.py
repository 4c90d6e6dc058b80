"""F44: the worker of isolated tasks drains, stands still or is killed; it keeps no process."""

import pytest

from django_delayq.models import Run
from tests.acceptance.processes import alive
from tests.acceptance.support import lines, wait_until
from tests.faults.harness.isolated import gone, interpreters, outcome, pids_in, point
from tests.faults.harness.workers import LEASE, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("isolated")]


# -- the worker's own end


def test_f44_a_killed_worker_takes_its_processes_along_and_another_takes_over(tmp_path):
    path = tmp_path / "pids"
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=2) as first:
        row = point("hang", "in C", str(path))
        pids = pids_in(path)
        below = interpreters(first)
        assert len(below) == 1
        first.kill()
        gone([*pids, *below])
    path.unlink()
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=2) as second:
        wait_until(path.exists, what="a take-over")
        assert alive(pids_in(path))
        wait_until(lambda: Run.objects.filter(status="running", reclaims=1).exists(), what="its row")
        Run.objects.get(schedule_id=row.pk).cancel()
        assert outcome(row).reason == "cancelled"
        assert second.alive


def test_f44_one_whose_worker_stood_still_for_too_long_learns_that_its_lease_is_lost(tmp_path):
    path, gate = tmp_path / "lines", tmp_path / "gate"
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE) as first:
        row = point("last", str(path), str(gate))
        wait_until(lambda: len(lines(path)) == 1, what="an execution")
        first.stop()
        with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE):
            wait_until(lambda: len(lines(path)) == 2, what="a take-over")
            first.resume()
            wait_until(lambda: ["lost", lines(path)[0][1]] in lines(path), what="the first one to hear of it")
            gate.touch()
            assert outcome(row).result == "ended"


def test_f44_a_worker_that_drains_waits_for_it_and_leaves_none_behind(worker, tmp_path):
    path = tmp_path / "pids"
    row = point("wait", 2, str(path))
    pids = pids_in(path)
    below = interpreters(worker)
    worker.term()
    assert worker.wait() == 0
    assert outcome(row).result == [pids[0], 2]
    gone([*pids, *below])


def test_f44_what_a_drain_does_not_wait_for_ends_with_the_worker(tmp_path):
    path = tmp_path / "pids"
    with WorkerProcess(folder=tmp_path, DRAIN_SECONDS=0.5) as worker:
        point("hang", "in C", str(path))
        pids = pids_in(path)
        worker.term()
        assert worker.wait() != 0
        gone(pids)


def test_f44_no_process_waits_before_there_is_something_to_execute(worker):
    assert outcome(point("leak")).status == "succeeded"
    assert interpreters(worker) == [], "before, between and after"
