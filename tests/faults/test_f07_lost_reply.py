"""F7: Redis has executed a script, and its reply never arrives. Repeating must be harmless, and must happen."""

import itertools
import time

import pytest

from django_delayq.models import Schedule
from tests.acceptance.support import wait_until
from tests.faults.harness.load import SECOND, schedules, soon
from tests.faults.harness.servers import pointing_at
from tests.faults.harness.verdict import Stall
from tests.faults.harness.workers import ENDLESS, WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]
#: The reply is lost with its connection, or does not come; or the request is lost, which looks the same from here.
HOW: dict[str, dict[str, bool]] = {"reset": {}, "silence": {"silent": True}, "request": {"request": True}}


@pytest.mark.parametrize(
    ("what", "how"),
    [
        pytest.param("claim", "reset", marks=pytest.mark.smoke),
        *[both for both in itertools.product(["claim", "settle", "retry"], HOW) if both != ("claim", "reset")],
    ],
)
def test_f07_a_lost_reply_to_a_worker_is_made_up_for_without_waiting_for_the_lease(
    what, how, server, proxy, trace, tmp_path, report
):
    retried = {"task": "tests.faults.tasks.fail_first", "max_attempts": 2, "backoff": SECOND / 5}
    histories = schedules(10, trace, **(retried if what == "retry" else {}))
    with WorkerProcess(folder=tmp_path, redis_url=proxy.url, LEASE_SECONDS=ENDLESS) as worker:
        wait_until(lambda: trace.executions(), 30, "runs")
        script = "settle" if what == "retry" else what
        losses = 1 if how == "silence" else 3
        proxy.lose(script, count=losses, **HOW[how])
        wait_until(lambda: proxy.lost[script] == losses, 30, "lost replies")
        lost = time.time()
        wait_until(lambda: len(trace.first_after(lost)) == len(histories), 30, "all schedules to go on")
        recovery = max(trace.first_after(lost).values())
        verdict = report(f"F7 {what} {how}", histories, recovery=recovery)
        assert worker.alive
    assert verdict.executions_max == 1


def test_f07_a_lost_reply_to_a_renewal_loses_no_lease(server, proxy, trace, tmp_path, report):
    lease = 2
    # Long enough for two take-overs: the second lost reply may be that of the first one, which then starts nothing.
    histories = schedules(4, trace, seconds=3 * lease + 1, **soon(0.5))
    proxy.lose("renew", count=2)
    workers = [WorkerProcess(folder=tmp_path, redis_url=proxy.url, cold=True, LEASE_SECONDS=lease) for _ in range(2)]
    with workers[0], workers[1], Stall() as stall:
        wait_until(lambda: proxy.lost["renew"] == 2, 30, "lost replies")
        verdict = report("F7 renew", histories)
        kept = verdict.executions_max == 1 and not any("Lost the lease" in worker.log() for worker in workers)
    assert kept or stall.longer_than(lease / 3)


@pytest.mark.parametrize("how", [pytest.param("reset", marks=pytest.mark.long), "request"])
def test_f07_a_lost_reply_to_an_edit_is_mirrored_again(how, server, proxy, trace, tmp_path, report):
    histories = schedules(5, trace, every=3600 * SECOND)
    with WorkerProcess(folder=tmp_path, LEASE_SECONDS=ENDLESS), server.broker() as broker:
        wait_until(
            lambda: broker.read_note("swept"), what="the end of the full sweep at its start, which would mend anything"
        )
        proxy.lose("upsert", count=1, **HOW[how])
        with pointing_at(proxy.url):
            for history in histories:
                row = Schedule.objects.get(pk=history.pk)
                row.every = SECOND
                row.save()
                history.note(row)
        assert proxy.lost["upsert"] == 1
        wait_until(lambda: not Schedule.objects.unmirrored().exists(), 30, "the sweep")
        edited = time.time()
        wait_until(lambda: len(trace.first_after(edited)) == len(histories), 30, "points of the edited definitions")
        verdict = report(f"F7 upsert {how}", histories)
    assert verdict.executions_max == 1
