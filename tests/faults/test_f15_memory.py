"""F15: Redis is out of memory. Nothing new is claimed, but what runs keeps its lease and is settled."""

import time

import pytest

from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules, soon
from tests.faults.harness.verdict import Stall
from tests.faults.harness.workers import WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]
#: Renewed in time by a worker that runs.
LEASE = 2


def test_f15_without_memory_what_runs_keeps_its_lease_and_is_settled(server, trace, tmp_path, report):
    gate = tmp_path / "gate"
    gate.touch()
    kwargs = {"path": str(trace.path), "gate": str(gate)}
    histories = schedules(5, trace, task="tests.faults.tasks.held_at", kwargs=kwargs, **soon(1))
    histories += schedules(5, trace, seconds=0.5, name="often")
    members = [(f"s{history.pk}", "default") for history in histories]
    with (
        WorkerProcess("--threads", "16", folder=tmp_path, LEASE_SECONDS=LEASE) as worker,
        server.broker() as broker,
        Stall() as stall,
    ):
        wait_until(lambda: len(trace.running_in(worker.pid)) == len(histories), 30, "runs of all")
        held = trace.running_in(worker.pid)
        broker.client.config_set("maxmemory", 1)
        time.sleep(1.5 * LEASE)  # what is not renewed ends
        gate.unlink()
        wait_until(lambda: trace.over(held), 30, "their ends")
        wait_until(lambda: not any(view.leased for view in broker.read_views(members)), 15, "them to be settled")
        points = {item.point for item in held}
        assert not points & {
            (int(m[1:]), v.point_ms) for (m, _), v in zip(members, broker.read_views(members), strict=True)
        }
        assert worker.alive
        broker.client.config_set("maxmemory", 0)
        verdict = report("F15 out of memory", histories)
        kept = verdict.executions_max == 1 and "Lost the lease" not in worker.log()
    assert kept or stall.longer_than(LEASE / 3)


def test_f15_a_worker_refuses_a_redis_that_evicts(server, trace, tmp_path, report):
    histories = schedules(3, trace)
    with server.broker() as broker:
        broker.client.config_set("maxmemory-policy", "allkeys-lru")
        with WorkerProcess(folder=tmp_path) as refused:
            assert refused.wait() == 1
        assert "maxmemory-policy" in refused.log()
        assert not trace.executions()
        broker.client.config_set("maxmemory-policy", "noeviction")
    with WorkerProcess(folder=tmp_path):
        wait_until(lambda: trace.executions(), 30, "runs")
        report("F15 a policy that evicts", histories)
