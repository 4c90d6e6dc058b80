"""F13: Redis goes back to an older state while leases are held: a failover with lost writes, a restored snapshot.

Whoever holds what the older state does not know may finish and be recorded, but changes nothing in Redis (rule R3).
"""

import threading
from datetime import timedelta
from shutil import copyfile

import pytest

from django_delayq.calls import registry
from django_delayq.calls.compat import task
from django_delayq.embedded import EmbeddedServer
from django_delayq.index import Broker
from django_delayq.models import Run, Schedule
from django_delayq.recurrence import to_ms
from tests.acceptance.support import wait_until
from tests.faults.harness.load import mixture, schedules
from tests.faults.harness.oracle import histories_of
from tests.faults.harness.servers import Server, pointing_at
from tests.faults.harness.workers import WorkerProcess
from tests.faults.live import WorkerThread, together
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]
DAY = timedelta(days=1)


class Snapshot:
    """All keys of a prefix as they are now, to be put back."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        names = broker.find_keys()
        self.values = [(name, max(0, broker.client.pttl(name)), broker.client.dump(name)) for name in names]

    def restore(self) -> None:
        """Put the prefix back, in one step."""
        pipeline = self.broker.client.pipeline(transaction=True)
        for name in self.broker.find_keys():
            pipeline.delete(name)
        for name, ttl_ms, value in self.values:
            pipeline.restore(name, ttl_ms, value)
        pipeline.execute()


GATES: list[tuple[threading.Event, threading.Event]] = []


@task
def gated():
    """Say that it started, and wait to be let through; each execution has its own gate."""
    began, go = threading.Event(), threading.Event()
    GATES.append((began, go))
    began.set()
    assert go.wait(20)


@pytest.fixture
def due(broker, monkeypatch, settings):
    """A schedule with one point due, whose task waits at a gate."""
    GATES.clear()
    settings.DELAYQ = {**settings.DELAYQ, "LEASE_SECONDS": 1}
    monkeypatch.setitem(registry.get_tasks(), gated.module_path, gated)
    row = Schedule.objects.create(name="s", task=gated.module_path, kind="cron", cron=DAILY_CRON)
    row.point = make_due(broker, row)
    yield row
    for _, go in GATES:
        go.set()


def executing(number):
    wait_until(lambda: len(GATES) == number, 20, f"execution {number}")


def entry(broker, row):
    """Return all that Redis knows of a member."""
    names = [f"{{{broker.config.prefix}:default:0}}:{part}" for part in ("point", "gen", "lease", "attempts")]
    return [broker.client.hget(name, f"s{row.pk}") for name in names], broker.read_views([(f"s{row.pk}", "default")])[0]


def lapsed_lease(broker):
    """A worker has died and its lease has run out."""
    broker.claim(broker.list_shards()[0], limit=1, lease_ms=0, request=1)


@pytest.mark.parametrize("older_lease", [False, True], ids=["not leased", "lease of a dead worker"])
@pytest.mark.parametrize("first", ["newer", "older"])
def test_f13_who_holds_what_was_rolled_back_is_recorded_or_not_but_changes_nothing_in_redis(
    broker, due, report, older_lease, first
):
    """Rule R3. Both execute the point; one outcome is recorded; Redis listens only to the holder that it knows.

    The holder whose outcome is refused leaves the entry to the end of its lease; the next claim puts the next point.
    """
    if older_lease:
        lapsed_lease(broker)
    snapshot = Snapshot(broker)
    newer = WorkerThread("newer", burst=True, max_runs=1)  # else its own next look could claim what is rolled back
    executing(1)
    snapshot.restore()
    older = WorkerThread("older", burst=True)
    executing(2)
    known = entry(broker, due)
    if first == "newer":
        GATES[0][1].set()
        newer.end()
        assert entry(broker, due)[0] == known[0], "it was rolled back: it may not move what another holds"
        GATES[1][1].set()
        older.end()
    else:
        GATES[1][1].set()
        older.end()
        settled = entry(broker, due)
        GATES[0][1].set()
        newer.end()
        assert entry(broker, due) == settled
    run = Run.objects.get()
    assert (run.status, run.due_at, len(GATES)) == ("succeeded", due.point, 2)
    due.refresh_from_db()
    assert (due.state.run_count, due.state.last_due_at) == (1, due.point)

    def moved():
        run_burst()
        seen = broker.read_views([(f"s{due.pk}", "default")])[0]
        return (seen.point_ms, seen.leased) == (to_ms(due.point + DAY), False)

    wait_until(moved, 20, "the next point")
    assert (Run.objects.count(), len(GATES)) == (1, 2), "a decided point is not executed again"
    fault = f"F13 {first} holder first{', lapsed lease' if older_lease else ''}"
    report(fault, histories_of([due]), until=due.point, traced=False)


def test_f13_points_decided_after_the_snapshot_are_not_run_again(broker, trace, report):
    """Rule R2: the older state wakes a worker for points that the ledger knows."""
    schedules(1, trace, every=timedelta(seconds=10), missed="all")
    row = Schedule.objects.get()
    make_due(broker, row, ago=timedelta(seconds=95))
    histories = histories_of([row])
    snapshot = Snapshot(broker)
    run_burst()
    known = list(Run.objects.order_by("pk").values())
    assert len(known) >= 10
    snapshot.restore()
    run_burst()
    assert list(Run.objects.order_by("pk").values())[: len(known)] == known
    assert report("F13 old points", histories).executions_max == 1


class SnapshotServer(Server):
    """A server that writes a snapshot when it is told to, and comes up with it after a kill."""

    def __init__(self, folder):
        self.folder = folder
        self._embedded = EmbeddedServer(extra_args=("--dir", str(folder)))

    def save(self):
        with self.broker() as broker:
            broker.client.save()
        copyfile(self.folder / "dump.rdb", self.folder / "kept")

    def roll_back(self):
        self.kill()
        copyfile(self.folder / "kept", self.folder / "dump.rdb")
        self.start()


def test_f13_a_server_that_comes_up_with_an_older_snapshot_under_load_loses_no_point(prefix, trace, tmp_path, report):
    folder = tmp_path / "data"
    folder.mkdir()
    with SnapshotServer(folder) as server, pointing_at(server.url):
        histories = mixture(20, trace)
        one, two = (WorkerProcess(folder=tmp_path, LEASE_SECONDS=1) for _ in range(2))
        with together(one, two):
            wait_until(lambda: any(item.ended is None for item in trace.executions()), 30, "a held lease")
            server.save()
            known = len(trace.executions())
            wait_until(lambda: len(trace.executions()) > known + 30, 30, "runs after the snapshot")
            server.roll_back()
            report("F13 restart with an old snapshot", histories)
