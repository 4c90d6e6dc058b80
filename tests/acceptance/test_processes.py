"""Real worker processes: many at once, killed, stopped, and a Redis that vanishes under them."""

import signal
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db.models import Max

from django_delayq.broker import Broker
from django_delayq.broker.web import forget_broker
from django_delayq.embedded import EmbeddedServer
from django_delayq.models import Run, Schedule, Status
from django_delayq.timing import from_ms, to_ms
from django_delayq.worker.timers import WORKERS_FIRST_SECONDS
from tests.acceptance.processes import first_look, wait_for_workers
from tests.acceptance.support import PATIENCE_SECONDS, lines, output_of, wait_until, worker
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)


def note(name, path, seconds=0.0, gate="", **values):
    values = {"kind": "cron", "cron": DAILY_CRON, **values}
    kwargs = {"path": str(path), "text": name, "seconds": seconds, "gate": str(gate)}
    return Schedule.objects.create(name=name, task="tests.app.tasks.note", kwargs=kwargs, **values)


def test_a_thousand_schedules_in_one_second_and_three_workers_give_a_thousand_outcomes(broker):
    made = from_ms(broker.now_ms()) - timedelta(hours=1) + timedelta(seconds=6)
    rows = [
        Schedule(name=f"n{n}", task="tests.app.tasks.noop", kind="every", every=timedelta(hours=1), created_at=made)
        for n in range(1000)
    ]
    Schedule.objects.bulk_create(rows)
    Schedule.objects.update(effective_from=made)
    with worker() as one, worker() as two, worker() as three:
        wait_until(lambda: Run.objects.finished().count() >= 1000, 40)
        for process in (one, two, three):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(PATIENCE_SECONDS) for process in (one, two, three)] == [0, 0, 0]
    runs = list(Run.objects.values_list("schedule_id", "status", "worker"))
    assert len(runs) == 1000
    assert {status for _, status, _ in runs} == {"succeeded"}
    assert max(Counter(pk for pk, _, _ in runs).values()) == 1
    left = broker.stats(broker.shards()[:1])[0]
    assert (left.due, left.leased) == (0, 0), "a second outcome may come"
    assert Run.objects.filter(claimed_at__lt=from_ms(to_ms(made + timedelta(hours=1)))).count() == 0


def test_a_killed_workers_point_runs_again_after_the_lease_and_is_recorded_once(broker, tmp_path):
    path, gate = tmp_path / "f", tmp_path / "gate"
    point = make_due(broker, note("slow", path, gate=gate))
    options = {"LEASE_SECONDS": 2, "IDLE_CAP_SECONDS": 60}
    with worker(**options) as first, worker(**options) as second:
        wait_for_workers(broker, 2)
        wait_until(lambda: lines(path))
        victim, other = (first, second) if first.pid == int(lines(path)[0][2]) else (second, first)
        look = first_look(broker, other.pid)
        victim.kill()
        gate.touch()
        wait_until(lambda: Run.objects.finished().exists())
    assert [words[0] for words in lines(path)] == ["start", "start", "end"]
    again = float(lines(path)[1][3])
    assert again < look.timestamp() + 60, "the end of the lease woke nobody; a regular look found the point"
    run = Run.objects.get()
    assert (run.due_at, run.status, run.reclaims) == (point, Status.SUCCEEDED, 1)


def test_sigterm_finishes_what_runs_and_hands_back_what_does_not(broker, tmp_path):
    path = tmp_path / "f"
    for n in range(6):
        make_due(broker, note(f"s{n}", path, seconds=1.0))
    lease = 2 * PATIENCE_SECONDS  # whose end nothing waits for
    with worker("--threads", "2", LEASE_SECONDS=lease) as process:
        wait_until(lambda: len(lines(path)) >= 2)
        process.send_signal(signal.SIGTERM)
        with worker("--threads", "8", LEASE_SECONDS=lease):
            assert process.wait(PATIENCE_SECONDS) == 0
            wait_until(lambda: Run.objects.filter(status="succeeded").count() == 6)
    words = lines(path)
    assert Counter(w[1] for w in words if w[0] == "start") == Counter({f"s{n}": 1 for n in range(6)})
    assert Run.objects.aggregate(Max("reclaims"))["reclaims__max"] == 0


def test_a_second_signal_ends_it_at_once(broker, tmp_path):
    path = tmp_path / "f"
    make_due(broker, note("slow", path, seconds=600))
    with worker() as process:
        wait_until(lambda: lines(path))
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "Stopping: 1 still running" in output_of(process))  # else the two would be one
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 1  # the task would need 600 s


@pytest.fixture
def own_server(settings):
    """A server that this test may flush and stop."""
    with EmbeddedServer() as server:
        before = settings.CACHES["default"]["LOCATION"]
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": server.url}}
        forget_broker()
        server.broker = Broker(timeout_seconds=5)
        yield server
        server.broker.close()
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": before}}
        forget_broker()


def no_gaps(rows):
    """Every point between the first and the last decided one of each schedule has exactly one outcome."""
    for row in rows:
        points = []
        for run in row.runs.filter(origin="due").order_by("due_at"):
            assert run.status in ("succeeded", "skipped"), (row.name, run.status, run.reason)
            points.append((run.due_at, run.last_due_at or run.due_at))
        assert points, row.name
        for (_, last), (first, _) in pairwise(points):
            assert first - last == timedelta(seconds=1), (row.name, last, first)


def test_a_flush_under_load_loses_no_point(own_server):
    rows = [
        Schedule.objects.create(name=f"s{n}", task="tests.app.tasks.noop", kind="every", every=timedelta(seconds=1))
        for n in range(20)
    ]
    with worker() as one, worker() as two:
        wait_until(lambda: Run.objects.count() > 40)
        broker = own_server.broker
        for _ in range(2):
            broker.client.flushall()
            count = Run.objects.count()
            wait_until(lambda count=count: Run.objects.count() > count + 40, 15)
        assert broker.layout() is not None
        for process in (one, two):
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
    no_gaps(rows)


def test_redis_stopped_and_started_empty_loses_no_point(own_server):
    rows = [
        Schedule.objects.create(name=f"s{n}", task="tests.app.tasks.noop", kind="every", every=timedelta(seconds=1))
        for n in range(20)
    ]
    with worker() as one, worker() as two:
        wait_until(lambda: Run.objects.count() > 40)
        home = own_server.socket.parent
        own_server.stop()
        rows[0].description = "saved without Redis"
        rows[0].save()
        time.sleep(3)  # an outage long enough to miss points
        with EmbeddedServer(home=home):
            count = Run.objects.count()
            wait_until(lambda: Run.objects.count() > count + 40, 20)
            wait_until(lambda: not Schedule.objects.unmirrored().exists(), 10)
            for process in (one, two):
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_SECONDS) == 0
    no_gaps(rows)


def test_an_idle_worker_hardly_talks_to_redis(own_server, tmp_path):
    note("later", tmp_path / "f", cron="0 0 1 1 *")
    broker = own_server.broker
    seconds, seen = 12, []

    def asked():
        broker.client.config_resetstat()
        time.sleep(seconds)  # what is measured
        stats = broker.client.info("commandstats").items()
        seen.append({name: value["calls"] for name, value in stats if "config" not in name and "info" not in name})
        return sum(seen[-1].values()) / seconds

    with worker("--queues", "default"):
        wait_until(lambda: broker.workers())
        time.sleep(4 * WORKERS_FIRST_SECONDS)  # the sweeps at its start; at first it asks more often how many live
        wait_until(lambda: asked() <= 0.5, what=f"a worker that hardly asks anything; {seen}")  # from some time on
