"""Worker processes that have done enough or hold too much make room for fresh ones, with a supervisor and without."""

import io
import os
import re
import signal
import site
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from django.core.management import call_command

from django_delayq.models import Run, Schedule
from django_delayq.supervisor.signals import WorkerSignals
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import RECYCLE, WorkerOptions
from django_delayq.worker.recycling import _asked_of_ps, resident_mb
from tests.acceptance.processes import (
    alive,
    due_now,
    environment,
    every_second,
    no_point_is_missing,
    processes_of,
    stop,
)
from tests.acceptance.support import PATIENCE_SECONDS, ROOT, lines, output_of, wait_until, worker
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_process_is_recycled_after_its_runs_by_a_successor_that_works_already(broker):
    rows = [every_second(f"s{n}") for n in range(4)]
    with worker("--processes", "1", "--max-runs-per-process", "6") as parent:
        wait_until(lambda: "is replaced by" in output_of(parent), 40)
        wait_until(lambda: Run.objects.finished().count() >= 12)
        assert stop(parent) == 0
        text = output_of(parent)
    assert re.search(r"\[1\] Wants a successor: \d+ runs, of at most 6\.", text)
    events = re.findall(r"(Process 1 started|Worker \S+:|is replaced by|ended with exit status 0)", text)
    assert [event.split()[0] for event in events[:6]] == ["Process", "Worker", "Process", "Worker", "is", "ended"]
    for row in rows:
        no_point_is_missing(row)


def test_without_a_supervisor_a_process_that_has_made_its_runs_becomes_a_fresh_one(broker, tmp_path):
    path = tmp_path / "f"
    due_now(broker, "ghost", "haunt", path=str(path))
    with worker("--max-runs-per-process", "1") as process:
        wait_until(lambda: "This process starts afresh" in output_of(process))
        wait_until(lambda: len(re.findall(rf"Worker \S+:{process.pid}:", output_of(process))) == 2)
        assert lines(path)[0][1] == str(process.pid)
        count = len(lines(path))
        time.sleep(0.5)  # ten times as long as the thread ever sleeps
        assert len(lines(path)) == count
        second = due_now(broker, "second", "noop")
        wait_until(lambda: second.runs.filter(status="succeeded").exists())
        assert stop(process) == 0


def test_an_order_to_stop_is_not_lost_while_the_interpreter_starts_again(broker, fault, tmp_path):
    path, gate, seen = tmp_path / "f", tmp_path / "gate", tmp_path / "seen"
    due_now(broker, "once", "note", path=str(path), gate=str(gate))
    with worker("--max-runs-per-process", "1", environment=environment(fault)) as process:
        wait_until(lambda: lines(path))
        fault.write_text(f"import time; pathlib.Path({str(seen)!r}).touch(); time.sleep(1)")
        gate.touch()
        wait_until(seen.exists)
        assert stop(process) == 0
        text = output_of(process)
    assert text.count("Stopped after") == 2
    assert "Traceback" not in text


@pytest.mark.parametrize("moment", ["Stopping: 1 still running", "Stopped after"])
def test_an_order_to_stop_while_it_makes_room_is_the_first_one_and_ends_it(broker, tmp_path, moment):
    path, gate = tmp_path / "f", tmp_path / "gate"
    slow = due_now(broker, "slow", "note", path=str(path), gate=str(gate))
    with worker("--max-runs-per-process", "1") as process:
        wait_until(lambda: lines(path))
        quick = due_now(broker, "quick", "noop")
        wait_until(lambda: "Stopping: 1 still running" in output_of(process))
        if moment == "Stopped after":
            gate.touch()
            wait_until(lambda: moment in output_of(process))
        process.send_signal(signal.SIGTERM)
        gate.touch()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert [row.runs.get().status for row in (slow, quick)] == ["succeeded", "succeeded"]


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


