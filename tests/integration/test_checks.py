"""`manage.py check`: what it finds without a connection, what `--deploy` adds, and the documented table of it all."""

import io
import re
from pathlib import Path

import pytest
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from django_delayq import checks as own
from tests.acceptance.support import ROOT
from tests.faults.harness.servers import Server, pointing_at

BACKEND = "django_redis.cache.RedisCache"
CORE = "django.core.cache.backends.redis.RedisCache"
CLUSTER = {"CONNECTION_FACTORY": "django_delayq.index.connection.ClusterConnectionFactory"}
SENTINELS = {"SENTINELS": [("127.0.0.1", 1)]}
CLOSED = "redis://127.0.0.1:1/0"


def found(*, deploy=False):
    """Return the messages by their id, after making sure that each has a hint."""
    messages = checks.run_checks(tags=["delayq"], include_deployment_checks=deploy)
    assert all(message.hint for message in messages)
    assert len({message.id for message in messages}) == len(messages)
    return {message.id: message for message in messages}


def caches(location, options=None, **others):
    """Let the schedules be at an address, and other aliases beside it; opens no connection by itself."""
    default = {"BACKEND": BACKEND, "LOCATION": location, "OPTIONS": options or {}}
    return override_settings(CACHES={"default": default, **others})


def other(location, backend=BACKEND, **options):
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


@pytest.fixture
def server(prefix):
    with Server() as one, pointing_at(one.url):
        yield one


# -- without a connection

SAME = [
    ("the database by default", "redis://127.0.0.1:1", other(CLOSED)),
    ("the database in the query", CLOSED, other("redis://127.0.0.1:1?db=0")),
    ("another user", CLOSED, other("redis://cache:secret@127.0.0.1:1/0")),
    ("TLS", CLOSED, other("rediss://127.0.0.1:1/0")),
    ("Django's backend", CLOSED, other(CLOSED, CORE)),
    ("Django's backend, database in the options", "redis://127.0.0.1:1/3", other("redis://127.0.0.1:1", CORE, db=3)),
    ("the pool's database", "redis://127.0.0.1:1/3", other("redis://127.0.0.1:1", CONNECTION_POOL_KWARGS={"db": 3})),
    ("a unix socket", "unix:///tmp/no?db=1", other("unix:///tmp/no?db=1")),
    ("a replica beside it", CLOSED, other(["redis://127.0.0.1:2/0", CLOSED])),
]
APART = [
    ("another database", CLOSED, other("redis://127.0.0.1:1/1")),
    ("another port", CLOSED, other("redis://127.0.0.1:2/0")),
    ("another host", CLOSED, other("redis://127.0.0.2:1/0")),
    ("another socket", "unix:///tmp/no?db=1", other("unix:///tmp/other?db=1")),
    ("another database of a socket", "unix:///tmp/no?db=1", other("unix:///tmp/no?db=2")),
    ("no Redis", CLOSED, {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}),
    ("a backend that is not there", CLOSED, {"BACKEND": "nowhere.Cache", "LOCATION": CLOSED}),
    ("an address that is none", CLOSED, other("127.0.0.1:1")),
]


