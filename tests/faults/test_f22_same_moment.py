"""F22: very many points in the same millisecond. None is lost, and no script blocks Redis for long."""

from collections import Counter
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import cycle
from typing import NamedTuple

import pytest
import redis

from django_delayq import conf
from django_delayq.index import Broker
from django_delayq.models import Run, Schedule
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import wait_until
from tests.faults.harness.oracle import histories_of
from tests.faults.harness.shapes import PRIMARIES, Cluster
from tests.faults.harness.verdict import Stall
from tests.faults.harness.workers import Fleet
from tests.faults.test_f12_cluster import slots

pytestmark = [pytest.mark.django_db(transaction=True)]
LONGEST_SCRIPT = 0.005
LONG = 100_000
WORKERS = 2
SHARDS = 2 * PRIMARIES


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
        short(found, stall)


@pytest.mark.parametrize(
    "count", [pytest.param(1_000, id="short"), pytest.param(LONG, marks=pytest.mark.long, id="long")]
)
def test_f22_points_of_one_millisecond_on_a_cluster_are_all_run_and_no_script_blocks_a_node(
    count, settings, trace, tmp_path, report
):
    """Each primary has two of the six shards, and is asked for the times of its own scripts."""
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": SHARDS}
    with Cluster(tmp_path) as cluster, ExitStack() as stack:
        spread_evenly(cluster)
        clients = [stack.enter_context(redis.Redis(port=node.port, socket_timeout=5)) for node in cluster.nodes]
        due, histories = at_once(count, trace, seconds=1 + count / 600)
        for client in clients:
            watch(client)
        with Fleet(WORKERS, folder=tmp_path) as fleet:  # only now: what a worker claims is to be seen
            with Stall() as stall:
                seconds = drained(count, due, trace)
            found = [each for each in map(scripts, clients) if each.calls]
            note = f"{SHARDS} shards, {WORKERS} workers: done after {seconds:.1f} s; scripts p99 {slowest(found)}"
            verdict = report(f"F22 {count} on a cluster", histories, until=due, note=note)
            assert fleet.tend() == 0
    print(*found, f"stall {stall.worst * 1000:.1f} ms", sep="\n")
    assert verdict.points == count
    assert len(found) >= PRIMARIES, "each primary has a part"  # more, where the machine was so busy that one gave way
    assert largest_claim() <= conf.get_config().batch_size
    if count == LONG:
        for each in found:
            short(each, stall)


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


def spread_evenly(cluster):
    """Give each primary as many shards as the others; by their names alone one may have none."""
    broker = Broker(timeout_seconds=5)
    for slot, target in zip(slots(cluster, broker), cycle(cluster.primaries()), strict=False):
        if cluster.owner(slot) is not target:
            cluster.move(slot, target)
    broker.close()


def drained(count, due, trace):
    """Wait for the ends of so many executions; return the seconds from the due moment to the last one."""
    with suppress(AssertionError):  # the oracle tells better what is missing
        wait_until(lambda: len(trace.executions()) >= count and trace.over(trace.executions()), 20 + count / 50)
    return max((item.ended or 0.0 for item in trace.executions()), default=0.0) - due.timestamp()


def largest_claim():
    """Return how many points one claim took at most. How long a script takes depends on the machine too, this does not.

    All that a claim takes has one time, that of its reply.
    """
    return max(Counter(Run.objects.values_list("worker", "claimed_at")).values())


class Scripts(NamedTuple):
    """What the scripts of a server took since its statistics were reset, in seconds; `p99` as far as it tells."""

    calls: int
    mean: float
    p99: float | None
    worst: float

    def __str__(self):
        p99 = "-" if self.p99 is None else f"{self.p99 * 1000:.2f} ms"
        return f"{self.calls} scripts: mean {self.mean * 1000:.2f} ms, p99 {p99}, worst {self.worst * 1000:.2f} ms"


def watch(client):
    """Reset a server's statistics, and have it note each command of more than 1 ms."""
    client.config_set("slowlog-log-slower-than", 1000)
    client.config_set("slowlog-max-len", 10_000)
    client.config_resetstat()


def scripts(client):
    """Return what a server's scripts took since `watch`."""
    stats = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0, "usec_per_call": 0.0})
    shares = client.info("latencystats").get("latency_percentiles_usec_evalsha")  # since Redis 7.0
    slow = [entry["duration"] for entry in client.slowlog_get(10_000) if entry["command"].startswith(b"EVAL")]
    p99 = float(shares["p99"]) / 1e6 if shares else None
    return Scripts(stats["calls"], stats["usec_per_call"] / 1e6, p99, max(slow, default=0) / 1e6)


def slowest(found):
    """Return the longest p99, as text."""
    known = [each.p99 for each in found if each.p99 is not None]
    return f"{max(known) * 1000:.2f} ms" if known else "-"


def short(found, stall):
    """Assert that scripts did not block their server for long.

    Only in the long form, which wants a machine of its own: a script's time has what the server waited for a processor
    in it. Elsewhere the size of a claim says how long it takes.
    """
    assert found.mean <= LONGEST_SCRIPT
    assert found.worst <= LONGEST_SCRIPT + stall.worst
