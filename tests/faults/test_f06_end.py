"""F6: a task that ends its process takes it down a limited number of times; its schedule and its neighbours go on."""

from collections import Counter

import pytest

from django_delayq.models import Run
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.workers import LEASE, Fleet

pytestmark = [pytest.mark.django_db(transaction=True)]
RECLAIMS = 2


@pytest.mark.parametrize("how", ["exit", "segfault"])
def test_f06_a_task_that_ends_its_process_is_given_up_and_its_schedule_goes_on(how, server, trace, tmp_path, report):
    gate = tmp_path / "gate"
    gate.touch()
    kwargs = {"path": str(trace.path), "gate": str(gate), "how": how}
    healthy = schedules(5, trace)
    poison = schedules(1, trace, name="poison", task="tests.faults.tasks.end_process", kwargs=kwargs)
    rows = Run.objects.filter(schedule_id=poison[0].pk)
    with Fleet(2, folder=tmp_path, LEASE_SECONDS=LEASE, MAX_RECLAIMS=RECLAIMS) as fleet:
        wait_until(lambda: fleet.tend() < 0 or rows.filter(status="lost").exists(), 60, "an outcome")
        gate.unlink()
        wait_until(lambda: fleet.tend() < 0 or rows.filter(status="succeeded").exists(), 30, "the schedule to go on")
        report(f"F6 {how}", healthy + poison)
    lost = rows.get(status="lost")
    executions = Counter(item.point for item in trace.executions() if item.schedule == poison[0].pk)
    assert lost.reason == "poison"
    assert max(executions.values()) <= 1 + RECLAIMS
    assert not Run.objects.filter(status="lost").exclude(schedule_id=poison[0].pk).exists()
