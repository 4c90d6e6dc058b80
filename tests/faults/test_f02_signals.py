"""F2: SIGTERM and SIGINT drain, a second one ends. What had not started is handed over and waits for no lease."""

import signal
import time

import pytest
from django.db.models import Max

from django_delayq.index import Shard
from django_delayq.models import Run
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import wait_until
from tests.faults.harness.load import SECOND, schedules
from tests.faults.harness.verdict import leases_end_within
from tests.faults.harness.workers import ENDLESS, LEASE, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]
COUNT, THREADS = 20, 2
#: Nothing waits for the end of such a task.
LONG = 600


def spread(trace, gate, overlap):
    """Make schedules that come due one after the other all the time: their worker claims ahead of its free slots."""
    kwargs = {"path": str(trace.path), "gate": str(gate)}
    values = {"task": "tests.faults.tasks.held_at", "kwargs": kwargs, "overlap": overlap}
    made = [utcnow() - SECOND * number / COUNT for number in range(COUNT)]
    return [schedules(1, trace, first=n, created_at=made[n], **values)[0] for n in range(COUNT)]


def fill(first, gate, trace, broker):
    """Hold the tasks up all at once; return when each thread is held and the worker has claimed more."""

    def is_full():
        gate.touch()
        end = time.monotonic() + 1  # what waits for so long is handed back: try again
        while time.monotonic() < end:
            if (
                len(trace.running_in(first.pid)) == THREADS
                and broker.read_stats([Shard("default", 0)])[0].leased >= THREADS + 2
            ):
                return True
        gate.unlink()
        wait_until(lambda: not trace.running_in(first.pid))
        return False

    wait_until(is_full, what="that it holds more than it runs")


@pytest.mark.parametrize(
    ("number", "overlap"), [(signal.SIGTERM, "skip"), (signal.SIGTERM, "allow"), (signal.SIGINT, "skip")]
)
def test_f02_a_signal_hands_over_at_once_what_has_not_started(number, overlap, server, trace, tmp_path, report):
    gate = tmp_path / "gate"
    how = {"folder": tmp_path, "cold": number is signal.SIGINT, "LEASE_SECONDS": ENDLESS}
    other = WorkerProcess("--threads", "40", **how)
    first = WorkerProcess("--threads", str(THREADS), **how)
    with other, first, server.broker() as broker:
        other.ready().stop()
        histories = spread(trace, gate, overlap)
        wait_until(lambda: len(trace.executions()) >= 2 * COUNT, 30, "short runs, so that it claims ahead")
        fill(first, gate, trace, broker)
        other.resume()
        told = first.send(number)
        wait_until(lambda: "Stopping: " in first.log(), what="that it has handed over what it had not begun")
        gate.unlink()
        wait_until(lambda: len(trace.first_after(told, first.pid)) == COUNT, 20, "all schedules to go on")
        assert first.wait() == 0
        recovery = handed_over(trace, first, other, told)
        verdict = report(f"F2 {number.name} {overlap}", histories, recovery=recovery, limit=1)
    assert verdict.executions_max == 1
    assert Run.objects.aggregate(Max("reclaims"))["reclaims__max"] == 0


def handed_over(trace, first, other, told):
    """Return how long after the signal the last of the points began that had come due by then and had not begun."""
    mine = {item.point for item in trace.executions() if item.pid == first.pid}
    due = [item for item in trace.executions() if item.due_ms <= told * 1000 and item.point not in mine]
    assert len(due) >= 2, "everything had begun before the signal: nothing was handed over"
    assert {item.pid for item in due} == {other.pid}
    return max(item.began for item in due) - told


def test_f02_a_second_signal_ends_it_at_once_and_the_lease_does_the_rest(server, trace, tmp_path, report):
    histories = schedules(2, trace, seconds=LONG, overlap="queue_all")
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE) as first, server.broker() as broker:
        wait_until(lambda: len(trace.running_in(first.pid)) == 2, 30, "runs")
        with WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE) as other:
            other.ready()
            first.term()
            wait_until(lambda: "Stopping: " in first.log(), what="the drain that the first signal begins")
            assert first.alive
            told = first.term()
            assert first.wait() == 1
            leases_end_within(LEASE, broker, histories)
            wait_until(lambda: trace.taken_over(first.pid, told) != float("inf"), 30, "the runs to start again")
            other.kill()
