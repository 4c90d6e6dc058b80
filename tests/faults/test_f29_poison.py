"""F29: one task that kills its process among 99 healthy ones that came due with it."""

from collections import Counter

import pytest

from django_delayq.models import Run
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules, soon
from tests.faults.harness.workers import Fleet

pytestmark = [pytest.mark.django_db(transaction=True)]
LEASE, RECLAIMS = 1, 3


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_f29_a_poisonous_task_costs_none_of_its_99_neighbours_their_run(workers, server, trace, tmp_path, report):
    """Some of the neighbours run for longer than a lease, so that they are killed in the midst of it, repeatedly."""
    gate = tmp_path / "gate"
    gate.touch()
    at = soon(8)
    kwargs = {"path": str(trace.path), "gate": str(gate), "how": "exit"}
    healthy = schedules(12, trace, name="slow", seconds=2 * LEASE, **at) + schedules(37, trace, name="quick", **at)
    poison = schedules(1, trace, name="poison", task="tests.faults.tasks.end_process", kwargs=kwargs, **at)
    healthy += schedules(12, trace, name="late-slow", seconds=2 * LEASE, **at) + schedules(38, trace, name="late", **at)
    with Fleet(workers, folder=tmp_path, LEASE_SECONDS=LEASE, MAX_RECLAIMS=RECLAIMS) as fleet:
        wait_until(lambda: fleet.tend() < 0 or Run.objects.finished().count() >= 100, 180, "100 outcomes")
        report(f"F29 poison, {workers} workers", healthy + poison)
    assert list(Run.objects.filter(status="lost").values_list("schedule_id", "reason")) == [(poison[0].pk, "poison")]
    assert Run.objects.filter(status="succeeded").count() == 99
    executions = Counter(item.schedule for item in trace.executions())
    assert 1 < executions[poison[0].pk] <= 1 + RECLAIMS
    assert len(fleet.ended) == executions[poison[0].pk], "nothing but the poison ended a process"
