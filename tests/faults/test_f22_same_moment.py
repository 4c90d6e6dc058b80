"""F22: very many points in the same millisecond. None is lost, and no script blocks Redis for long."""

from collections import Counter
from datetime import timedelta
from typing import NamedTuple

import pytest

from django_delayq import conf
from django_delayq.fields import utcnow
from django_delayq.models import Run, Schedule
from django_delayq.timing import from_ms, to_ms
from tests.faults.harness.oracle import histories_of
from tests.faults.harness.verdict import Stall
from tests.faults.harness.workers import Fleet

pytestmark = [pytest.mark.django_db(transaction=True)]
LONGEST_SCRIPT = 0.005
LONG = 100_000
WORKERS = 2


@pytest.mark.parametrize(
    "count", [pytest.param(300, marks=pytest.mark.smoke), 1_000, pytest.param(LONG, marks=pytest.mark.long)]
)
def test_f22_points_of_one_millisecond_are_all_run_and_no_script_blocks_redis(count, server, trace, tmp_path, report):
    due, histories = at_once(count, trace, seconds=1 + count / 600)
    with Fleet(WORKERS, folder=tmp_path) as fleet, server.broker() as broker, Stall() as stall:
        watch(broker.client)
        verdict = report(f"F22 {count} at once", histories, until=due)
        assert fleet.tend() == 0
        found = scripts(broker.client)
    print(f"{found}; stall {stall.worst * 1000:.1f} ms")
    assert verdict.points == count
    assert largest_claim() <= conf.get_config().batch_size
    if count == LONG:
        # A script's time has what the server waited for a processor in it: the long form wants a machine of its own.
        assert found.mean <= LONGEST_SCRIPT
        assert found.worst <= LONGEST_SCRIPT + stall.worst


def at_once(count, trace, *, seconds):
    """Make so many schedules that are due at the same millisecond, in so many seconds; return it and them.

    In more seconds, where the machine has not made them by then: nobody owes them the past.
    """
    due = from_ms(to_ms(utcnow())) + timedelta(seconds=seconds)
    rows = [
        Schedule(name=f"n{n}", task="tests.faults.tasks.trace", kwargs={"path": str(trace.path)}, kind="once", at=due)
        for n in range(count)
    ]
    for at in range(0, count, 10_000):
        Schedule.objects.bulk_create(rows[at : at + 10_000], batch_size=500)
    if utcnow() >= due:
        Schedule.objects.all().delete()
        return at_once(count, trace, seconds=2 * seconds)
    return due, histories_of(Schedule.objects.all())


def largest_claim():
    """Return how many points one claim took at most. How long a script takes depends on the machine too, this does not.

    All that a claim takes has one time, that of its reply.
    """
    return max(Counter(Run.objects.values_list("worker", "claimed_at")).values())


class Scripts(NamedTuple):
    """What the scripts of a server took since its statistics were reset, in seconds."""

    calls: int
    mean: float
    worst: float

    def __str__(self):
        return f"{self.calls} scripts: mean {self.mean * 1000:.2f} ms, worst {self.worst * 1000:.2f} ms"


def watch(client):
    """Reset a server's statistics, and have it note each command of more than 1 ms."""
    client.config_set("slowlog-log-slower-than", 1000)
    client.config_set("slowlog-max-len", 10_000)
    client.config_resetstat()


def scripts(client):
    """Return what a server's scripts took since `watch`."""
    stats = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0, "usec_per_call": 0.0})
    slow = [entry["duration"] for entry in client.slowlog_get(10_000) if entry["command"].startswith(b"EVAL")]
    return Scripts(stats["calls"], stats["usec_per_call"] / 1e6, max(slow, default=0) / 1e6)
