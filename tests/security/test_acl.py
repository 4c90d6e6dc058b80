"""The minimal Redis user of SECURITY.md: everything works with it, and with one rule less something does not."""

import io
from datetime import timedelta

import pytest
import redis
from django.core.management import call_command

from django_delayq import actions
from django_delayq.embedded import EmbeddedServer
from django_delayq.exceptions import BrokerError
from django_delayq.index import Broker, EntryDefinition, MinuteCounts, Settlement, keys, probe
from django_delayq.index.connection import DamagedKeys
from django_delayq.models import Run, Schedule
from tests.acceptance.support import wait_until
from tests.faults.live import live_worker
from tests.integration.mirroring import absent, mirrored, schedule
from tests.integration.shard import LEASE_MS, PLACE
from tests.security import acl
from tests.support import make_due, run_burst

PREFIX = "locked"
RULES = acl.rules(PREFIX)


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def admin(server):
    """The server's default user, for what the app itself does not do."""
    client = redis.Redis.from_url(server.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def locked(settings, prefix, server, admin):
    """The app as the user of the document, on a server and under a prefix of its own."""
    good, own = settings.CACHES, settings.DELAYQ
    acl.make_user(admin, RULES)
    settings.DELAYQ = {**own, "PREFIX": PREFIX}
    location = {"LOCATION": acl.url_of(server.url)}
    settings.CACHES = {**good, "default": {**good["default"], **location}}
    broker = Broker(timeout_seconds=5, worker="test")
    yield broker
    broker.close()
    settings.CACHES, settings.DELAYQ = good, own


def said(*command):
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


def key(broker, part):
    return keys.build_keys(broker.config.prefix, PLACE, broker.worker)[part]


@pytest.mark.django_db(transaction=True)
def test_worker_mirror_and_commands_work_under_the_minimal_user(locked, admin, settings):
    row, fails, tries = schedule("ok"), schedule("fails", task="tests.app.tasks.fail"), schedule(
        "tries", task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(milliseconds=10)
    )  # fmt: skip
    for each in (row, fails, tries):
        make_due(locked, each)
    run_burst()
    outcomes = {run.schedule_name: (run.status, run.attempt) for run in Run.objects.all()}
    assert (outcomes["ok"], outcomes["fails"][0]) == (("succeeded", 1), "failed")
    wait_until(lambda: run_burst() is not None and Run.objects.get(schedule=tries).status == "failed", 10)
    row.cron = "30 4 * * *"
    row.save()
    assert mirrored(locked, row), "an edit is mirrored at once"
    gone = schedule("gone")
    pk = gone.pk
    gone.delete()
    assert absent(locked, Schedule(pk=pk, queue="default"))
    admin.script_flush()
    order = actions.run_now(row)
    run_burst()
    order.refresh_from_db()
    assert order.status == "succeeded"
    admin.delete(*admin.keys("*"))
    run_burst()
    assert mirrored(locked, row), "rebuilt after a flush"
    with live_worker():
        began = Run.objects.count()
        actions.run_now(row)  # a hint wakes the worker
        wait_until(lambda: Run.objects.filter(status="succeeded").count() > began - 2, 10)
        assert "Workers" in said("delayq_status", "--timeout", "5")
    admin.set(key(locked, "due"), "foreign")
    run_burst()  # repairs it
    run_burst()  # rebuilds the shard
    assert mirrored(locked, row), "a key of a foreign type is repaired"
    assert "0 would be changed" in said("delayq_sync", "--dry-run")
    assert "schedules checked" in said("delayq_sync")
    assert "schedules checked" in said("delayq_sync", "--adopt")
    assert "Next" in said("delayq_status", "ok")
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 2}
    run_burst()
    assert mirrored(Broker(timeout_seconds=5), row), "rebuilt for another number of shards"
    assert "Removed" in said("delayq_sync", "--purge")
    assert admin.keys("*") == []
    assert acl.denied(admin) == set()


