"""kill -9 at each step of a worker's round: each durable job has one outcome, and what is recorded is not run again."""

import pytest

from django_delayq.models import Job
from tests.acceptance.support import lines, wait_until
from tests.app import tasks
from tests.faults.harness.servers import Server, pointing_at
from tests.faults.harness.workers import WorkerProcess
from tests.jobs.durable_support import counts, durable

pytestmark = pytest.mark.django_db(transaction=True)
#: At which passing the worker is killed. Its first claim is one of points, and finds none.
STEPS = [
    ("after_claim", 2),
    ("after_ledger", 1),
    *(
        pytest.param(*step, marks=pytest.mark.everything)
        for step in [("after_judge", 1), ("before_ledger", 1), ("after_ledger", 2)]
    ),
]


@pytest.mark.parametrize(("step", "passing"), STEPS)
def test_a_worker_that_is_killed_leaves_every_job_to_the_next_one_and_nothing_recorded_is_run_again(
    step, passing, prefix, tmp_path
):
    path = tmp_path / "ran"
    with Server() as server, pointing_at(server.url):
        results = durable(tasks.note).enqueue_many(((str(path), f"n{n}"), {}) for n in range(20))
        failpoint = f"{step}=kill@{passing}"
        with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=1, failpoints=failpoint) as victim:
            victim.wait()
        with server.broker() as own:
            assert counts(own)[2] > 0, "it held nothing: nothing was tested"
        recorded = set(Job.objects.filter(status="SUCCESSFUL").values_list("member", flat=True))
        before = executions(path)
        with WorkerProcess("--threads", "4", folder=tmp_path, LEASE_SECONDS=1):
            wait_until(lambda: Job.objects.filter(status="SUCCESSFUL").count() == 20, 20)
    assert bool(recorded) == (step == "after_ledger")
    after = executions(path)
    for number, result in enumerate(results):
        name = f"n{number}"
        again = after.count(name) - before.count(name)
        assert after.count(name) >= 1
        if "j" + result.id.partition(".")[2] in recorded:
            assert again == 0


def executions(path):
    return [line[1] for line in lines(path) if line[0] == "start"]
