"""Who looks at which place: rendezvous hashing over the live workers, and the timers that stand in for a dead one."""

import json
import threading
import time
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pytest

from django_delayq.broker import Broker, Shard
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.mirror import swept
from django_delayq.models import Run, Schedule
from django_delayq.timing import from_ms, to_ms
from django_delayq.worker import timers
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from django_delayq.worker.timers import ABSENT_SECONDS, ALL_SECONDS, Ranks, Timers
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.faults.harness.servers import Server, pointing_at
from tests.support import DAILY_CRON, YEARLY_CRON, claims_of, make_due

PLACES = [Shard("default", shard) for shard in range(16)] + [Shard("mail", shard) for shard in range(4)]
FLEET = {f"host:{number}:abc": frozenset(("default", "mail")) for number in range(50)}


def all_ranks(workers):
    found = {name: Ranks(name, PLACES) for name in workers}
    for ranks in found.values():
        ranks.update(workers)
    return found


def firsts(workers):
    """Return who is the first at each place, after making sure that all agree."""
    made = all_ranks(workers)
    for place in PLACES:
        assert sorted(ranks.rank(place) for ranks in made.values()) == list(range(len(workers)))
    return {place: name for name, ranks in made.items() for place in PLACES if ranks.rank(place) == 0}


# -- the order


def test_the_workers_agree_on_one_order_for_each_place():
    found = firsts(FLEET)
    assert set(found) == set(PLACES)
    assert max(Counter(found.values()).values()) <= 4, "the places are spread"


def test_a_worker_that_goes_hands_over_its_own_places_only():
    before = firsts(FLEET)
    gone = next(iter(before.values()))
    after = firsts({name: queues for name, queues in FLEET.items() if name != gone})
    assert {place for place in PLACES if before[place] != after[place]} == {
        place for place, name in before.items() if name == gone
    }


def test_a_worker_of_another_queue_does_not_count_and_one_that_says_nothing_does():
    mail = {**dict.fromkeys(FLEET, frozenset(("mail",))), "me": frozenset(("default", "mail"))}
    ranks = Ranks("me", PLACES)
    ranks.update(mail)
    assert [ranks.rank(place) for place in PLACES if place.queue == "default"] == [0] * 16
    silent = Ranks("me", PLACES)
    silent.update(dict.fromkeys(FLEET))
    assert any(silent.rank(place) for place in PLACES)


def test_each_head_has_an_order_of_its_own_on_which_the_workers_agree():
    made, first = all_ranks(FLEET), Counter()
    for head_ms in range(200):
        ranks = {name: len(ranks.before(PLACES[0], head_ms, 0.0)) for name, ranks in list(made.items())[:5]}
        assert len(set(ranks.values())) == 5
    for head_ms in range(120):
        heads = [name for name, ranks in made.items() if not ranks.before(PLACES[0], head_ms, 0.0)]
        assert len(heads) == 1
        first.update(heads)
    assert len(first) > 40, "the work is spread over the fleet, although it is one place"


def test_the_last_one_comes_half_a_second_after_the_first_at_most():
    for count in (2, 5, 50):
        made = all_ranks(dict(list(FLEET.items())[:count]))
        assert all((count - 1) * ranks.step_seconds <= ALL_SECONDS for ranks in made.values())
        assert all(0.009 <= ranks.step_seconds <= 0.1 for ranks in made.values())


def test_who_did_not_come_is_passed_over_for_a_while_by_who_had_to_come_instead():
    made = all_ranks(FLEET)
    name, head_ms = next(
        (name, head_ms)
        for head_ms in range(1000)
        for name, ranks in made.items()
        if len(ranks.before(PLACES[0], head_ms, 0.0)) == 2
    )
    ranks = made[name]
    ranks.did_not_come(ranks.before(PLACES[0], head_ms, 0.0), 0.0)
    assert ranks.before(PLACES[0], head_ms, 0.0) == []
    assert len(ranks.before(PLACES[0], head_ms, ABSENT_SECONDS)) == 2
    fresh = all_ranks(FLEET)[name]
    assert [ranks.rank(place) for place in PLACES] == [fresh.rank(place) for place in PLACES]


# -- the timers

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server(prefix):
    """A server of the test's own, whose commands nobody else adds to."""
    with Server() as own, pointing_at(own.url):
        yield own


@pytest.fixture
def sixteen(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 16, "QUEUES": ["default"]}


def timers_of(name, count=16, cap_seconds=5.0):
    broker = Broker(timeout_seconds=5, worker=name)
    return Timers(broker, [Shard("default", n) for n in range(count)], cap_seconds=cap_seconds, alone=False)


def beat(broker, name, ago_seconds=0.0, details=None):
    own = Broker(timeout_seconds=5, worker=name)
    text = json.dumps({"queues": ["default"]}) if details is None else details
    own.heartbeat(broker.now_ms() - int(ago_seconds * 1000), text)
    own.close()


