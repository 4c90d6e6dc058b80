"""Garbage and hostile values under every key of the prefix: nothing in Redis chooses code or arguments, no worker ends,
and all heals.
"""

import contextlib
import io
import json
import os
import pickle
import sys
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from django_delayq import actions, sync
from django_delayq.calls import parse_id
from django_delayq.index import keys
from django_delayq.index.scripts import read_hint
from django_delayq.models import Run, Schedule, ScheduleState
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.sync.layout import ForeignLayout
from django_delayq.worker import calling
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.faults.live import live_worker
from tests.integration.shard import PLACE
from tests.support import DAILY_CRON, YEARLY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

WORKER = "fuzzed"
TRAP = "tests.security.trap"
#: `DELAYQ_FUZZ_EXAMPLES=1000` searches for longer; each takes some tenths of a second.
EXAMPLES = int(os.environ.get("DELAYQ_FUZZ_EXAMPLES", "8"))
#: Nobody schedules these.
OTHERS = ("tests.app.tasks.noop", "tests.app.tasks.fail", f"{TRAP}.spring")


class Pickled:
    """What runs code where somebody unpickles it."""

    def __reduce__(self):
        return (exec, (f"import {TRAP}",))


TEXTS = [
    b"", b"0", b"1", b"-1", b"1.5", b"nan", b"-nan", b"inf", b"-inf", b"1e400", b"0x10", b"9" * 16, b"9" * 40,
    b"9" * 5000, b"9007199254740991", b"9007199254740993", b"a\nb\r\n", b"\0", b"\xff\xfe\x00",
    "é\u2028\u202e".encode(), "²".encode(), "１".encode(), b"../../etc/passwd", TRAP.encode(),
    *(name.encode() for name in OTHERS), b"{", b"null", b"[" * 50_000, b"{}", b'{"database": "x"}',
    b'{"database": 5, "shards": {}}', b'{"shards": {"default": "1"}}',
    b'{"database": "x", "version": 1, "shards": {"default": -1}}', b'{"queues": 5}',
    b'{"queues": [{}], "started": "x"}',
    b'{"queues": ["default"], "started": 1e400}', b"building:", b"building:\n", b"building:x", b"e1",
    json.dumps({"task": f"{TRAP}.spring", "args": ["x"], "kwargs": {"b": 5}}).encode(), pickle.dumps(Pickled()),
    b"return redis.call('FLUSHALL')", b"'); redis.call('FLUSHALL') --", b"%s %d {} {0.__class__}", b"*" * 5000,
    b"1 f 0s1 1s2", b"99999999999999999999 f 0s1", b"-", b"default:0 5", b"<script>alert(1)</script>",
]  # fmt: skip
SCORES = [0, -1, 1, 1.5, 5e14, 9e15, 1e300, float("inf"), float("-inf"), "now", "past", "soon"]
MEMBERS = [b"", b"s", b"s-1", b"s0", b"s999999", b"s" + b"9" * 18, b"s" + b"9" * 30, b"r1", b"r999999", b"x 0s1",
           b"s1\n", b"\xff", "s１".encode(), f"{TRAP}.spring".encode(), OTHERS[0].encode(), b"../s1",
           pickle.dumps(Pickled()),
           b"OURS", b"OFF", b"MAIL", b"GONE", b"JOB", b"LATER", b"jobs", b"j", b"jx"]  # fmt: skip
OF_THE_PREFIX = {name.partition(":")[2]: kind for name, kind in keys.list_prefix_keys("p").items()}
KINDS = {**keys.TYPES, **OF_THE_PREFIX}
assert len(KINDS) == len(keys.TYPES) + len(OF_THE_PREFIX)

texts = st.one_of(st.sampled_from(TEXTS), st.binary(max_size=40))
members = st.one_of(st.sampled_from(MEMBERS), st.binary(max_size=12))
scores = st.one_of(st.sampled_from(SCORES), st.floats(allow_nan=False))
WAYS = ["value", "value", "value", "foreign", "gone"]
attacks = st.tuples(
    st.sampled_from(sorted(KINDS)), st.sampled_from(WAYS), members, texts, scores
)  # fmt: skip


