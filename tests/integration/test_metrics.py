"""Metrics in Prometheus' text format: counters that never fall, gauges that say how all stands; and probes."""

import errno
import json
import re
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from socketserver import TCPServer

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client, override_settings
from django.urls import include, path
from prometheus_client import Counter
from prometheus_client.parser import text_string_to_metric_families

from django_delayq import conf
from django_delayq.index import web
from django_delayq.models import Schedule
from django_delayq.monitoring import health, views
from django_delayq.worker import http
from django_delayq.worker.http import Server, build_pages
from tests.acceptance.support import ROOT, wait_until
from tests.app import tasks
from tests.faults.live import live_worker
from tests.integration.mirroring import schedule
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)

urlpatterns = [path("delayq/", include("django_delayq.monitoring.urls")), path("open", views.open_metrics)]
TOKEN = "a-token-of-the-tests"
FROM_TASKS = Counter("shop_sales", "What a project counts itself.")


@pytest.fixture(autouse=True)
def site(settings):
    settings.ROOT_URLCONF = __name__
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKEN": TOKEN}


def parsed(text):
    """Return the values of samples by name and labels; the parser refuses what Prometheus would."""
    families = list(text_string_to_metric_families(text if isinstance(text, str) else text.decode()))
    assert len({family.name for family in families}) == len(families)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(found, name, **labels):
    """Return the one value of a name with these labels, whatever others it has; None where there is none."""
    values = [number for (known, own), number in found.items() if known == name and labels.items() <= dict(own).items()]
    assert len(values) < 2, values
    return values[0] if values else None


@contextmanager
def port_of(worker):
    with Server("127.0.0.1", 0, build_pages(worker)) as http:
        yield http.server_port


