"""F10: FLUSHALL, and a Redis that starts again with nothing, both under load; a worker that dies as it rebuilds."""

import time

import pytest

from tests.acceptance.support import wait_until
from tests.faults.harness.load import mixture
from tests.faults.harness.workers import LEASE, Fleet, WorkerProcess
from tests.faults.patched.apps import patches
from tests.faults.test_f11_sentinel import all_go_on

pytestmark = [pytest.mark.django_db(transaction=True)]
#: Workers that rebuild few schedules in several pages.
PAGED = patches("small_pages=2")


def test_f10_a_flush_under_load_loses_no_point(server, trace, tmp_path, report):
    histories = mixture(10, trace)
    with Fleet(2, folder=tmp_path, environment=PAGED, LEASE_SECONDS=LEASE) as fleet:
        wait_until(lambda: len(trace.executions()) > 10, 40, "a load")
        recovery = 0.0
        for _ in range(3):
            server.flush()
            recovery = max(recovery, all_go_on(trace, histories))
        assert fleet.tend() == 0
        report("F10 FLUSHALL", histories, recovery=recovery)


@pytest.mark.smoke
def test_f10_a_redis_that_comes_back_empty_loses_no_point(server, trace, tmp_path, report):
    histories = mixture(10, trace)
    with Fleet(2, folder=tmp_path, LEASE_SECONDS=LEASE) as fleet:
        wait_until(lambda: len(trace.executions()) > 10, 40, "a load")
        server.stop()
        time.sleep(0.5)  # the outage
        server.start()
        recovery = all_go_on(trace, histories)
        assert fleet.tend() == 0
        report("F10 restart, empty", histories, recovery=recovery)


@pytest.mark.parametrize("page", [pytest.param(1, marks=pytest.mark.long), 3])
def test_f10_a_worker_killed_in_a_rebuild_loses_no_point(page, server, trace, tmp_path, report):
    how = {"folder": tmp_path, "environment": PAGED, "LEASE_SECONDS": LEASE}
    with WorkerProcess(**how).ready() as survivor:
        survivor.stop()
        histories = mixture(10, trace)
        server.flush()
        with WorkerProcess(failpoints=f"during_rebuild=kill@{page}", **how) as victim:
            victim.wait()
        survivor.resume()
        # The mark of its rebuild stands for 15 s.
        report("F10 kill -9 of who rebuilds", histories, recovery=all_go_on(trace, histories), limit=20)
