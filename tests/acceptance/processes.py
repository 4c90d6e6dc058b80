"""Several worker processes under one supervisor: what is due for them, who lives, who is told to stop."""

import os
import signal
import subprocess
import time
from datetime import timedelta
from itertools import pairwise

from django_delayq.models import Schedule
from django_delayq.recurrence import from_ms
from tests.acceptance.support import PATIENCE_SECONDS, ROOT, wait_until
from tests.support import DAILY_CRON, make_due

QUIET_SECONDS = 0.3
#: Runs at the start of every interpreter that finds it: does what the file FAULT says, the path of a test's choice.
SITE = """
import os, pathlib
fault = pathlib.Path(os.environ["FAULT"])
if fault.exists():
    exec(fault.read_text())
"""


def environment(fault):
    """Return what has the workers of a test run the file `fault` first."""
    return {"FAULT": str(fault), "PYTHONPATH": os.pathsep.join([str(fault.parent), str(ROOT)])}


def every_second(name="beat", task="noop", **values):
    """A schedule with a point each second, of which none is skipped, however slowly the processes start."""
    values = {"kind": "every", "every": timedelta(seconds=1), "missed": "all", "overlap": "queue_all", **values}
    return Schedule.objects.create(name=name, task=f"tests.app.tasks.{task}", **values)


def due_now(broker, name, task, **kwargs):
    """A schedule with one point that is due now, and no other for half an hour."""
    row = Schedule.objects.create(
        name=name, task=f"tests.app.tasks.{task}", kind="cron", cron=DAILY_CRON, kwargs=kwargs
    )
    make_due(broker, row)
    return row


def processes_of(parent):
    """Return the ids of the living children."""
    return {pid for pid, of in living() if of == parent.pid}


def living():
    """Return (id, id of the parent) of each process that has not ended."""
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [(int(pid), int(parent)) for pid, parent, stat in rows if not stat.startswith("Z")]


def alive(pids):
    """Return those that have not ended."""
    return set(pids) & {pid for pid, _ in living()}


def first_look(broker, pid):
    """Return when a worker began to look for work: its first regular look is then, the next one IDLE_CAP_SECONDS later.

    To be asked within its first half minute, for what is told is its newest heartbeat.
    """
    (beat,) = [beat for name, (beat, _) in broker.read_workers().items() if name.split(":")[1] == str(pid)]
    return from_ms(beat)


def settled(broker):
    """Wait until nobody has asked Redis for anything for a while: the workers have done what they do at their start."""
    server, asked = broker.client, [-1]

    def quiet():
        own = ("info", "config", "ping", "client", "hello", "select")
        stats = server.info("commandstats").items()
        asked.append(sum(value["calls"] for name, value in stats if not name.removeprefix("cmdstat_").startswith(own)))
        time.sleep(QUIET_SECONDS)  # what is waited for is that nothing happens
        return asked[-1] == asked[-2]

    wait_until(quiet, what="silence")


def wait_for_workers(broker, count):
    """Wait until so many workers say in Redis that they live."""
    wait_until(lambda: len(broker.read_workers()) >= count, 30, f"{count} workers")


def stop(process, number=signal.SIGTERM, within=PATIENCE_SECONDS):
    """Tell a process to stop, and return its exit status."""
    process.send_signal(number)
    return process.wait(within)


def no_point_is_missing(row, *, reclaims=0):
    """Every second between the first and the last decided point has exactly one outcome, and that a good one."""
    runs = list(row.runs.order_by("due_at"))
    assert {(run.status, run.points) for run in runs} == {("succeeded", 1)}
    assert max(run.reclaims for run in runs) <= reclaims
    assert {later.due_at - run.due_at for run, later in pairwise(runs)} == {timedelta(seconds=1)}
