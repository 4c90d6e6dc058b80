"""When a worker turns to which place: what it knows of heads, how often it looks, and what it leaves to others."""

import random
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import Broker, Shard
from django_delayq.models import Run, Schedule
from django_delayq.recurrence import from_ms
from django_delayq.worker import timers
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from django_delayq.worker.timers import FEWEST_LOOKS, Timers
from tests.acceptance.support import wait_until
from tests.integration.mirroring import Running, schedule
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)
CAP_SECONDS = 5.0


@pytest.fixture
def clock(monkeypatch):
    """Stands still, and every random pause is the longest."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(timers, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(random.Random, "uniform", lambda self, least, most: most)
    return made


def timers_of(broker, shards=2, alone=False):
    places = [Shard("default", n) for n in range(shards)]
    return Timers(broker, places, cap_seconds=CAP_SECONDS, alone=alone)


def beat(broker, count, ago_seconds=0.0):
    for number in range(count):
        own = Broker(timeout_seconds=5, worker=f"w{number} of {ago_seconds}")
        own.write_heartbeat(broker.read_now_ms() - int(ago_seconds * 1000), "{}")
        own.close()


def pause(made, clock):
    """Return after how many seconds the next look is."""
    made._look_at = clock.now
    assert made.look(clock.now) is not None
    assert made.look(clock.now) is None
    return made._look_at - clock.now


@pytest.mark.parametrize(("workers", "times"), [(0, 1), (1, 1), (2, 2), (5, 5), (50, FEWEST_LOOKS)])
def test_the_more_workers_live_the_less_often_each_of_them_looks(broker, clock, workers, times):
    beat(broker, workers)
    beat(broker, 9, ago_seconds=timers.DEAD_AFTER_SECONDS + 1)
    assert pause(timers_of(broker), clock) == times * CAP_SECONDS
    assert pause(timers_of(broker, alone=True), clock) == CAP_SECONDS


def test_how_many_live_is_not_asked_at_every_look(broker, clock):
    made = timers_of(broker)
    assert pause(made, clock) == CAP_SECONDS
    beat(broker, 4)
    clock.now += timers.WORKERS_FIRST_SECONDS - 0.1
    assert pause(made, clock) == CAP_SECONDS
    clock.now += 0.1
    assert pause(made, clock) == 4 * CAP_SECONDS


def test_a_look_finds_heads_that_no_hint_told_of_and_tells_what_is_empty(broker, clock):
    made = timers_of(broker)
    for place in made.shards:
        made.note_due(place, None, broker.read_now_ms(), known=True)
    first, second = made.shards
    broker.client.zadd(f"{{{broker.config.prefix}:{first}}}:due", {"s1": broker.read_now_ms() + 3000})
    assert made.look(clock.now) == [second]
    assert made.list_turns(clock.now) == []
    assert made.list_turns(clock.now + 3.5) == [first]


def test_a_claim_whose_reply_was_lost_is_repeated_at_once(broker, monkeypatch):
    """Its members are leased to nobody who knows it, so that the head is a lease's end, and no reason to claim."""
    worker = Worker(WorkerOptions(queues=("default",), threads=1, name="me"))
    make_due(broker, schedule())
    (place,) = worker.shards
    real = worker.broker.claim

    def lose_the_reply(*args, **kwargs):
        real(*args, **kwargs)
        monkeypatch.setattr(worker.broker, "claim", real)
        raise BrokerUnavailable("gone")

    monkeypatch.setattr(worker.broker, "claim", lose_the_reply)
    assert not worker.claims.claim(place, 1)
    assert worker.timers.list_turns(time.monotonic()) == [place]
    assert worker.claims.claim(place, 1)
    assert len(worker.keeper) == 1
    worker.dispatcher.release_all()
    worker.broker.close()


def test_what_is_due_while_a_worker_is_busy_is_run_by_the_others(broker, tmp_path):
    gate = tmp_path / "gate"
    with ExitStack() as stack:
        workers = [stack.enter_context(Running(threads=1)).worker for _ in range(3)]
        wait_until(lambda: len(broker.read_workers()) == 3, 30, "all workers")
        args = [str(tmp_path / "blocker"), "blocker", 0, str(gate)]
        make_due(broker, schedule("blocker", task="tests.app.tasks.note", args=args))
        busy = []
        wait_until(lambda: busy.extend(w for w in workers if w.slots.running) or busy, 30)
        at = from_ms(int((time.time() + 1) * 1000))
        Schedule.objects.bulk_create(
            Schedule(name=f"s{n}", task="tests.app.tasks.noop", kind="once", at=at) for n in range(40)
        )
        wait_until(lambda: Run.objects.filter(status="succeeded").count() == 40, what="runs of all beside the busy one")
        assert busy[0].slots.running == 1, "it was busy all the time"
        gate.touch()
