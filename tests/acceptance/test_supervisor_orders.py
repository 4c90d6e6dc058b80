"""What a supervisor of workers is told: to stop, to stop at once; and its own death."""

import os
import signal
from collections import Counter

import pytest

from django_delayq.models import Run
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from django_delayq.worker.processes.shutdown import VARIABLE, WorkerSignals
from tests.acceptance.processes import alive, due_now, environment, processes_of, stop, wait_for_workers
from tests.acceptance.support import PATIENCE_SECONDS, lines, output_of, wait_until, worker

pytestmark = pytest.mark.django_db(transaction=True)


def test_ctrl_c_that_reaches_everybody_is_one_order_and_running_tasks_finish(broker, tmp_path):
    path, gate = tmp_path / "f", tmp_path / "gate"
    for n in range(3):
        due_now(broker, f"slow{n}", "note", path=str(path), text=f"slow{n}", gate=str(gate))
    with worker("--processes", "2") as parent:
        wait_until(lambda: len(lines(path)) == 3)
        wait_until(lambda: len(processes_of(parent)) == 2)
        for pid in processes_of(parent):
            os.kill(pid, signal.SIGINT)
        parent.send_signal(signal.SIGINT)
        wait_until(lambda: "Stopping 2 processes" in output_of(parent))
        gate.touch()
        assert parent.wait(PATIENCE_SECONDS) == 0
    assert Counter(words[0] for words in lines(path)) == Counter(start=3, end=3)
    assert Run.objects.filter(status="succeeded").count() == 3


def test_a_second_signal_ends_the_children_too(broker, tmp_path):
    path = tmp_path / "f"
    due_now(broker, "slow", "note", path=str(path), seconds=600)
    with worker("--processes", "2") as parent:
        wait_until(lambda: lines(path))
        wait_until(lambda: len(processes_of(parent)) == 2)
        children = processes_of(parent)
        parent.send_signal(signal.SIGTERM)
        wait_until(lambda: "Stopping 2 processes" in output_of(parent))  # two signals of one kind at once are one
        assert stop(parent) == 1  # the task would need 600 s
        wait_until(lambda: not alive(children))


def test_who_does_not_drain_in_time_is_killed_and_told(broker, tmp_path):
    path = tmp_path / "f"
    due_now(broker, "slow", "note", path=str(path), seconds=600)
    with worker("--processes", "2", DRAIN_SECONDS=0.2) as parent:
        wait_until(lambda: lines(path))
        wait_for_workers(broker, 2)
        (idle,) = processes_of(parent) - {int(lines(path)[0][2])}
        os.kill(idle, signal.SIGSTOP)  # it cannot even obey
        assert stop(parent) == 1
        text = output_of(parent)
    assert "Stopped with 1 unfinished" in text
    assert f"pid {idle}, has not drained in time: killing it" in text
    assert not alive({idle})


def test_a_terminal_that_closes_is_one_order_to_stop(broker, tmp_path):
    path, gate = tmp_path / "f", tmp_path / "gate"
    due_now(broker, "slow", "note", path=str(path), gate=str(gate))
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started with nohup
    try:
        with worker("--processes", "2") as parent:
            wait_until(lambda: lines(path))
            wait_until(lambda: len(processes_of(parent)) == 2)
            for pid in (parent.pid, *processes_of(parent)):  # the terminal tells all of them
                os.kill(pid, signal.SIGHUP)
            wait_until(lambda: "Stopping: 1 still running" in output_of(parent))
            parent.send_signal(signal.SIGHUP)
            gate.touch()
            assert parent.wait(PATIENCE_SECONDS) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert Run.objects.get().status == "succeeded"


def test_children_whose_supervisor_is_killed_drain_and_end(broker, tmp_path):
    path, gate, ghost = tmp_path / "f", tmp_path / "gate", tmp_path / "ghost"
    due_now(broker, "ghost", "haunt", path=str(ghost))  # a thread that keeps its interpreter from ending
    due_now(broker, "slow", "note", path=str(path), gate=str(gate))
    with worker("--processes", "2", DRAIN_SECONDS=10) as parent:
        wait_until(lambda: lines(path) and lines(ghost))
        wait_until(lambda: len(processes_of(parent)) == 2)
        children = processes_of(parent)
        parent.kill()
        parent.wait()
        wait_until(lambda: "Stopping: 1 still running" in output_of(parent))
        gate.touch()
        wait_until(lambda: not alive(children))
        assert output_of(parent).count("The supervisor is gone") == 2
    assert Run.objects.get(schedule_name="slow").status == "succeeded"
    assert broker.read_workers() == {}


def test_a_child_is_told_to_stop_while_its_interpreter_starts(fault, tmp_path):
    seen = tmp_path / "seen"
    fault.write_text(f"import time\nif {VARIABLE!r} in os.environ: pathlib.Path({str(seen)!r}).touch(); time.sleep(1)")
    with worker("--processes", "1", environment=environment(fault)) as parent:
        wait_until(seen.exists)
        for pid in processes_of(parent):
            os.kill(pid, signal.SIGINT)
        assert stop(parent, signal.SIGINT) == 0
        assert "Traceback" not in output_of(parent)


def test_a_worker_that_drains_already_takes_the_first_order_for_the_first():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        for supervised in (False, True):
            ending = Worker(WorkerOptions(queues=("default",)))
            ending.stopping = True
            WorkerSignals(ending, supervised=supervised).obey()
            signal.raise_signal(signal.SIGTERM)
            assert not ending.aborted
            signal.raise_signal(signal.SIGTERM)
            assert ending.aborted is not supervised
            ending.broker.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