class Prefix:
    """The keys of the fuzzed prefix, and the schedules of an example."""

    def __init__(self, broker):
        self.broker, self.client = broker, broker.client
        names = keys.build_keys(broker.config.prefix, PLACE, WORKER)
        self.names = {**names, **{part: f"{broker.config.prefix}:{part}" for part in OF_THE_PREFIX}}
        self.rows = {}

    def fill(self):
        """Make due schedules, one that is not due, one paused, one of another queue, one deleted."""
        Run.objects.all().delete()
        Schedule.objects.all().delete()
        self.broker.purge()
        add = {"task": "tests.app.tasks.add", "kind": "cron", "cron": DAILY_CRON}
        self.rows = {
            "OURS": Schedule.objects.create(name="due", args=[1], kwargs={"b": 2}, **add),
            "MAIL": Schedule.objects.create(name="mail", args=[3], kwargs={"b": 4}, queue="mail", **add),
            "OFF": Schedule.objects.create(name="off", args=[5], enabled=False, **add),
            "GONE": Schedule.objects.create(name="gone", args=[6], **add),
            "LATER": Schedule.objects.create(name="later", args=[7], **add),
        }
        self.due = {name: make_due(self.broker, self.rows[name]) for name in ("OURS", "MAIL")}
        self.gone = self.rows["GONE"].pk
        self.rows["GONE"].delete()
        job, later = tasks.add.enqueue(*JOB[1], **JOB[2]), tasks.add.using(run_after=timedelta(days=1)).enqueue(66)
        self.jobs = {b"JOB": parse_id(job.id)[0], b"LATER": parse_id(later.id)[0]}

    def attack(self, part, how, member, text, score):
        """Write one hostile value, as who may write to Redis can."""
        name, kind = self.names[part], KINDS[part]
        member = b"j%d" % self.jobs[member] if member in self.jobs else member
        if member.decode("latin-1") in ("OURS", "OFF", "MAIL", "GONE"):
            key = member.decode()
            member = b"s%d" % (self.gone if key == "GONE" else self.rows[key].pk)
        now = self.broker.read_now_ms()
        if how == "gone":
            self.client.delete(name)
        elif how == "foreign":
            self.client.delete(name)
            self.client.rpush(name, text) if kind != "string" else self.client.hset(name, member, text)
        elif kind == "zset":
            at = {"now": now, "past": now - 10**6, "soon": now + 200}.get(score, score)
            self.client.zadd(name, {member: at}) if self.client.type(name) in (b"zset", b"none") else None
        elif kind == "hash":
            value = {"now": str(now), "past": str(now - 10**6), "soon": str(now + 200)}.get(score, text)
            self.client.hset(name, member, value) if self.client.type(name) in (b"hash", b"none") else None
        else:
            self.client.set(name, text)


@pytest.fixture
def spied(monkeypatch):
    """What was called with what, and what was unpickled, started or imported, while `armed`."""
    calls, deeds, armed = [], [], [True]
    real = calling.perform_task

    def perform_task(held, task, timeouts, /, *args, **kwargs):
        if held.member.startswith("j"):
            job_calls.append((task.module_path, args, kwargs))
        else:
            calls.append((task.module_path, held.outcome.schedule.name, args, kwargs, held.outcome.run.due_at))
        return real(held, task, timeouts, *args, **kwargs)

    def audit(event, args):
        if armed[0] and event in ("pickle.find_class", "os.system", "os.exec", "subprocess.Popen"):
            deeds.append((event, args))
        elif armed[0] and event == "import" and str(args[0]).startswith(TRAP):
            deeds.append((event, args[0]))

    job_calls = []
    monkeypatch.setattr(calling, "perform_task", perform_task)
    sys.addaudithook(audit)
    calls_of_jobs[:] = [job_calls]
    yield calls, deeds
    armed[0] = False


#: The calls of jobs of the test that runs.
calls_of_jobs = []
JOB = ("tests.app.tasks.add", (11,), {"b": 1})


def look():
    """Ask what people ask."""
    for command in (["delayq_status", "--timeout", "0.4"], ["delayq_status", "due"], ["delayq_sync", "--dry-run"]):
        with contextlib.suppress(SystemExit, CommandError):  # both say what is wrong
            call_command(*command, stdout=io.StringIO(), stderr=io.StringIO())