@pytest.mark.parametrize(("location", "beside"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_a_cache_whose_clear_takes_the_schedules_with_it_is_warned_of(location, beside):
    with caches(location, sessions=beside):
        messages = found()
        assert set(messages) == {"delayq.W001"}
    assert "'sessions'" in messages["delayq.W001"].msg
    assert "another database" in messages["delayq.W001"].hint


@pytest.mark.parametrize(("location", "beside"), [row[1:] for row in APART], ids=[row[0] for row in APART])
def test_a_cache_in_another_database_is_not(location, beside):
    with caches(location, sessions=beside):
        assert found() == {}


def test_clear_does_take_everything_in_the_database_with_it(server, settings):
    """What the warning says, tried: a key prefix of the cache spares nothing."""
    from django.core.cache import caches as opened

    with caches(server.url, sessions={**other(server.url), "KEY_PREFIX": "cache"}), server.broker() as broker:
        assert "delayq.W001" in found()
        broker.claim_layout("{}")
        opened["sessions"].set("a", 1)
        assert broker.read_layout() == "{}"
        opened["sessions"].clear()
        assert broker.read_layout() is None


def test_sentinels_that_nobody_asks_are_an_error():
    with caches("redis://orders/0", SENTINELS):
        assert set(found()) == {"delayq.E002"}
    with caches("redis://orders/0", {**SENTINELS, **CLUSTER}):
        assert "delayq.E002" in found()
    asked = {**SENTINELS, "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory"}
    with caches("redis://orders/0", asked):
        assert found() == {}
    with caches("redis://orders/0", asked, sessions=other("redis://orders/0", SENTINELS=[("127.0.0.2", 1)])):
        assert found() == {}, "another Sentinel has another master of that name"


@pytest.mark.parametrize(
    ("shards", "wanted"),
    [(1, {"delayq.W004"}), ({"default": 1}, {"delayq.W004"}), (6, set()), ({"mail": 6}, set())],
)
def test_a_cluster_of_which_each_queue_uses_one_node_is_warned_of(settings, shards, wanted):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": shards}
    with caches("redis://127.0.0.1:1", CLUSTER):
        assert set(found()) == wanted
    with caches("redis://127.0.0.1:1"):
        assert found() == {}


def test_a_cluster_with_a_database_number_is_an_error():
    with caches("redis://127.0.0.1:1/1", CLUSTER):
        messages = found(deploy=True)
    assert set(messages) == {"delayq.E002"}
    assert "number 0" in messages["delayq.E002"].msg


# -- check --deploy


def deploy():
    """Return what `check --deploy` prints."""
    out = io.StringIO()
    call_command("check", "--deploy", "--tag", "delayq", stderr=out, stdout=out, no_color=True)
    return out.getvalue()


def test_nothing_is_reported_of_a_server_that_is_well(prefix):
    with Server() as server, pointing_at(server.url):
        assert found() == found(deploy=True) == {}
        with server.broker() as broker:
            assert broker.client.dbsize() == 0


def test_a_server_that_evicts_fails_the_check(server):
    with server.broker() as broker:
        broker.client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(SystemCheckError, match=r"delayq\.E004.*allkeys-lru"):
        deploy()
    assert found() == {}, "no connection without --deploy"


def test_a_server_without_the_scripts_fails_the_check(prefix):
    with Server(extra_args=("--rename-command", "EVALSHA", "another")) as server, pointing_at(server.url):
        assert "delayq.E004" in found(deploy=True)


@pytest.mark.parametrize(("denied", "wanted"), [(["-info", "-config"], {"delayq.W002"}), (["-config"], set())])
def test_a_user_who_may_not_ask_for_info_is_warned(server, denied, wanted):
    with server.broker() as broker:
        rules = ("on", ">secret", "~*", "&*", "+@all", *denied)
        broker.client.execute_command("ACL", "SETUSER", "app", "reset", *rules)
    with pointing_at(server.url.replace("unix://", "unix://app:secret@")):
        assert set(found(deploy=True)) == wanted


def test_redis_that_does_not_answer_is_a_warning_and_the_command_succeeds(settings):
    with caches(CLOSED):
        text = deploy()
        assert set(found(deploy=True)) == {"delayq.W002"}
    assert "delayq.W002" in text
    assert "Redis could not be inspected" in text
    with caches("redis://127.0.0.1:1", CLUSTER):
        settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 6}
        assert set(found(deploy=True)) == {"delayq.W002"}


def test_a_login_that_is_refused_is_a_warning_too(server):
    with pointing_at(server.url.replace("unix://", "unix://nobody:secret@")):
        messages = found(deploy=True)
    assert set(messages) == {"delayq.W002"}
    assert "refused the login" in messages["delayq.W002"].msg


def test_settings_that_cannot_be_read_are_told_once():
    for value, wanted in (({"SHARD": 1}, "delayq.E001"), ({"REDIS": "nowhere", "REDIS_IN_TESTS": True}, "delayq.E002")):
        with override_settings(DELAYQ=value):
            assert set(found(deploy=True)) == {wanted}


# -- docs/reference.md


def test_the_reference_tells_each_id_of_the_code_once_and_no_other():
    files = (Path(ROOT) / "django_delayq").rglob("*.py")
    used = set(re.findall(r"\bdelayq\.[EWI]\d{3}\b", "\n".join(path.read_text("utf-8") for path in files)))
    section = (Path(ROOT) / "docs/reference.md").read_text("utf-8").partition("\n## Checks\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    told = [row[1].strip().strip("`") for row in rows]
    assert told == sorted(used, key=lambda name: ("EWI".index(name[7]), name))
    deploys = {row[1].strip().strip("`") for row in rows if "--deploy" in row[2]}
    assert deploys == {f"delayq.{name}" for name in ("E004", "W002", "W003", "W007")}
    assert all(len(row) == 6 and all(cell.strip() for cell in row[1:5]) for row in rows)


def test_every_check_is_registered_and_those_that_ask_servers_for_a_deployment_only():
    registry = checks.registry.registry
    plain, deployed = (
        {check for check in found if "delayq" in check.tags}
        for found in (registry.registered_checks, registry.deployment_checks)
    )
    assert deployed == {own.check_server, own.check_sqlite}
    assert plain == {check for name, check in vars(own).items() if name.startswith("check_")} - deployed
