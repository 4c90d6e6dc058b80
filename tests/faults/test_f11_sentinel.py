"""F11: a Sentinel failover in which the last second of writes is lost, and READONLY, under load."""

import time

import pytest

from tests.acceptance.support import wait_until
from tests.faults.harness.load import mixture
from tests.faults.harness.shapes import Sentinels
from tests.faults.harness.workers import LEASE, Fleet

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("seconds", [pytest.param(0, id="short"), pytest.param(600, marks=pytest.mark.long, id="long")])
def test_f11_a_failover_that_loses_writes_loses_no_point(seconds, trace, tmp_path, report):
    stalls = []
    with Sentinels(tmp_path) as redis:
        histories = mixture(30 if seconds else 10, trace)
        with Fleet(2, folder=tmp_path, LEASE_SECONDS=LEASE) as fleet:
            wait_until(lambda: len(trace.executions()) > 20, 40, "a load")
            end = time.monotonic() + seconds
            while not stalls or time.monotonic() < end:
                former = redis.fail_over(lost_seconds=1)
                stalls.append(all_go_on(trace, histories))
                former.start()
                wait_until(redis.whole, 60, "the former master to follow")
            assert fleet.tend() == 0
            report("F11 Sentinel failover", histories, recovery=max(stalls), note=f"{len(stalls)} failovers")
            assert fleet.tend() == 0


def test_f11_a_demoted_master_is_left_at_once(trace, tmp_path, report):
    """READONLY: on SENTINEL FAILOVER the master becomes a replica, and the connections to it stand."""
    with Sentinels(tmp_path) as redis:
        histories = mixture(10, trace)
        with Fleet(2, folder=tmp_path, cold=True, LEASE_SECONDS=LEASE) as fleet:
            wait_until(lambda: len(trace.executions()) > 20, 40, "a load")
            redis.hand_over()
            stall = all_go_on(trace, histories)
            report("F11 master demoted", histories, recovery=stall)
            assert fleet.tend() == 0


def all_go_on(trace, histories):
    """Return how many seconds from now on it takes until each schedule has run again."""
    began = time.time()
    wait_until(lambda: len(trace.first_after(began)) == len(histories), 60, "all to go on")
    return max(trace.first_after(began).values())
