"""F32: more falls due than the workers can do. Each schedule has its turn, whatever its policies, and it is told."""

from collections import Counter
from datetime import timedelta

import pytest

from django_delayq.models import Run, Status
from django_delayq.monitoring.observing import take_snapshot_within
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules
from tests.faults.live import live_worker

pytestmark = [pytest.mark.django_db(transaction=True)]
#: A hundred points a second, of which one thread executes half at most.
COUNT, EVERY, SECONDS = 50, timedelta(seconds=0.5), 0.02
TURNS = 2


@pytest.mark.parametrize(
    ("overlap", "missed", "told"),
    [
        pytest.param("skip", "latest", False, marks=pytest.mark.smoke),
        ("queue_one", "latest", True),
        ("queue_all", "latest", False),
        ("queue_all", "all", False),
    ],
)
def test_f32_under_overload_each_schedule_has_its_turn_and_it_is_told(
    overlap, missed, told, server, trace, report, settings
):
    settings.DELAYQ = {**settings.DELAYQ, "MIN_INTERVAL_SECONDS": 0.1}
    histories = schedules(COUNT, trace, every=EVERY, seconds=SECONDS, overlap=overlap, missed=missed)
    with live_worker("slow", threads=1):
        wait_until(lambda: len(turns()) == COUNT and min(turns().values()) >= TURNS, what="turns of all")
        if told:
            wait_until(lambda: "overdue" in [item.code for item in take_snapshot_within(5).problems], what="a word")
    with live_worker("fast", threads=16):
        report(f"F32 {overlap}, {missed}", histories)


def turns():
    """Return how often each schedule was executed."""
    return Counter(Run.objects.filter(status=Status.SUCCEEDED).values_list("schedule", flat=True))
