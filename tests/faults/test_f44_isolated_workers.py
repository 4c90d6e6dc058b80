"""F44: the worker of isolated tasks drains, stands still or is killed; and what waits for its next one."""

import os
import signal

import pytest

from django_delayq.models import Run, Schedule
from tests.acceptance.processes import alive
from tests.acceptance.support import lines, wait_until
from tests.faults.harness.isolated import gone, interpreters, outcome, pids_in, point
from tests.faults.harness.load import soon
from tests.faults.harness.workers import LEASE, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("isolated")]


# -- the worker's own end


def test_f44_a_killed_worker_takes_its_processes_along_and_another_takes_over(tmp_path):
    path = tmp_path / "pids"
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=2) as first:
        row = point("hang", "in C", str(path))
        pids = pids_in(path)
        wait_until(lambda: len(interpreters(first)) == 2, what="the next one")
        below = interpreters(first)
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


# -- what waits


def test_f44_one_waits_where_isolated_tasks_exist(worker):
    wait_until(lambda: len(interpreters(worker)) == 1, what="the first one")
    (waiting,) = interpreters(worker)
    os.kill(waiting, signal.SIGKILL)
    gone([waiting])
    assert outcome(point("leak")).status == "succeeded"
    wait_until(lambda: len(interpreters(worker)) == 1, what="the next one, and no other")


def test_f44_none_waits_where_there_are_no_such_tasks(tmp_path):
    Schedule.objects.create(name="n", task="tests.app.tasks.noop", **soon(0.2))
    with WorkerProcess(folder=tmp_path, TASK_MODULES=["tasks"]) as worker:
        wait_until(lambda: Run.objects.filter(status="succeeded").exists(), what="an outcome")
        assert interpreters(worker) == []