def get(port, page="/metrics"):
    """Return status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def fleet():
    response = Client().get("/delayq/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert response.status_code == 200 and response["Content-Type"].startswith("text/plain; version=")
    return parsed(response.content)


# -- a worker's own


def test_a_worker_tells_what_it_has_counted_as_prometheus_wants_it(broker):
    with live_worker() as live, port_of(live.worker) as port:
        for n in range(3):
            make_due(broker, schedule(f"adds {n}", task="tests.app.tasks.add", args=[n]))
        make_due(broker, schedule("fails", task="tests.app.tasks.fail"))
        make_due(broker, schedule("late", missed="skip", grace=timedelta(seconds=1)), timedelta(days=1))
        tasks.add.using(queue_name="mail").enqueue(1)
        FROM_TASKS.inc(2)

        def all_told():
            found = parsed(get(port)[1])
            return sum(n for (name, own), n in found.items() if name == "delayq_duration_seconds_count") == 5 and found

        wait_until(all_told)
        found = all_told()
        own = {"kind": "points", "queue": "default", "task": "tests.app.tasks.add"}
        assert value(found, "delayq_outcomes_total", **own, outcome="succeeded", reason="") == 3
        assert value(found, "delayq_outcomes_total", **own, outcome="failed", reason="") == 0, "told before the first"
        assert value(found, "delayq_latency_seconds_count", **own) == 3
        assert 0 < value(found, "delayq_duration_seconds_sum", **own) < 30
        buckets = [(dict(key)["le"], n) for (name, key), n in found.items()
                   if name == "delayq_latency_seconds_bucket" and own.items() <= dict(key).items()]  # fmt: skip
        assert [n for _, n in buckets] == sorted(n for _, n in buckets), "cumulative"
        assert buckets[0][0] == "0.001" and buckets[-1] == ("+Inf", 3)
        failed = {"kind": "points", "queue": "default", "task": "tests.app.tasks.fail"}
        assert value(found, "delayq_outcomes_total", **failed, outcome="failed") == 1
        mail = {"kind": "jobs", "queue": "mail", "task": "tests.app.tasks.add"}
        assert value(found, "delayq_outcomes_total", **mail, outcome="succeeded") == 1
        assert value(found, "delayq_outcomes_total", outcome="skipped", reason="missed") >= 1
        assert value(found, "delayq_worker_threads") == 8
        assert value(found, "shop_sales_total") == FROM_TASKS._value.get(), "what the project counts"


def test_counters_do_not_fall_when_redis_is_flushed_and_the_rebuild_is_counted(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "IDLE_CAP_SECONDS": 0.2}
    with live_worker() as live, port_of(live.worker) as port:
        make_due(broker, schedule("adds", task="tests.app.tasks.add", args=[1]))
        wait_until(lambda: value(parsed(get(port)[1]), "delayq_outcomes_total", outcome="succeeded") == 1)
        before = value(parsed(get(port)[1]), "delayq_rebuilds_total")
        broker.purge()
        wait_until(lambda: value(parsed(get(port)[1]), "delayq_rebuilds_total") > before)
        assert value(parsed(get(port)[1]), "delayq_outcomes_total", outcome="succeeded") == 1


@pytest.fixture
def families(broker):
    """All that a worker tells which has run something, of itself and of the fleet."""
    make_due(broker, schedule("fails", task="tests.app.tasks.fail"))
    with live_worker() as live, port_of(live.worker) as port:
        wait_until(lambda: "delayq_duration_seconds_sum" in get(port)[1])
        wait_until(lambda: "delayq_last_hour_outcomes" in get(port, "/fleet")[1])
        texts = [get(port, page)[1] for page in ("/metrics", "/fleet")]
    return [family for text in texts for family in text_string_to_metric_families(text)]


def test_every_name_follows_the_conventions(families):
    ours = [family for family in families if family.name.startswith("delayq_")]
    assert len(ours) > 20
    for family in ours:
        assert re.fullmatch(r"delayq_[a-z_]+", family.name) and family.documentation
        assert not re.search(r"_(ms|us|minutes|milliseconds|count|sum|bucket|total)$", family.name)
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            assert sample.labels.keys() <= {"kind", "queue", "task", "outcome", "reason", "le", "quantile", "service",
                                            "code"}  # fmt: skip
    documented = (ROOT / "docs/observability.md").read_text("utf-8")
    names = {family.name + ("_total" if family.type == "counter" else "") for family in ours}
    told = set(re.findall(r"^\| (`delayq_.*?) \|", documented, re.M))
    assert names <= {name for cell in told for name in re.findall(r"`(\w+)`", cell)} | {"delayq_problem"}


# -- how all stands


def test_the_view_tells_how_all_stands(broker):
    make_due(broker, schedule("waits"))
    tasks.add.using(queue_name="mail").enqueue(1)
    found = fleet()
    assert value(found, "delayq_up", service="redis") == value(found, "delayq_up", service="database") == 1
    assert value(found, "delayq_queue_depth", kind="points", queue="default") == 1
    assert value(found, "delayq_queue_oldest_seconds", queue="default") > 60
    assert value(found, "delayq_queue_depth", kind="jobs", queue="mail") == 1
    assert value(found, "delayq_queue_depth", kind="points", queue="mail") == 0
    assert value(found, "delayq_queue_scheduled", kind="jobs", queue="mail") == 0
    tasks.add.using(queue_name="mail", run_after=timedelta(hours=1)).enqueue(1)
    assert value(fleet(), "delayq_queue_scheduled", kind="jobs", queue="mail") == 1
    assert (value(found, "delayq_workers"), value(found, "delayq_index_differences")) == (0, 0)
    assert value(found, "delayq_problem", code="no_worker") == 1
    tasks.fail.enqueue()
    tasks.fail.using(queue_name="mail").enqueue()
    with live_worker():
        wait_until(lambda: value(fleet(), "delayq_last_hour_outcomes", kind="jobs", queue="mail", outcome="failed"))
        found = fleet()
        assert value(found, "delayq_workers") == value(found, "delayq_queue_workers", queue="mail") == 1
        assert value(found, "delayq_problem", code="no_worker") is None
    assert value(found, "delayq_failed_jobs", queue="default") == value(found, "delayq_failed_jobs", queue="mail") == 1
    assert value(found, "delayq_queue_depth", kind="points", queue="default") == 0
    assert value(found, "delayq_last_hour_latency_seconds", kind="points", queue="default", quantile="0.95") > 0
    assert (value(found, "delayq_overloaded"), value(found, "delayq_recently_missed")) == (0, 0)
    assert value(found, "delayq_problem", code="unknown_tasks") is None
    Schedule._base_manager.update(generation=10**6, task="shop.tasks.gone")
    found = fleet()
    assert value(found, "delayq_index_differences") == value(found, "delayq_problem", code="unknown_tasks") == 1


def test_what_does_not_answer_is_left_out(broker):
    schedule()
    web.open_breaker()
    found = fleet()
    assert value(found, "delayq_up", service="redis") == 0 and value(found, "delayq_up", service="database") == 1
    assert value(found, "delayq_queue_depth", kind="points", queue="default") is None
    assert value(found, "delayq_overloaded") == 0


def test_the_view_wants_the_token_and_the_open_one_none(settings):
    for said in ("", "Bearer wrong", f"Basic {TOKEN}", TOKEN):
        response = Client().get("/delayq/metrics", headers={"Authorization": said} if said else {})
        assert (response.status_code, response.content) == (401, b"")
    assert Client().post("/delayq/metrics").status_code == 405
    assert b"delayq_up" in Client().get("/open").content
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKEN": ""}
    for header in ({}, {"Authorization": "Bearer "}):
        response = Client().get("/delayq/metrics", headers=header)
        assert response.status_code == 403 and b"METRICS_TOKEN" in response.content


def test_a_token_that_is_no_token_is_refused_and_not_shown():
    refusal = pytest.raises(ImproperlyConfigured, match="at least 16 characters")
    with override_settings(DELAYQ={"METRICS_TOKEN": "hunter2"}), refusal as refused:
        conf.get_config()
    assert "hunter2" not in str(refused.value)
    with override_settings(DELAYQ={"METRICS_TOKEN": TOKEN}):
        assert TOKEN not in repr(conf.get_config())


# -- probes


def test_the_probes_of_the_web(monkeypatch):
    assert Client().get("/delayq/healthz").content == b"ok\n"
    assert Client().get("/delayq/readyz").content == b"ok\n"
    web.open_breaker()
    response = Client().get("/delayq/readyz")
    assert (response.status_code, response.content) == (503, b"redis\n")
    assert Client().get("/delayq/healthz").status_code == 200


def test_ready_is_nobody_whose_database_is_away(monkeypatch):
    class Away:
        def __getitem__(self, alias):
            raise OperationalError("away")

    monkeypatch.setattr(health, "connections", Away())
    assert health.find_unready() == ["database"]


def test_the_probes_of_a_worker(broker):
    with live_worker() as live, port_of(live.worker) as port:
        assert get(port, "/healthz") == get(port, "/readyz?x=1") == (200, "ok\n")
        assert get(port, "/")[0] == 404 and "/fleet" in get(port, "/")[1]
    assert health.is_moving(0.0), "it waits for Redis before it begins"


def test_a_loop_that_stands_still_is_told(broker):
    with live_worker() as live, port_of(live.worker) as port:
        wait_until(lambda: live.worker.moved_at)
        held = live.worker._wait
        stop = []

        def stuck(seconds):
            while not stop:
                live.worker.inbox.get()

        live.worker._wait = stuck
        live.worker.wake()
        wait_until(lambda: live.worker.inbox.empty())
        live.worker.moved_at -= 1000
        assert get(port, "/healthz") == (503, "loop\n")
        stop.append(True)
        live.worker._wait = held
        live.worker.wake()
        wait_until(lambda: get(port, "/healthz")[0] == 200)


# -- without the package, and the dashboard


def test_it_is_said_what_to_install_where_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "django_delayq.monitoring.metrics", raising=False)
    with pytest.raises(CommandError, match=r"django-delayq\[metrics\]"):
        call_command("delayq_worker", "--burst", "--metrics", "9808")
    with pytest.raises(ImproperlyConfigured, match=r"django-delayq\[metrics\]"):
        Client().get("/open")
    assert Client().get("/delayq/healthz").status_code == 200


@pytest.mark.parametrize("port", ["0", "70000", "x", "host:", "1:-1"])
def test_a_port_is_a_port(port):
    with pytest.raises(CommandError, match="--metrics: must be PORT or HOST:PORT, with a port from 1 to 65535, not"):
        call_command("delayq_worker", "--burst", "--metrics", port)


def test_a_port_that_is_taken_is_told():
    with Server("127.0.0.1", 0, {}) as http, pytest.raises(CommandError) as refused:
        call_command("delayq_worker", "--burst", "--metrics", str(http.server_port))
    assert f"cannot listen on 127.0.0.1:{http.server_port}: Address already in use" in str(refused.value)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connections_that_ask_nothing_take_few_descriptors_and_are_closed(monkeypatch):
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.5)
    with Server("127.0.0.1", 0, {"/healthz": lambda: health.create_page([])}) as port, ExitStack() as idle:
        before = descriptors()
        for _ in range(50):
            idle.enter_context(socket.create_connection(("127.0.0.1", port.server_port)))
        wait_until(lambda: descriptors() - before <= 50 + http.MOST_CONNECTIONS)

        def answered():
            with suppress(OSError):
                return get(port.server_port, "/healthz") == (200, "ok\n")

        wait_until(answered)


def test_an_accept_that_fails_is_tried_again_after_a_pause(monkeypatch):
    with Server("127.0.0.1", 0, {"/healthz": lambda: health.create_page([])}) as port:
        tries, accept = [], TCPServer.get_request

        def refuse(listener):
            tries.append(1)
            if len(tries) > 3:
                return accept(listener)
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(TCPServer, "get_request", refuse)
        monkeypatch.setattr(http, "PAUSE_SECONDS", 0.1)
        begun = time.monotonic()
        assert get(port.server_port, "/healthz") == (200, "ok\n")
        assert time.monotonic() - begun >= 0.3


def test_the_dashboard_asks_for_what_there_is_and_shows_all_that_matters(families):
    board = json.loads((Path(ROOT) / "docs/grafana.json").read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [item["query"]["query"] for item in board["templating"]["list"] if item["type"] == "query"]
    names = {name for text in asked for name in re.findall(r"delayq_\w+", text)}
    told = {sample.name for family in families for sample in family.samples}
    assert names <= told | {"delayq_problem"}, "there is none now"
    for what in ("outcomes_total", "latency_seconds_bucket", "duration_seconds_bucket", "queue_depth", "failed_jobs",
                 "queue_oldest_seconds", "workers", "index_differences", "rebuilds_total", "overloaded",
                 "up"):  # fmt: skip
        assert f"delayq_{what}" in names
    for panel in board["panels"]:
        labels = {label for target in panel["targets"] for label in re.findall(r"by \(([^)]*)\)", target["expr"])}
        assert "schedule" not in labels
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
