"""F4: a task in C code holds the interpreter, so that nothing is renewed for two leases."""

import pytest

from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.workers import LEASE, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]


def test_f04_a_worker_that_cannot_renew_loses_its_leases_and_says_so(server, trace, tmp_path, report):
    """Several tries may be needed: a process that freezes within a transaction of SQLite keeps all others from it."""
    gate = tmp_path / "gate"
    gate.touch()
    histories = schedules(6, trace)
    kwargs = {"path": str(trace.path), "gate": str(gate), "seconds": 2 * LEASE}
    histories += schedules(1, trace, name="greedy", task="tests.faults.tasks.hold_the_gil", kwargs=kwargs)
    greedy = histories[-1].pk
    workers = [WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE) for _ in range(2)]
    with workers[0], workers[1]:
        for worker in workers:
            worker.ready()
        wait_until(lambda: twice(trace, greedy), 60, "a take-over")
        held, again = twice(trace, greedy)[:2]
        starved = next(worker for worker in workers if worker.pid == held.pid)
        wait_until(lambda: f"Lost the lease of s{greedy} " in starved.log(), 10, "the event")
        gate.unlink()
        report("F4 renewal starved", histories, recovery=again.began - held.began)
        assert starved.alive
    assert {held.pid, again.pid} == {worker.pid for worker in workers}


def twice(trace, schedule):
    """Return the executions of the first point of this schedule that was executed more than once."""
    points = {}
    for item in trace.executions():
        if item.schedule == schedule:
            points.setdefault(item.point, []).append(item)
    return next((items for items in points.values() if len(items) > 1), [])