def looked_at(broker, made, now):
    """Return how many places the timers ask for."""
    broker.client.config_resetstat()
    made.look(now)
    return broker.client.info("commandstats").get("cmdstat_zrange", {}).get("calls", 0)


def test_each_looks_at_its_own_places_and_now_and_then_at_those_it_is_second_for(sixteen, server):
    with server.broker() as broker:
        names = [f"w{n}" for n in range(4)]
        for name in names:
            beat(broker, name)
        everybody = [timers_of(name) for name in names]
        first = [looked_at(broker, made, 0.0) for made in everybody]
        assert sum(first) == 16
        times = [5.0 * n for n in range(1, timers.SECOND_EVERY)]
        later = [[looked_at(broker, made, at) for at in times] for made in everybody]
        assert [sum(counts) for counts in zip(*later, strict=True)] == [16] * (timers.SECOND_EVERY - 2) + [32]


def test_the_dead_leave_their_share(sixteen, broker):
    beat(broker, "me")
    beat(broker, "dead", ago_seconds=timers.DEAD_AFTER_SECONDS + 1)
    beat(broker, "alive", ago_seconds=timers.DEAD_AFTER_SECONDS - 10)
    beat(broker, "of-another-queue", details=json.dumps({"queues": ["mail"]}))
    mine = timers_of("me")
    mine.look(0.0)
    ranks = {mine.ranks.rank(place) for place in mine.shards}
    assert ranks == {0, 1}
    for name in ("alive", "dead"):
        broker.client.zrem(f"{broker.config.prefix}:workers", name)
    mine.look(timers.WORKERS_FIRST_SECONDS - 0.1)
    assert {mine.ranks.rank(place) for place in mine.shards} == {0, 1}, "who lives is not asked at every look"
    mine.look(timers.WORKERS_FIRST_SECONDS)
    assert {mine.ranks.rank(place) for place in mine.shards} == {0}


class Shared:
    """The timers of one of two workers, and a place at whose head the other one comes first."""

    def __init__(self, broker):
        for name in ("me", "other"):
            beat(broker, name)
        self.timers = timers_of("me")
        self.timers.look(0.0)
        self.head_ms = broker.now_ms() - 5000
        for place in self.timers.shards:
            self.timers.claimed(place, broker.now_ms(), None)
        self.mine = [place for place in self.timers.shards if not self.before(place)]
        self.others = [place for place in self.timers.shards if self.before(place)]

    def before(self, place):
        return self.timers.ranks.before(place, self.head_ms, time.monotonic())

    def turns(self):
        return self.timers.turns(time.monotonic())


def test_a_place_is_left_to_others_for_a_moment_and_not_all_the_time(sixteen, broker, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(timers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for name in ("me", "other"):
        beat(broker, name)
    made = timers_of("me")
    made.look(clock.now)
    place, another = made.shards[:2]
    told = []
    for clock.now in (1000.0, 1000.9, 1001.0, 1009.9, 1010.0, 1010.5, 1012.0):
        told.append(made.stand_back(place))
    assert told == [True, True, False, False, True, True, False]
    assert made._not_before[place] == 1011.0
    assert made.stand_back(another)


def test_a_head_that_others_have_taken_costs_one_read_and_no_claim(sixteen, broker):
    shared = Shared(broker)
    for place in (shared.mine[0], shared.others[0]):
        shared.timers.due_at_ms(place, shared.head_ms)
    assert shared.turns() == [shared.mine[0]], "the first one claims without a look"


def test_a_head_that_is_still_there_is_claimed_and_who_did_not_take_it_is_passed_over(sixteen, broker):
    shared = Shared(broker)
    place, another = shared.others[:2]
    broker.client.zadd(f"{{{broker.config.prefix}:{place}}}:due", {"s1": shared.head_ms})
    shared.timers.due_at_ms(place, shared.head_ms)
    assert shared.turns() == [place]
    assert shared.before(another) == []


def test_a_later_head_that_has_come_to_stand_there_is_waited_for(sixteen, broker):
    began = time.monotonic()
    shared = Shared(broker)
    place = shared.others[0]
    broker.client.zadd(f"{{{broker.config.prefix}:{place}}}:due", {"s1": shared.head_ms + 65_000})
    shared.timers.due_at_ms(place, shared.head_ms)
    assert shared.turns() == []
    assert shared.before(place), "the other one has taken the first head"
    assert began + 59.99 <= shared.timers._turn[place] <= time.monotonic() + 60.01 + ALL_SECONDS


def test_a_claim_whose_reply_was_lost_is_repeated_at_once_also_where_others_come_first(sixteen, broker, monkeypatch):
    """Its members are leased to nobody who knows it, so that the head is a lease's end, and no reason to claim."""
    worker = Worker(WorkerOptions(queues=("default",), threads=1, name="me"))
    rows = [
        Schedule.objects.create(name=f"s{n}", task="tests.app.tasks.noop", kind="cron", cron=DAILY_CRON)
        for n in range(40)
    ]
    for name in ("me", "other"):
        beat(broker, name)
    worker.timers.look(0.0)
    late_ms = broker.now_ms() - 5000
    place = next(place for place in worker.shards if worker.timers.ranks.before(place, late_ms, time.monotonic()))
    make_due(broker, next(row for row in rows if broker.shard_of(f"s{row.pk}", "default") == place))
    for other in worker.shards:
        worker.timers.claimed(other, broker.now_ms(), None)
    worker.timers.due_at_ms(place, late_ms)
    real = worker.broker.claim

    def lose_the_reply(*args, **kwargs):
        real(*args, **kwargs)
        monkeypatch.setattr(worker.broker, "claim", real)
        raise BrokerUnavailable("gone")

    monkeypatch.setattr(worker.broker, "claim", lose_the_reply)
    assert not worker.claims.claim(place, lambda: 1)
    assert worker.timers.turns(time.monotonic()) == [place]
    assert worker.claims.claim(place, lambda: 1)
    assert len(worker.keeper) == 1
    worker.dispatcher.release_all()
    worker.broker.close()


# -- a fleet


class Fleet:
    """Workers in threads of this process."""

    def __init__(self, count, **options):
        self.workers = [Worker(WorkerOptions(queues=("default",), **{"threads": 1, **options})) for _ in range(count)]
        self._threads = [threading.Thread(target=worker.run, daemon=True) for worker in self.workers]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self.workers[0].broker.workers()) == len(self.workers), 30, "all workers")
        for worker in self.workers:  # each may have asked before the last one was there
            worker.timers._workers_at = 0.0
            worker.wake()
        wait_until(lambda: all(len(worker.timers._queues) == len(self.workers) for worker in self.workers), 30)
        return self

    def __exit__(self, *exc_info):
        for worker in self.workers:
            worker.stop()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def claims(self):
        """Return how many claims there were."""
        return claims_of(self.workers)


