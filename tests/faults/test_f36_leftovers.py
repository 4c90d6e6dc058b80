"""F36: what a task does to its process, or leaves in it, keeps the worker from nothing: neither from its work, nor from
its end. Nor does a log that nobody reads.
"""

import signal
from contextlib import contextmanager

import pytest

from django_delayq.models import Schedule
from tests.acceptance.processes import alive, due_now, every_second
from tests.acceptance.support import PATIENCE_SECONDS, lines, output_of, start_worker, wait_until, worker
from tests.faults.harness.load import soon
from tests.faults.harness.streams import unread
from tests.faults.harness.table import Row
from tests.faults.harness.workers import ENDLESS, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def do(broker):
    """Have a task do something now; return its schedule's run once that has succeeded."""

    def done(what):
        row = Schedule.objects.create(name=what, task="tests.faults.tasks.do", kwargs={"what": what}, **soon(0.5))
        wait_until(lambda: row.runs.filter(status="succeeded").exists(), what=what)
        return row.runs.get()

    return done


@pytest.fixture(autouse=True)
def row(request, note_row):
    yield
    note_row(Row(f"F36 {request.node.name[9:]}", 1, 0, 0, None, None, None, None, None))


# -- children


@pytest.mark.parametrize(
    ("what", "result"),
    [
        pytest.param("pool", [1, 2], marks=pytest.mark.smoke),
        ("children told to end", [-signal.SIGTERM] * 50),
        ("child that exits", 7),
    ],
)
def test_f36_children_of_a_task_obey_as_those_of_any_program(what, result, do):
    with worker():
        assert do(what).result == result


def test_f36_a_child_that_comes_back_from_the_task_ends_and_has_no_outcome(do):
    with worker() as process:
        pid = do("child that comes back").result
        assert pid != "the child"
        wait_until(lambda: not alive({pid}))
        assert process.poll() is None


# -- the end


@pytest.mark.parametrize(("what", "processes"), [("thread", []), ("child", ["--processes", "1"])])
def test_f36_what_a_task_leaves_running_ends_with_the_grace_of_its_worker(what, processes, do):
    with worker(*processes, DRAIN_SECONDS=1) as process:
        left = do(what).result
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert "Traceback" not in output_of(process)
    wait_until(lambda: not alive({left}))  # it was told to end, and nobody waited for it


def test_f36_a_second_signal_ends_a_worker_in_which_a_thread_was_left(do):
    with worker(DRAIN_SECONDS=ENDLESS) as process:
        do("thread")
        process.terminate()
        wait_until(lambda: "Stopped after" in output_of(process))
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("what", ["folder", "environment", "output"])
def test_f36_a_worker_goes_on_and_ends_whatever_its_tasks_did_to_it(what, do):
    with worker(cold=True) as process:
        do(what)
        do("where")
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


@contextmanager
def hung_up(disposition):
    """Start processes that have this disposition of SIGHUP, whatever the tests were started with."""
    before = signal.signal(signal.SIGHUP, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_f36_a_terminal_that_closes_drains_a_worker_however_often_it_says_so(broker, tmp_path):
    path, gate = tmp_path / "f", tmp_path / "gate"
    slow = due_now(broker, "slow", "note", path=str(path), gate=str(gate))
    with hung_up(signal.SIG_DFL), worker(cold=True) as process:
        wait_until(lambda: lines(path))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "Stopping: 1 still running" in output_of(process) or process.poll() is not None)
        process.send_signal(signal.SIGHUP)
        gate.touch()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert slow.runs.get().status == "succeeded"


def test_f36_a_worker_that_was_told_to_outlive_its_terminal_does(broker):
    row = every_second()
    with hung_up(signal.SIG_IGN), worker(cold=True) as process:  # as nohup does
        wait_until(lambda: row.runs.finished().exists())
        process.send_signal(signal.SIGHUP)
        count = row.runs.finished().count()
        wait_until(lambda: row.runs.finished().count() >= count + 2 or process.poll() is not None)
        assert process.poll() is None


# -- the log


def goes_on(row, process):
    """Wait until several points more have an outcome."""
    count = row.runs.filter(status="succeeded").count()
    wait_until(lambda: row.runs.filter(status="succeeded").count() >= count + 3 or process.poll() is not None)
    assert process.poll() is None


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]])
def test_f36_a_worker_works_and_ends_though_nobody_reads_what_it_prints(processes, broker):
    row = every_second()
    with unread() as output:
        process = start_worker(*processes, output=output)
        try:
            goes_on(row, process)
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("what", ["handler that raises", "handler that blocks"])
def test_f36_a_log_handler_holds_nothing_up(what, do, tmp_path):
    row = every_second()
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=1) as process:
        process.ready()
        do(what)
        goes_on(row, process.process)
        process.term()
        assert process.wait() == 0
    assert not row.runs.filter(reclaims__gt=0).exists()
    assert (what == "handler that raises") == ("RuntimeError" in process.log())
