"""F34: the database answers and refuses what is written: read-only, rights revoked, columns missing, sessions ended in
their transactions, statements cancelled. Outcomes wait for it; nothing is executed twice, and nothing new is begun
meanwhile.
"""

import time

import pytest
from django.db import connection

from django_delayq.models import Run
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.faults.harness import database
from tests.faults.harness.load import schedules
from tests.faults.harness.usage import AVAILABLE, usage
from tests.faults.harness.workers import ENDLESS, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]
POINTS, JOBS = 6, 8
#: What the worker says, once, to do about it. None: who is quick enough is not hit.
SAYS = {
    "read-only": "let it write",
    "rights": "grant its user",
    "columns": "manage.py migrate",
    "idle": None,
    "cancelling": None,
}
#: As in F21: of one processor, what a worker may use while it can do nothing.
IDLE_SHARE = 0.1


def refusing(how):
    """Return what lets the database refuse."""
    if how != "columns" and connection.vendor != "postgresql":
        pytest.skip("a setting of PostgreSQL")
    return {
        "read-only": lambda: database.told("default_transaction_read_only", "on"),
        "rights": database.revoked,
        "columns": database.without_columns,
        "idle": lambda: database.told("idle_in_transaction_session_timeout", "1"),
        "cancelling": lambda: database.told("statement_timeout", "1"),
    }[how]()


class Jobs:
    """They all last until a gate is there."""

    def __init__(self, folder):
        self.path, self.gate = folder / "ran", folder / "open"
        tasks.stubborn.enqueue_many(((str(self.path), str(self.gate)), {}) for _ in range(JOBS))

    def count(self, what):
        """Say how many executions have begun or ended."""
        return self.path.read_text().count(what) if self.path.exists() else 0


@pytest.mark.parametrize(
    "how", ["read-only", "rights", pytest.param("columns", marks=pytest.mark.smoke), "idle", "cancelling"]
)
def test_f34_outcomes_wait_for_a_database_that_refuses_them(how, server, trace, tmp_path, report):
    refusal = refusing(how)
    gate = tmp_path / "closed"
    gate.touch()
    kwargs = {"path": str(trace.path), "gate": str(gate)}
    histories = schedules(POINTS, trace, task="tests.faults.tasks.held_at", kwargs=kwargs)
    jobs = Jobs(tmp_path)
    # Whatever is thrown away does not come back within this lease.
    with WorkerProcess("--threads", "16", folder=tmp_path, LEASE_SECONDS=ENDLESS) as worker:
        wait_until(lambda: (len(trace.executions()), jobs.count("start")) == (POINTS, JOBS), what="all to run")
        with refusal:
            gate.unlink()
            jobs.gate.touch()
            wait_until(lambda: trace.over(trace.executions()) and jobs.count("end") == JOBS, what="all to end")
            if SAYS[how]:
                wait_until(lambda: SAYS[how] in worker.log(), what="what to do")
            began, used = len(trace.executions()), usage(worker.pid)
            time.sleep(2)  # it tries in vain
            if SAYS[how]:
                assert len(trace.executions()) == began, "what is due waits while outcomes cannot be written"
                assert not AVAILABLE or usage(worker.pid).cpu_seconds - used.cpu_seconds <= 2 * IDLE_SHARE
                assert worker.log().count(SAYS[how]) == 1
        wait_until(
            lambda: Run.objects.filter(origin="job", status="succeeded").count() == JOBS, what="the outcomes of jobs"
        )
        wait_until(lambda: len(trace.executions()) > began, what="the next points")
        verdict = report(f"F34 database {how}", histories, note=f"{JOBS} jobs")
        assert "answers again" in worker.log() or not SAYS[how]
        assert "be recorded" not in worker.log()
        assert worker.alive
    assert (verdict.executions_max, jobs.count("start")) == (1, JOBS)
