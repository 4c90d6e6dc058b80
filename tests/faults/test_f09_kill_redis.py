"""F9: kill -9 of a Redis with an append-only file, under load, and a start with what it kept."""

import time

import pytest

from tests.acceptance.support import wait_until
from tests.faults.harness.load import mixture
from tests.faults.harness.workers import LEASE, Fleet

pytestmark = [pytest.mark.django_db(transaction=True)]


def test_f09_a_killed_redis_that_comes_back_with_its_file_loses_no_point(aof_server, trace, tmp_path, report):
    histories = mixture(10, trace)
    with Fleet(2, folder=tmp_path, cold=True, LEASE_SECONDS=LEASE) as fleet:
        wait_until(lambda: len(trace.executions()) > 10, 40, "a load")
        for away in (0, 1):
            aof_server.kill()
            time.sleep(away)  # the outage
            aof_server.start()
            back = time.time()
            wait_until(lambda back=back: len(trace.first_after(back)) == len(histories), 30, "all to go on")
        recovery = max(trace.first_after(back).values())
        assert fleet.tend() == 0
        report("F9 kill -9 Redis, AOF", histories, recovery=recovery)