def steps(broker, admin):
    """Yield what the app asks of Redis, each as one call. Needs no database."""
    place, lease = PLACE, {"lease_ms": LEASE_MS}
    point = broker.read_now_ms() + 60_000
    yield lambda: broker.read_info("memory")
    yield lambda: broker.claim_layout("{}")
    yield lambda: broker.read_layout()
    yield lambda: broker.write_note("layout", "{}")
    yield lambda: broker.write_heartbeat(1, "{}")
    yield lambda: broker.read_workers()
    yield lambda: broker.count_live_workers(since_ms=0)
    yield lambda: broker.take_upkeep()
    yield lambda: broker.keep_upkeep()
    yield lambda: broker.end_upkeep()
    yield lambda: broker.write_note("pruned", "{}")
    yield lambda: broker.write_note("swept", "{}")
    yield lambda: broker.read_note("swept")
    yield lambda: broker.write_note("missed", "1")
    yield lambda: broker.read_note("missed")
    yield lambda: broker.swap_epochs([place], None, "building:x", ttl_ms=10_000)
    yield lambda: broker.swap_epochs([place], "building:x", "e")
    hints = broker.receive_hints(timeout_seconds=0.01)
    yield lambda: next(hints)
    yield lambda: broker.upsert(place, [EntryDefinition(f"s{n}", 1, point, point) for n in (1, 2, 3)])
    yield lambda: broker.upsert(place, [EntryDefinition(f"r{n}", 1, 1, 0) for n in (1, 2, 3)], mode="new")
    jobs = [EntryDefinition(f"j{n}", 1, n, 0, priority=n) for n in range(1, 6)]
    yield lambda: broker.upsert(place, jobs, mode="new")
    yield lambda: broker.upsert(place, [EntryDefinition("j5", 1, point, point)], mode="move")
    claims = []
    yield lambda: claims.append(broker.claim(place, limit=9, request=1, **lease))
    yield lambda: broker.claim(place, limit=9, request=1, **lease)
    fence = claims[0].fence if claims else ""
    yield lambda: broker.renew(place, [("r1", fence)], **lease)
    yield lambda: broker.settle(place, [Settlement("r1", fence, "lapsed")])
    yield lambda: broker.settle(place, [Settlement("r2", fence, "retry")])
    yield lambda: broker.settle(place, [Settlement("r3", fence, "drop", 0, 1)])
    yield lambda: broker.remove(place, [("s1", 9, "")])
    yield lambda: broker.remove(place, [("j5", 9, "")], gone=True)
    yield lambda: probe.look(broker)
    yield lambda: broker.read_views([("s2", "default"), ("j1", "default")])
    yield lambda: list(broker.scan(place))
    yield lambda: broker.read_stats([place])
    yield lambda: broker.read_heads([place])
    yield lambda: broker.read_epochs([place])
    counts = MinuteCounts(broker)
    yield lambda: counts.add("default", 1, [(("points", "default", "t"), {"succeeded": 1})])
    yield lambda: [counts.read("default", minute) for minute in counts.list_minutes("default", 0, 2)]
    yield lambda: counts.forget("default", 1)
    yield lambda: broker.count_leases([place])
    yield lambda: broker.take_over([place])
    yield lambda: broker.remove_heartbeat()
    yield lambda: admin.set(key(broker, "due"), "foreign")
    yield lambda: broker.repair(place)
    yield lambda: broker.drop([place])
    yield lambda: broker.purge()
    hints.close()


def play(broker, admin):
    """Do every step, also after one that is refused; return the errors."""
    errors = []
    try:
        for step in steps(broker, admin):
            try:
                step()
            except (BrokerError, StopIteration) as error:
                errors.append(error)
    except BrokerError as error:  # not even the clock
        errors.append(error)
    return errors


def test_every_command_of_the_app_is_allowed(locked, admin):
    admin.script_flush()
    assert play(locked, admin) == []
    assert acl.denied(admin) == set()


@pytest.mark.parametrize("rule", acl.grants(RULES))
def test_each_rule_is_needed(locked, admin, rule):
    acl.make_user(admin, [word for word in RULES if word != rule])
    admin.script_flush()
    errors = play(locked, admin)
    assert errors or acl.denied(admin)
    assert not any(isinstance(error, DamagedKeys) for error in errors)
    kind = {"+": "command", "~": "key", "&": "channel"}[rule[0]]
    assert kind in {reason for reason, _ in acl.denied(admin)}


@pytest.mark.parametrize(
    "command",
    [
        ["FLUSHALL"],
        ["CONFIG", "GET", "*"],
        ["KEYS", "*"],
        ["ACL", "LIST"],
        ["SCRIPT", "FLUSH"],
        ["GET", "delayq:layout"],
        ["SET", "other", "x"],
        ["SET", "{locked2:default:0}:due", "x"],
        ["PUBLISH", "other", "x"],
        ["EVAL", "return redis.call('GET', KEYS[1])", "1", "other"],
        ["EVAL", "return redis.call('FLUSHALL')", "0"],
    ],
    ids=" ".join,
)
def test_the_user_can_do_nothing_to_others(locked, command):
    with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission|can't run|ACL"):
        locked.client.execute_command(*command)


def test_without_its_password_nobody_is_that_user(server, locked):
    client = redis.Redis.from_url(acl.url_of(server.url, password="guessed"))
    with pytest.raises(redis.exceptions.AuthenticationError):
        client.get("x")
    client.close()
