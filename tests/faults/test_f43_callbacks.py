"""F43: a worker is killed between an outcome and what follows it. One job tells each outcome, and none is missing."""

from collections import defaultdict

import pytest
from django.conf import settings

from django_delayq.calls.compat import task_backends
from django_delayq.models import Run, Schedule
from tests.acceptance.support import lines, wait_until
from tests.faults import tasks
from tests.faults.harness.load import soon
from tests.faults.harness.workers import LEASE, WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
NUMBER = 20
BACK = tasks.called_back.module_path
#: At which passing the worker is killed.
STEPS = [
    ("after_claim", 2),
    ("after_ledger", 1),
    *(pytest.param(*step, marks=pytest.mark.everything) for step in [("before_ledger", 1), ("after_ledger", 2)]),
]


@pytest.fixture(autouse=True)
def told():
    """Where the tasks of this test note what they are told."""
    path = settings.SCRATCH / "called_back"
    path.unlink(missing_ok=True)
    return path


def callbacks(path):
    """Return of each end which jobs have told it."""
    found = defaultdict(set)
    for ended, job in lines(path):
        found[ended].add(job)
    return found


@pytest.mark.parametrize(("step", "passing"), STEPS)
def test_f43_of_each_job_one_other_tells_the_end_whoever_is_killed(step, passing, server, told, tmp_path):
    task = tasks.half.using(on_success=BACK, on_failure=BACK)
    results = task.enqueue_many(((number,), {}) for number in range(NUMBER))
    killed = f"{step}=kill@{passing}"
    with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=LEASE, failpoints=killed) as victim:
        victim.wait()
    with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=LEASE) as worker:
        wait_until(lambda: len(callbacks(told)) == NUMBER, 60, f"callbacks: {worker.log()[-500:]}")
        wait_until(lambda: all(task_backends["default"].get_result(each.id).is_finished for each in results), 60)
    found = callbacks(told)
    assert found.keys() == {result.id for result in results}
    assert {len(jobs) for jobs in found.values()} == {1}
    assert Run.objects.filter(task=BACK).count() == NUMBER


@pytest.mark.parametrize(
    "step",
    ["after_ledger", *(pytest.param(it, marks=pytest.mark.everything) for it in ("before_ledger", "after_settle"))],
)
def test_f43_of_each_due_point_one_job_tells_the_outcome_whoever_is_killed(step, server, told, tmp_path):
    values = {"task": tasks.half.module_path, "on_success": BACK, "on_failure": BACK, **soon(2)}
    Schedule.objects.bulk_create(Schedule(name=f"s{n}", args=[n], **values) for n in range(NUMBER))
    with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=LEASE, failpoints=f"{step}=kill") as victim:
        victim.wait()
    with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=LEASE) as worker:
        wait_until(lambda: len(callbacks(told)) == NUMBER, 60, f"callbacks: {worker.log()[-500:]}")
    runs = Run.objects.filter(origin="due", status__in=["succeeded", "failed"])
    assert runs.count() == NUMBER
    assert callbacks(told).keys() == {str(run.pk) for run in runs}
    assert {len(jobs) for jobs in callbacks(told).values()} == {1}
    assert Run.objects.filter(task=BACK).count() == NUMBER
