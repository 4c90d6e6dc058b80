"""F26: what an idle fleet costs Redis, and that it still starts at once what comes due anywhere."""

import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from django_delayq import conf, sync
from django_delayq.models import Run, Schedule
from django_delayq.recurrence.point import utcnow
from django_delayq.worker import timers, upkeep
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until
from tests.faults.harness.load import SECOND, schedules, soon
from tests.faults.harness.workers import WorkerProcess
from tests.support import claims_of

pytestmark = pytest.mark.django_db(transaction=True)
SHARDS = 16
#: What the budget is for, in commands per second and worker.
FLEET, BUDGET = 50, 0.3
#: The heads of places; and what one worker a minute counts in all of them.
LOOKS = ("zrange", "evalsha", "zcard", "hlen", "zcount", "zscore")
#: What this machine can run: the costs are of two kinds, per place and per worker, and are measured separate.
WORKERS = 12


@pytest.fixture(autouse=True)
def sixteen_shards(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": {"default": SHARDS, "mail": 1}}


@contextmanager
def fleet(count):
    """Run so many whole workers in threads of this process."""
    workers = [Worker(WorkerOptions(queues=("default",), threads=1)) for _ in range(count)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(workers[0].broker.read_workers()) == count, 60, "all workers on the list")
        yield workers
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(30)


def commands(broker):
    """Return the calls of each command since the last reset, those inside of scripts included."""
    stats = broker.client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): value["calls"] for name, value in stats.items()}
    return Counter({name: count for name, count in calls.items() if not name.startswith("config")})


@pytest.mark.long
def test_f26_an_idle_fleet_of_fifty_stays_within_its_budget(server):
    """Measured with twelve workers, for whole periods of everything that they do, then worked out for fifty.

    The full sweeps are of a constant number, whoever makes them, and the looks at places up to a number of workers;
    all else each worker does for itself. The delta sweeps ask the database only.
    """
    Schedule.objects.bulk_create(
        Schedule(name=f"s{n}", task="tests.faults.tasks.trace", kind="cron", cron="0 0 1 1 *", kwargs={"path": "/"})
        for n in range(100)
    )
    with server.broker() as broker, fleet(WORKERS) as workers:
        time.sleep(15 * timers.WORKERS_FIRST_SECONDS)  # at first they ask more often, and one sweeps
        assert all(worker.timers.workers == WORKERS for worker in workers)
        claimed = claims_of(workers)
        broker.client.config_resetstat()
        began = time.monotonic()
        time.sleep(max(timers.WORKERS_SECONDS, upkeep.HEARTBEAT_SECONDS))  # what is measured
        found, seconds = commands(broker), time.monotonic() - began
        assert claims_of(workers) == claimed, "nobody claims anything"
        broker.client.config_resetstat()
        sync.sweep_now(broker)
        sweep = commands(broker).total() / sync.sweep.FULL_SECONDS
    looks = sum(found.pop(name, 0) for name in LOOKS) / seconds
    own = found.total() / seconds / WORKERS
    more = FLEET / min(FLEET, timers.FEWEST_LOOKS)  # the looks of fifty, for one of twelve
    for_fifty = (looks * more + sweep) / FLEET + own
    print(f"{WORKERS} workers x {SHARDS} shards, per second: {looks:.2f} looks, {sweep:.2f} by full sweeps;")
    print(f"each worker for itself {own:.3f}: {dict(found)} in {seconds:.1f} s")
    print(f"per worker and second: {(looks + sweep) / WORKERS + own:.3f} with {WORKERS}, {for_fifty:.3f} with {FLEET}")
    assert looks < 2 * SHARDS / conf.get_config().idle_cap_seconds, "the places are shared"
    assert for_fifty <= BUDGET, found


def test_f26_what_comes_due_anywhere_starts_at_once_also_when_a_worker_was_killed(server, trace, tmp_path, report):
    """Three idle workers. Then one of them is killed right before points come due, which it knew of too.

    It stays on the list of those that live, and no worker looks by itself for so long that only the timers of the
    others can start them.
    """
    with server.broker() as broker:
        workers = [WorkerProcess(folder=tmp_path, IDLE_CAP_SECONDS=60) for _ in range(3)]
        with workers[0], workers[1], workers[2]:
            wait_until(lambda: len(broker.read_workers()) == 3, 60, "three workers")
            time.sleep(1.2 * timers.WORKERS_FIRST_SECONDS)  # until each has counted all
            due_at_once(trace, "before", report)
            dead = workers[0]
            name = next(name for name in broker.read_workers() if f":{dead.pid}:" in name)

            def kill():
                dead.kill()
                broker.client.zadd(f"{broker.config.prefix}:workers", {name: broker.read_now_ms() + 3_600_000})

            after = due_at_once(trace, "after", report, kill)
    assert after
    assert name not in {run.worker for run in after}


def due_at_once(trace, name, report, just_before=lambda: None):
    """Let points come due all over the shards; return their runs."""
    histories = schedules(60, trace, name=name, **soon(2))
    at = Schedule.objects.get(pk=histories[0].pk).at
    time.sleep(max(0.0, (at - utcnow()).total_seconds() - 0.5))
    just_before()
    report(f"F26 {name} one is killed", histories, until=at + SECOND)
    return list(Run.objects.filter(schedule_id__in=[history.pk for history in histories]))