def allowed(prefix, calls):
    """Check that only enabled schedules ran, with the arguments of the database, for points that they have."""
    rows = {row.name: row for row in Schedule.objects.filter(enabled=True)}
    for path, name, args, kwargs, due_at in calls:
        row = rows[name]
        assert (path, list(args), kwargs) == (row.task, row.args, row.kwargs)
        assert row.recurrence.next_after(due_at - timedelta(microseconds=1)) == due_at, "a point that it does not have"
        assert due_at <= from_ms(prefix.broker.read_now_ms()), "before it was due"


def healed(prefix):
    """Sweep and work until nothing differs; every due point must then be decided, once."""
    for _ in range(3):
        run_burst(name=WORKER)  # repairs keys of a foreign type, which sweeps only name
        sync.sweep_now(prefix.broker)
    run_burst(name=WORKER)
    assert sync.sweep_fully(prefix.broker).lines == []
    assert sync.count_differences(prefix.broker).total == 0
    for name, due_at in prefix.due.items():
        row = prefix.rows[name]
        outcomes = Run.objects.filter(schedule_id=row.pk, origin="due", due_at=due_at)
        assert [run.status for run in outcomes] == ["succeeded"], name
        view = prefix.broker.read_views([(f"s{row.pk}", row.queue)])[0]
        assert view.point_ms == to_ms(row.recurrence.next_after(due_at))
        assert not view.leased
    assert ScheduleState.objects.filter(condition="broken").count() == 0
    states = dict(Run.objects.filter(origin="job").values_list("pk", "status"))
    assert states == {prefix.jobs[b"JOB"]: "succeeded", prefix.jobs[b"LATER"]: "queued"}
    fresh = tasks.add.enqueue(*JOB[1], **JOB[2])
    run_burst()
    fresh.refresh()
    assert fresh.return_value == 12


#: What fails is short enough, and each step of shrinking takes a second.
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.mark.everything
@example(damage=[("gen", "value", b"JOB", b"9007199254740991", 1000000.0)])
@example(damage=[("layout", "value", b"", b"[" * 50_000, 0)])
@example(damage=[("swept", "value", b"", b"[" * 50_000, 0)])
@example(damage=[("worker-details", "value", b"w", b"[" * 50_000, 0), ("workers", "value", b"w", b"", "now")])
@example(
    damage=[("worker-details", "value", b"w", b'{"queues": ["default"]}', 0), ("workers", "value", b"w", b"", "now")]
)
@example(damage=[("workers", "value", b"w", b"", float("inf"))])
@example(damage=[("upkeep", "value", b"", b"garbage", 0)])
@example(damage=[("epoch", "value", b"", b"building:", 0)])
@example(damage=[("epoch", "value", b"", b"\xff\xfe\0x", 0)])
@example(damage=[("due", "value", b"OFF", b"", "past"), ("point", "value", b"OFF", b"", "past")])
@example(damage=[("due", "value", b"GONE", b"", "past"), ("point", "value", b"GONE", b"", "past")])
@example(damage=[("point", "value", b"OURS", b"", "past")])
@example(damage=[("gen", "value", b"OURS", b"9007199254740991", 0)])
@example(damage=[("due", "value", b"JOB", b"", "past"), ("jobs-ready", "value", b"OURS", b"", "past")])
@example(damage=[("jobs", "value", b"LATER", b"", "past"), ("point", "value", b"LATER", b"", "past")])
@example(damage=[("ready", "value", b"jx", b"", float("-inf")), ("jobs", "value", b"s1", b"", "past")])
@example(damage=[("due", "value", b"jobs", b"", "past"), ("lease", "value", b"JOB", b"x y", 0)])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=WITHOUT_SHRINKING)
@given(damage=st.lists(attacks, min_size=1, max_size=8))
def test_nothing_in_redis_chooses_code_or_arguments_and_all_heals(broker, spied, damage):
    calls, deeds = spied
    prefix = Prefix(broker)
    prefix.fill()
    calls.clear()
    calls_of_jobs[0].clear()
    for attack in damage:
        prefix.attack(*attack)
    look()
    healed(prefix)
    allowed(prefix, calls)
    assert set(map(repr, calls_of_jobs[0])) == {repr(JOB)}, "its own call, and none before its time"
    assert deeds == []
    assert TRAP not in sys.modules


