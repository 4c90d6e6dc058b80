"""`delayq_worker --processes N`: workers that die, hang, end their process, cannot start."""

import json
import os
import re
import signal
import site
import sys
from datetime import timedelta

import pytest

from django_delayq.models import Run, Schedule
from django_delayq.worker.options import RECYCLE
from django_delayq.worker.processes.shutdown import VARIABLE, Parent
from tests.acceptance.processes import (
    alive,
    due_now,
    environment,
    every_second,
    no_point_is_missing,
    processes_of,
    settled,
    stop,
    wait_for_workers,
)
from tests.acceptance.support import PATIENCE_SECONDS, ROOT, lines, output_of, wait_until, worker
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.smoke
def test_each_process_is_a_worker_of_its_own_and_the_supervisor_is_none(broker):
    every_second()
    with worker("--processes", "3", "--threads", "2", "--json-logs") as parent:
        wait_for_workers(broker, 3)
        wait_until(lambda: Run.objects.finished().exists())
        children = processes_of(parent)
        names = broker.read_workers()
        assert {int(name.split(":")[1]) for name in names} == children
        assert len(children) == 3
        assert stop(parent) == 0
        events = [json.loads(line) for line in output_of(parent).splitlines()]
    assert not alive(children)
    assert {event["pid"] for event in events if event.get("event") == "process_started"} == children
    assert [event["exit_status"] for event in events if event.get("event") == "process_ended"] == [0, 0, 0]
    assert {event["process"] for event in events if event.get("event") == "succeeded"} <= {1, 2, 3}
    assert broker.read_workers() == {}


def test_a_killed_process_is_replaced_at_once_and_its_neighbour_notices_nothing(broker):
    row = every_second()
    with worker("--processes", "2", LEASE_SECONDS=2) as parent:
        wait_for_workers(broker, 2)
        victim, neighbour = sorted(processes_of(parent))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(processes_of(parent)) == 2 and not alive({victim}))
        wait_for_workers(broker, 3)  # the dead one is still listed
        wait_until(lambda: Run.objects.finished().count() >= 3)
        wait_until(lambda: not Run.objects.open().filter(worker__contains=f":{victim}:").exists())  # after its lease
        assert neighbour in processes_of(parent)
        assert stop(parent) == 0
        text = output_of(parent)
    assert f"pid {victim}, was ended by signal 9 (Killed)" in text
    assert re.search(r"another one starts in 0\.[12] s", text)
    assert Run.objects.finished().count() == row.runs.count()


def test_a_task_that_never_lets_go_of_the_interpreter_loses_its_process_after_two_leases(broker, tmp_path):
    path = tmp_path / "f"
    with worker("--processes", "2", LEASE_SECONDS=1) as parent:
        wait_for_workers(broker, 2)
        settled(broker)  # for a process that stops while it writes to SQLite keeps all others from writing
        due_now(broker, "hang", "hold_interpreter", path=str(path), seconds=600)
        wait_until(lambda: lines(path))
        hung = int(lines(path)[0][2])
        healthy = every_second()
        wait_until(lambda: not alive({hung}), 40)
        wait_until(lambda: len(processes_of(parent)) == 2)
        wait_until(lambda: healthy.runs.finished().count() >= 2)
        assert stop(parent) == 0
        assert f"pid {hung}, ended with exit status 1" in output_of(parent)
        assert re.search(r"line \d+ in hold_interpreter", output_of(parent)), "where it hung"
    assert Run.objects.get(schedule_name="hang").status == "succeeded"  # by another worker, after the lease


def test_who_dies_young_again_and_again_is_restarted_less_and_less_often(fault):
    fault.write_text("import signal\nif 'DELAYQ_SUPERVISOR' in os.environ: os.kill(os.getpid(), signal.SIGKILL)")
    with worker("--processes", "1", environment=environment(fault)) as parent:
        wait_until(lambda: output_of(parent).count("was ended by signal 9") >= 4)
        waits = re.findall(r"another one starts in ([\d.]+) s", output_of(parent))[:4]
        assert waits == ["0.1", "0.2", "0.4", "0.8"]
        fault.unlink()
        wait_until(lambda: "] Worker " in output_of(parent))
        assert stop(parent) == 0


