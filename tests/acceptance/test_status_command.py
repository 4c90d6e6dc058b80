"""`manage.py delayq_status` as a probe meets it: a process of its own, against real servers in trouble."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_delayq.models import Schedule
from tests.acceptance.support import PATIENCE_SECONDS, ROOT, command_environment, wait_until, worker
from tests.faults.harness.shapes import free_ports
from tests.support import DAILY_CRON

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "s3cr3t-of-the-shop"
#: Where all servers answer, however slowly.
PATIENT = ("--timeout", "60")


def probe(*arguments: str, environment: dict[str, str] | None = None, **options: Any) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the JSON; nothing else may be said."""
    done = subprocess.run(
        [sys.executable, "-m", "django", "delayq_status", "--json", *arguments],
        env=command_environment(environment, **options),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,  # a process that hung would never end
    )
    assert SECRET not in done.stdout + done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["status"] == done.returncode
    return done.returncode, found


def codes(found: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in found["problems"]]


@contextmanager
def silent_server() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_it_is_well_while_a_worker_serves_every_queue_and_not_after_it_has_left(broker):
    Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron=DAILY_CRON)
    assert codes(probe(*PATIENT)[1]) == ["no_worker", "not_built", "not_built"]
    found = {}

    def well():
        nonlocal found
        code, found = probe(*PATIENT)
        return code == 0

    with worker() as process:
        wait_until(lambda: broker.read_workers())
        wait_until(well)
        assert [item["live"] for item in found["workers"]] == [True]
        assert found["workers"][0]["queues"] == ["default", "mail"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    code, found = probe(*PATIENT)
    assert (code, codes(found), found["workers"]) == (1, ["no_worker"], [])


def test_servers_that_hang_are_told_and_do_not_hold_it_up(broker):
    with silent_server() as redis, silent_server() as database:
        both = {
            "DELAYQ_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:{redis}/0",
            "DATABASE_URL": f"postgresql://shop:{SECRET}@127.0.0.1:{database}/shop",
            "DELAYQ_TEST_DATABASE": "shop",
        }
        code, found = probe(environment=both)
        assert (code, codes(found)) == (2, ["redis_unreachable", "database_unreachable"])
        assert (found["redis"], found["database"]) == (None, None)
        del both["DELAYQ_REDIS_URL"]
        code, found = probe("--timeout", "4", environment=both)  # twice as long, for the one that answers
        assert (code, codes(found)[:1], found["database"]) == (2, ["database_unreachable"], None)
        assert [server["memory_policy"] for server in found["redis"]] == ["noeviction"]


def test_what_a_refused_connection_says_reveals_no_password():
    port = free_ports(1)[0]
    both = {
        "DELAYQ_REDIS_URL": f"redis://shop:{SECRET}@127.0.0.1:{port}/0",
        "DATABASE_URL": f"postgresql://shop:{SECRET}@127.0.0.1:{port}/shop",
        "DELAYQ_TEST_DATABASE": "shop",
    }
    assert codes(probe(*PATIENT, environment=both)[1]) == ["redis_unreachable", "database_unreachable"]


def test_it_looks_at_as_many_shards_as_there_may_be(broker):
    code, found = probe(*PATIENT, SHARDS=4096, QUEUES=["default"])
    assert (code, codes(found)) == (1, ["not_built"])
    assert len(found["shards"]) == 4096
