"""F8: a worker that is cut off from Redis, from the database, or from both. Others go on; nothing is settled that the
ledger does not have.
"""

import time
from contextlib import ExitStack

import pytest

from django_delayq.models import Run
from django_delayq.recurrence import to_ms
from tests.acceptance.support import wait_until
from tests.faults.harness import database
from tests.faults.harness.load import schedules
from tests.faults.harness.verdict import leases_end_within
from tests.faults.harness.workers import ENDLESS, LEASE, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("shards")]


@pytest.mark.parametrize(
    "how",
    [pytest.param("refuse", marks=pytest.mark.long), "freeze", pytest.param("half_close", marks=pytest.mark.long)],
)
def test_f08_what_a_worker_without_redis_holds_goes_on_elsewhere(how, server, proxy, trace, tmp_path, report):
    histories = schedules(20, trace, seconds=0.3)
    alone = WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE, redis_url=proxy.url)
    other = WorkerProcess(folder=tmp_path, LEASE_SECONDS=LEASE)
    with alone, other, server.broker() as broker:
        other.ready()
        wait_until(lambda: trace.running_in(alone.pid), 30, "a run in the worker to be cut off")
        getattr(proxy, how)()
        cut = time.time()
        if how != "half_close":  # else it connects again, and goes on
            leases_end_within(LEASE, broker, histories)
        # A worker whose connections were closed for reading connects again, and may go on itself.
        left_out = 0 if how == "half_close" else alone.pid
        wait_until(lambda: len(trace.first_after(cut, left_out)) == len(histories), 30, "all to go on")
        recovery = max(trace.first_after(cut, left_out).values())
        time.sleep(LEASE)  # the stale worker has every occasion to do something wrong
        if how == "refuse":
            proxy.accept()
        proxy.thaw()
        back = time.time()
        wait_until(lambda: any(item.pid == alone.pid and item.began > back for item in trace.executions()), 30, "it")
        report(f"F8 no Redis, {how}", histories, recovery=recovery, limit=LEASE + 1)


def points_seen(broker, schedules, seconds):
    """Return each (schedule, point) that Redis has within that time. One look would not do: a hole is filled again."""
    seen = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        views = broker.read_views([(f"s{schedule}", "default") for schedule in schedules])
        seen |= {(schedule, view.point_ms) for schedule, view in zip(schedules, views, strict=True)}
        time.sleep(0.01)  # between two looks: what goes and comes back is away for longer
    return seen


@pytest.mark.parametrize(
    "both", [pytest.param(False, marks=pytest.mark.smoke, id="database"), pytest.param(True, id="both")]
)
def test_f08_nothing_is_settled_that_the_ledger_does_not_have(both, server, proxy, trace, tmp_path, report):
    histories = schedules(5, trace, seconds=0.3)
    how = {"environment": database.LOCK_SECONDS, "LEASE_SECONDS": LEASE if both else ENDLESS, "cold": both}
    with WorkerProcess(folder=tmp_path, redis_url=proxy.url, **how) as worker:
        wait_until(lambda: len(trace.executions()) > 10, 30, "a load")
        wait_until(lambda: trace.running_in(worker.pid), 10, "a run whose outcome will find the database locked")
        with ExitStack() as away:
            away.enter_context(database.locked())
            unrecorded = {item.point for item in trace.running_in(worker.pid)}
            unrecorded -= {(row.schedule_id, to_ms(row.due_at)) for row in Run.objects.all()}
            if both:
                proxy.refuse()
            assert unrecorded
            with server.broker() as broker:
                assert points_seen(broker, [schedule for schedule, _ in unrecorded], 2 * LEASE) <= unrecorded
        if both:
            proxy.accept()
        back = time.time()
        wait_until(lambda: len(trace.first_after(back)) == len(histories), 30, "all to go on")
        recovery = max(trace.first_after(back).values())
        verdict = report(f"F8 no {'Redis, no ' if both else ''}database", histories, recovery=recovery)
        assert worker.alive
    assert both or verdict.executions_max == 1
