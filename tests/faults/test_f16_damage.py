"""F16: one field in Redis is deleted, turned into garbage or into a foreign type under a worker that works.

It is healed, the worker never ends, no point is lost or doubled, and none runs before it is due.
"""

from datetime import timedelta

import pytest
from django.db.models import F

from django_delayq.index import keys
from django_delayq.models import Run, Schedule
from django_delayq.recurrence.point import utcnow
from django_delayq.sync import sweep
from django_delayq.worker import upkeep
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.oracle import check
from tests.faults.harness.verdict import goes_on
from tests.faults.live import live_worker
from tests.support import DAILY_CRON, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

WORKER = "live"
OF_THE_PREFIX = {name.partition(":")[2]: kind for name, kind in keys.list_prefix_keys("p").items()}
MEMBER_HASHES = ("point", "gen", "lease", "attempts")
GARBAGE = ("", "garbage", "-1", "1e999", "nan", "99999999999999999999", "9007199254740991", b"\xff\x00", "0")


@pytest.fixture
def dense(settings, monkeypatch):
    """Points every 0.1 s, sweeps and leases that end soon: what takes minutes elsewhere shows within a second."""
    settings.DELAYQ = {
        **settings.DELAYQ, "MIN_INTERVAL_SECONDS": 0.05, "LEASE_SECONDS": 1, "IDLE_CAP_SECONDS": 0.1,
    }  # fmt: skip
    for name, seconds in (("DELTA_SECONDS", 0.2), ("HEARTBEAT_SECONDS", 0.3), ("HINT_TIMEOUT_SECONDS", 0.1)):
        monkeypatch.setattr(upkeep, name, seconds)
    monkeypatch.setattr(sweep, "FULL_SECONDS", 0.3)


class Damage:
    """Damages one part of the shard of the queue `default`, or one key of the prefix."""

    def __init__(self, broker, part, members):
        self.client, self.part, self.members = broker.client, part, members
        names = keys.build_keys(broker.config.prefix, broker.list_shards()[0], WORKER)
        self.name = names.get(part, f"{broker.config.prefix}:{part}")
        self.kind = {**keys.TYPES, **OF_THE_PREFIX}[part]

    def deleted(self):
        if self.part == "due":
            self.client.zrem(self.name, *self.members)
        elif self.part in MEMBER_HASHES:
            self.client.hdel(self.name, *self.members)
        else:
            self.client.delete(self.name)

    def garbage(self):
        if self.part == "due":
            scores = ("-inf", 0, "inf", 9e15, -1, 1e300)
            self.client.zadd(self.name, {name: scores[n % len(scores)] for n, name in enumerate(self.members)})
        elif self.part in MEMBER_HASHES:
            values = {name: GARBAGE[n % len(GARBAGE)] for n, name in enumerate(self.members)}
            self.client.hset(self.name, mapping=values)
        elif self.kind == "string":
            self.client.set(self.name, "garbage")
        elif self.kind == "zset":
            self.client.zadd(self.name, {"garbage": "inf"})
        else:
            self.client.hset(self.name, "garbage", "{")

    def foreign(self):
        pipeline = self.client.pipeline(transaction=True)
        pipeline.delete(self.name)
        if self.kind == "string":
            pipeline.rpush(self.name, "x")
        else:
            pipeline.set(self.name, "x")
        pipeline.execute()


@pytest.mark.parametrize("part", [*keys.PARTS, *OF_THE_PREFIX])
def test_f16_a_damaged_field_is_healed_and_no_point_is_lost(broker, dense, trace, report, part):
    quick = schedules(6, trace, every=timedelta(seconds=0.1))
    slow = schedules(6, trace, every=timedelta(seconds=0.2), seconds=0.15, name="slow", overlap="queue_one")
    histories = quick + slow
    damage = Damage(broker, part, [f"s{history.pk}" for history in histories])
    slowest = 0.0
    with live_worker(WORKER, threads=16):
        for inflict in (damage.deleted, damage.garbage, damage.foreign):
            wait_until(lambda: any(item.ended is None for item in trace.executions()), 10, "a held lease")
            inflict()
            slowest = max(slowest, goes_on(broker, histories))
        until = utcnow()
        report(f"F16 {part}", histories, until=until, recovery=slowest)
    assert not Run.objects.filter(claimed_at__lt=F("due_at")).exists(), "a point ran before it was due"
    assert check(histories, until, trace).clean, "it was so while it ran, and has not stayed so"


SCORES = [float("-inf"), "now"]


@pytest.mark.parametrize("score", SCORES)
def test_f16_a_damaged_score_starts_no_point_before_it_is_due(broker, report, score):
    row = Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron=DAILY_CRON)
    run_burst()
    point = broker.read_views([(f"s{row.pk}", "default")])[0].point_ms
    damaged = {f"s{row.pk}": broker.read_now_ms() if score == "now" else score}
    broker.client.zadd(keys.build_keys(broker.config.prefix, broker.list_shards()[0])["due"], damaged)
    worker = Worker(WorkerOptions(queues=("default", "mail"), burst=True))  # one that has swept long ago
    worker.upkeep.begin = lambda **how: None
    worker.run()
    assert not Run.objects.exists()
    seen = broker.read_views([(f"s{row.pk}", "default")])[0]
    assert (seen.point_ms, seen.score_ms, seen.leased) == (point, point, False)