def test_a_task_that_does_not_end_in_time_costs_its_process_and_nothing_else(broker, tmp_path):
    healthy = every_second()
    with worker("--processes", "1", TIMEOUT_GRACE_SECONDS=0.5) as parent:
        wait_until(lambda: healthy.runs.finished().exists())
        (first,) = processes_of(parent)
        row = Schedule.objects.create(
            name="hangs",
            task="tests.app.tasks.note",
            kind="cron",
            cron=DAILY_CRON,
            kwargs={"path": str(tmp_path / "f"), "seconds": 600},
            timeout=timedelta(seconds=0.5),
        )
        make_due(broker, row)
        wait_until(lambda: not alive({first}), 30)
        count = healthy.runs.finished().count()
        wait_until(lambda: healthy.runs.finished().count() >= count + 2)
        assert stop(parent) == 0
        text = output_of(parent)
    assert row.runs.get().status == "failed"
    assert re.search(rf"pid {first}, (is replaced by pid \d+ and drains|ended with exit status 75)", text)
    assert text.count("Process 1 started, pid") == 2
    assert text.rindex("Process 1 started, pid") < text.index("Stopped after")
    no_point_is_missing(healthy)


def test_a_process_that_holds_too_much_memory_is_recycled(broker):
    due_now(broker, "hoard", "hoard", megabytes=300)
    with worker("--max-memory-per-process", "250") as process:
        wait_until(lambda: "This process starts afresh" in output_of(process))
        wait_until(lambda: output_of(process).count("Worker ") == 2)
        assert stop(process) == 0
        assert re.search(r"3\d\d MiB of memory, of at most 250 MiB", output_of(process))
    assert Run.objects.get().status == "succeeded"


def test_the_memory_is_told_alike_by_the_kernel_and_by_ps():
    assert 10 < resident_mb() < 10_000
    assert _asked_of_ps() == pytest.approx(resident_mb(), rel=0.2)


def test_without_its_interpreter_a_process_that_has_made_its_runs_ends_with_an_error(broker, tmp_path, monkeypatch):
    link, path, gate = tmp_path / "python", tmp_path / "f", tmp_path / "gate"
    link.symlink_to(sys.executable)
    packages = os.pathsep.join([str(ROOT), *site.getsitepackages()])  # for the link is in no virtual environment
    monkeypatch.setattr(sys, "executable", str(link))
    due_now(broker, "last", "note", path=str(path), gate=str(gate))
    with worker("--max-runs-per-process", "1", environment={"PYTHONPATH": packages}) as process:
        wait_until(lambda: lines(path))
        link.unlink()
        gate.touch()
        assert process.wait(PATIENCE_SECONDS) == 1
        assert "cannot be started again" in output_of(process)
    assert Run.objects.get().status == "succeeded"


def test_the_reloader_starts_a_process_afresh_too(broker):
    due_now(broker, "once", "noop")
    with worker("--reload", "--max-runs-per-process", "1") as reloader:
        wait_until(lambda: output_of(reloader).count("Worker ") == 2, 30)
        reloader.send_signal(signal.SIGINT)
        reloader.wait(PATIENCE_SECONDS)


def test_a_caller_is_told_that_it_should_be_recycled(broker):
    due_now(broker, "once", "noop")
    with pytest.raises(SystemExit) as ended:
        call_command("delayq_worker", "--max-runs-per-process", "1", stdout=io.StringIO())
    assert ended.value.code == RECYCLE


AGAIN = """
import os, sys, time
from django_delayq.embedded import keep_through_exec, redis_url
url = redis_url()
if len(sys.argv) == 1:
    keep_through_exec()
    os.execv(sys.executable, [sys.executable, __file__, "again"])
import redis
time.sleep(1)  # its watchdog looks after a server without users more often than that
print(redis.from_url(url).ping())
"""


def test_an_embedded_server_outlives_the_change_to_a_fresh_interpreter(tmp_path):
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    env = {name: value for name, value in os.environ.items() if name != "DELAYQ_REDIS_URL"}
    ended = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