def test_of_made_up_points_of_before_an_edit_one_runs_the_schedules_own_call_and_is_recorded(broker, spied):
    """Rule R8 cannot tell it from a point of the definition that was edited away: SECURITY.md says so."""
    calls, _deeds = spied
    row = Schedule.objects.create(
        name="edited", task="tests.app.tasks.add", args=[1], kwargs={"b": 2}, kind="cron", cron=YEARLY_CRON
    )
    run_burst(name=WORKER)
    now = broker.read_now_ms()
    Schedule._base_manager.filter(pk=row.pk).update(created_at=from_ms(now - 10 * 86_400_000))
    row.refresh_from_db()
    row.description = "edited"
    row.save()
    prefix = Prefix(broker)
    before_it, decided = now - 11 * 86_400_000, now - 86_400_000 - 1
    for point in (before_it, now - 86_400_000, now - 86_400_000, decided, now - 3_600_000, now + 60_000):
        broker.client.zadd(prefix.names["due"], {f"s{row.pk}": now - 1000})
        broker.client.hset(prefix.names["point"], f"s{row.pk}", point)
        run_burst(name=WORKER)
    assert all((path, args, kwargs) == (row.task, (1,), {"b": 2}) for path, _, args, kwargs, _ in calls)
    ran = [to_ms(due_at) for *_, due_at in calls]
    assert ran == [now - 86_400_000], "one, once: with it all up to the edit is decided"
    recorded = [to_ms(run.due_at) for run in Run.objects.filter(status="succeeded").order_by("due_at")]
    assert recorded == ran
    assert sync.sweep_fully(broker).lines == []


HINTS = [text for text in TEXTS if len(text) < 100] + [
    "default:² 5".encode(), "default:１ 5".encode(), b"default:0 nan", b"default:0 inf", b"default:0 1e308",
    b"default:0 -1", b"default:999999999999999999999 5", b"default:0 " + b"9" * 5000, b"nowhere:0 5", b":0 5",
    b"default:0", b"s1", b"mail:7 0",
]  # fmt: skip


def test_hostile_hints_end_no_worker_and_run_nothing_early(broker, spied):
    calls, deeds = spied
    prefix = Prefix(broker)
    prefix.fill()
    calls.clear()
    channel = keys.build_wake_channel(broker.config.prefix)
    with live_worker(WORKER) as live:
        wait_until(lambda: len(calls) == 2, 10, "both due points")
        wait_until(lambda: broker.client.publish(channel, b"default:0 1") == 1, 10, "a worker that listens")
        for hint in HINTS:
            read_hint(hint.decode("utf-8", "surrogateescape"))
            broker.client.publish(channel, hint)
        order = actions.run_now(prefix.rows["OURS"])
        wait_until(lambda: len(calls) == 3, 10, "an order behind all these hints")
        assert live.alive
    assert [name for _, name, *_ in calls].count("due") == 2
    order.refresh_from_db()
    assert order.status == "succeeded"
    assert deeds == []


def test_a_well_made_forged_layout_makes_a_worker_refuse_and_change_nothing(broker):
    """The one thing that who may write to Redis can end: it looks like another database's prefix."""
    prefix = Prefix(broker)
    prefix.fill()
    broker.write_note("layout", json.dumps({"database": "x", "version": 1, "shards": {"default": 1, "mail": 1}}))
    before = broker.read_views([(f"s{row.pk}", row.queue) for row in prefix.rows.values() if row.pk])
    with pytest.raises(ForeignLayout, match="adopt"):
        run_burst(name=WORKER)
    assert broker.read_views([(f"s{row.pk}", row.queue) for row in prefix.rows.values() if row.pk]) == before
    assert not Run.objects.exclude(status="queued").exists()
    sync.adopt(broker)
    run_burst(name=WORKER)
    assert Run.objects.filter(status="succeeded").count() == 3  # two due points, one job