def once(name, seconds):
    at = from_ms(int((time.time() + seconds) * 1000))
    return Schedule(name=name, task="tests.app.tasks.noop", kind="once", at=at)


def test_one_head_wakes_one_worker(sixteen, broker):
    """Before, each worker claimed at each head."""
    Schedule.objects.create(name="far", task="tests.app.tasks.noop", kind="cron", cron=YEARLY_CRON)
    with Fleet(5) as fleet:
        wait_until(lambda: swept.read_last(broker), what="the sweep at the start, which tells of heads")
        wait_until(lambda: still(fleet.claims, 2 * ALL_SECONDS / 5), what="the end of the claims at the start")
        before = fleet.claims()
        Schedule.objects.bulk_create([once(f"s{n}", 0.6 + n * 0.3) for n in range(5)])
        wait_until(lambda: Run.objects.filter(status="succeeded").count() == 5, 30)
        time.sleep(ALL_SECONDS)  # the last one's turn
        claims = fleet.claims() - before
        step_seconds = fleet.workers[0].timers.ranks.step_seconds
    late = sum(run.lag / timedelta(seconds=step_seconds) for run in Run.objects.all())
    assert claims <= 5 * 2.5 + late, "one each, some found that nothing is left; the next ones where it was late"


def still(count, seconds):
    """Say whether that is the same after so many seconds."""
    before = count()
    time.sleep(seconds)
    return count() == before


def shard_of(broker, row):
    return broker.shard_of(f"s{row.pk}", "default")


def test_what_is_due_where_the_first_one_is_busy_is_run_by_the_others(sixteen, broker, tmp_path):
    gate = tmp_path / "gate"
    with Fleet(3) as fleet:
        all_ranks = {worker.options.name: worker for worker in fleet.workers}
        blocker = Schedule.objects.create(
            name="blocker",
            task="tests.app.tasks.note",
            args=[str(tmp_path / "blocker"), "blocker", 0, str(gate)],
            kind="cron",
            cron=DAILY_CRON,
        )
        make_due(broker, blocker)
        busy = []
        wait_until(lambda: busy.extend(w for w in fleet.workers if w.slots.running) or busy, 30)
        for worker in fleet.workers:
            worker.timers.ranks._absent.clear()  # nobody has noticed yet
        rows = Schedule.objects.bulk_create([once(f"s{n}", 1) for n in range(40)])
        mine = [row for row in rows if not busy[0].timers.ranks.before(shard_of(broker, row), to_ms(row.at), 0.0)]
        assert mine and len(all_ranks) == 3
        wait_until(lambda: Run.objects.filter(status="succeeded").count() == 40, what="runs of all beside the busy one")
        assert busy[0].slots.running == 1, "it was busy all the time"
        gate.touch()