def hanging(broker, tmp_path):
    """A task that is due now and does not react to its timeout."""
    row = Schedule.objects.create(
        name="hangs",
        task="tests.app.tasks.note",
        kind="cron",
        cron=DAILY_CRON,
        kwargs={"path": str(tmp_path / "f"), "seconds": 600},
        timeout=timedelta(seconds=0.5),
    )
    make_due(broker, row)
    return row


def test_a_task_that_does_not_end_in_time_costs_its_process_and_nothing_else(broker, tmp_path):
    healthy = every_second()
    with worker("--processes", "1", TIMEOUT_GRACE_SECONDS=0.5) as parent:
        wait_until(lambda: healthy.runs.finished().exists())
        (first,) = processes_of(parent)
        row = hanging(broker, tmp_path)
        wait_until(lambda: not alive({first}), 30)
        count = healthy.runs.finished().count()
        wait_until(lambda: healthy.runs.finished().count() >= count + 2)
        assert stop(parent) == 0
        text = output_of(parent)
    assert row.runs.get().status == "failed"
    assert f"pid {first}, ended with exit status {RECYCLE}" in text
    assert text.count("Process 1 started, pid") == 2
    no_point_is_missing(healthy)


def test_the_reloader_starts_a_process_in_which_a_task_hangs_again(broker, tmp_path):
    hanging(broker, tmp_path)
    with worker("--reload", TIMEOUT_GRACE_SECONDS=0.5) as reloader:
        wait_until(lambda: output_of(reloader).count("Worker ") == 2, 30)
        reloader.send_signal(signal.SIGINT)
        reloader.wait(PATIENCE_SECONDS)


def test_each_process_ends_after_its_runs_and_is_started_again(broker):
    row = every_second()
    with worker("--processes", "1", "--max-runs", "2") as parent:
        wait_until(lambda: row.runs.finished().count() >= 5)
        assert stop(parent) == 0
        assert output_of(parent).count("ended with exit status 0 after") >= 2
    no_point_is_missing(row)


def test_in_burst_mode_nobody_is_replaced_and_all_end_when_nothing_is_due(broker, tmp_path):
    path = tmp_path / "f"
    for n in range(4):
        due_now(broker, f"n{n}", "note", path=str(path), seconds=0.5)
    with worker("--processes", "2", "--threads", "1", "--burst") as parent:
        assert parent.wait(PATIENCE_SECONDS) == 0
        assert output_of(parent).count(" started, pid ") == 2
    assert Run.objects.filter(status="succeeded").count() == 4
    due_now(broker, "poison", "end_process", path=str(path))
    with worker("--processes", "1", "--burst") as parent:
        assert parent.wait(PATIENCE_SECONDS) == 1  # what was lost with it comes due after its lease
        assert output_of(parent).count(" started, pid ") == 1


def test_an_interpreter_that_is_being_replaced_is_waited_for(broker, tmp_path, monkeypatch):
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    packages = os.pathsep.join([str(ROOT), *site.getsitepackages()])  # for the link is in no virtual environment
    monkeypatch.setattr(sys, "executable", str(link))
    with worker("--processes", "1", environment={"PYTHONPATH": packages}) as parent:
        wait_for_workers(broker, 1)
        link.rename(tmp_path / "away")
        (child,) = processes_of(parent)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: output_of(parent).count("Process 1 cannot be started: ") >= 2)
        (tmp_path / "away").rename(link)
        wait_for_workers(broker, 2)  # the dead one is still listed
        assert stop(parent) == 0


def test_a_task_that_starts_processes_does_not_pass_its_supervisor_on():
    for left_over in ({}, {VARIABLE: ""}, {VARIABLE: "garbage"}, {VARIABLE: "1"}):
        assert Parent.find_in(left_over) is None
    found = {VARIABLE: "4711 2", "OTHER": "x"}
    assert Parent.find_in(found) == (4711, 2)
    assert found == {"OTHER": "x"}
