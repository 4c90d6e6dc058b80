"""Every kind of connection that an alias can ask for carries a whole worker, its hints, the status and the sweeps."""

import json
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import StringIO

import pytest
import redis
from django.core.management import call_command
from django.test import override_settings

from django_delayq.embedded import EmbeddedServer
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import Broker
from django_delayq.models import Run, Schedule
from tests.acceptance.processes import first_look
from tests.acceptance.support import wait_until
from tests.engines.tls import TLSFront
from tests.faults.harness.shapes import free_ports
from tests.faults.harness.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)

USER = ("--user", "shop", "on", ">s3cr3t%", "~*", "&*", "+@all")


@contextmanager
def alias(settings, location, **options):
    """Have the default alias be this one."""
    default = {**settings.CACHES["default"], "LOCATION": location, "OPTIONS": options}
    with override_settings(CACHES={**settings.CACHES, "default": default}):
        yield


@contextmanager
def unix(settings, folder):
    with EmbeddedServer() as server, alias(settings, server.url):
        yield


@contextmanager
def tcp(settings, folder, query="", extra=(), login="", required="", **options):
    (port,) = free_ports(1)
    server = EmbeddedServer(extra_args=("--port", str(port), "--bind", "127.0.0.1", *extra))
    with server, alias(settings, f"redis://{login}127.0.0.1:{port}/3{query}", **options):
        if required:
            with redis.Redis.from_url(server.url) as admin:
                admin.config_set("requirepass", required)
        yield


def resp2(settings, folder):
    return tcp(settings, folder, "?protocol=2")


def resp3(settings, folder):
    return tcp(settings, folder, CONNECTION_POOL_KWARGS={"protocol": 3})


def password_in_the_address(settings, folder):
    return tcp(
        settings, folder, extra=("--user", "shop", "on", ">s3cr3t%", "~*", "&*", "+@all"), login="shop:s3cr3t%25@"
    )


def password_in_the_options(settings, folder):
    return tcp(settings, folder, required="s3cr3t%", PASSWORD="s3cr3t%")


@contextmanager
def tls(settings, folder):
    with EmbeddedServer() as server, TLSFront(server.socket, folder) as front:
        trusted = {"ssl_ca_certs": str(front.authority)}
        with alias(settings, f"rediss://localhost:{front.port}/0", CONNECTION_POOL_KWARGS=trusted):
            yield


def python_parser(settings, folder):
    return tcp(settings, folder, PARSER_CLASS="redis.connection._RESP2Parser", CONNECTION_POOL_KWARGS={"protocol": 2})


def problems():
    """Return the problems that the status tells of."""
    said = StringIO()
    with suppress(SystemExit):
        call_command("delayq_status", "--json", "--timeout", "60", stdout=said)
    print(said.getvalue())
    return json.loads(said.getvalue())["problems"]


KINDS = [unix, tcp, resp2, resp3, python_parser, password_in_the_address, password_in_the_options, tls]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_worker_its_hints_the_status_and_the_sweep_work_on(kind, settings, tmp_path, capsys):
    with kind(settings, tmp_path):
        Schedule.objects.create(
            name="often", task="tests.app.tasks.noop", kind="every", every=timedelta(seconds=1), missed="all"
        )
        with WorkerProcess(folder=tmp_path, IDLE_CAP_SECONDS=60).ready() as worker:
            wait_until(lambda: Run.objects.filter(status="succeeded").count() >= 2, 30, "runs")
            late = Schedule.objects.create(
                name="late", task="tests.app.tasks.noop", kind="every", every=timedelta(seconds=1), queue="mail"
            )
            runs = Run.objects.filter(schedule=late, status="succeeded").order_by("claimed_at")
            wait_until(runs.exists, what="the hint")
            broker = Broker(timeout_seconds=5)
            limit = first_look(broker, worker.pid) + timedelta(seconds=60)
            broker.close()
            assert runs[0].claimed_at < limit, "a regular look at the queue found it, no hint"
            wait_until(lambda: problems() == [], what="a status without problems")
            said = StringIO()
            call_command("delayq_sync", stdout=said)
            assert "2 schedules checked" in said.getvalue()
            worker.term()
            assert worker.wait() == 0
        said = capsys.readouterr()
        assert "s3cr3t" not in worker.log() + said.out + said.err
        assert "Traceback" not in worker.log()


def test_a_certificate_that_nobody_vouches_for_is_refused_with_its_reason(settings, tmp_path):
    with EmbeddedServer() as server, TLSFront(server.socket, tmp_path) as front:
        with alias(settings, f"rediss://localhost:{front.port}/0"):
            broker = Broker(timeout_seconds=5)
        with pytest.raises(BrokerUnavailable, match=r"(?i)certificate verify failed"):
            broker.read_layout()
        broker.close()
