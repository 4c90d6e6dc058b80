"""F14: the server forgets the scripts, and a rolling deploy brings workers whose scripts are another text."""

import time
from contextlib import ExitStack

import pytest

from django_delayq.models import Schedule
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.faults.harness.load import mixture
from tests.faults.harness.workers import WorkerProcess
from tests.faults.live import together
from tests.faults.patched.apps import patches

pytestmark = [pytest.mark.django_db(transaction=True)]
#: Words that a worker says only where something went wrong.
TROUBLE = ("ERROR", "WARNING", "Traceback", "NOSCRIPT")


def trouble(log):
    lines = (line for line in log.splitlines() if " retrying " not in line)  # a task that is made to fail
    return [line for line in lines if any(word in line for word in TROUBLE)]


def more_runs(trace, number):
    known = len(trace.executions())
    wait_until(lambda: len(trace.executions()) >= known + number, 30, "more runs")


def test_f14_script_flush_under_load_surfaces_no_error(server, trace, tmp_path, report, caplog):
    histories = mixture(10, trace)
    rows = list(Schedule.objects.all())
    flushes = 0
    one, two = (WorkerProcess(folder=tmp_path) for _ in range(2))
    with together(one, two), server.broker() as broker:
        end = time.monotonic() + PATIENCE_SECONDS
        while len(trace.executions()) < 30 and time.monotonic() < end:
            broker.client.script_flush()
            flushes += 1
            rows[flushes % len(rows)].save(update_fields=["description"])  # a web process has scripts too
            time.sleep(0.01)  # let some commands through between two flushes
        report("F14 SCRIPT FLUSH", histories, note=f"{flushes} flushes")
    assert trouble(one.log() + two.log()) == []
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_f14_two_releases_with_different_scripts_work_side_by_side(server, trace, tmp_path, report):
    """The texts do the same, their digests differ: each worker brings what the server does not know."""
    histories = mixture(10, trace)
    with server.broker() as broker, ExitStack() as stack:
        old, new = (
            stack.enter_context(
                WorkerProcess(folder=tmp_path, environment=patches(f"another_release={number}"))
            ).ready()
            for number in (1, 2)
        )
        more_runs(trace, 10)
        broker.client.script_flush()
        more_runs(trace, 10)
        old.term()
        assert old.wait() == 0
        more_runs(trace, 10)
        report("F14 two releases", histories)
    assert trouble(old.log() + new.log()) == []
