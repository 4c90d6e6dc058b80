"""OpenTelemetry: an execution is a span, in the trace of what caused it or linked to that; idle workers make none."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from opentelemetry import trace
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_delayq import conf, orders
from django_delayq.broker import keys, read_trace, web
from django_delayq.jobs import bare, decode, trace_of
from django_delayq.jobs.record import with_trace
from django_delayq.models import Run, Schedule
from django_delayq.worker import loop, upkeep
from tests.acceptance.support import ROOT, command_environment, wait_until
from tests.app import tasks
from tests.faults.live import live_worker
from tests.integration.mirroring import schedule
from tests.jobs import tasks as job_tasks
from tests.jobs.support import Stored
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

PROVIDER, EXPORTER = TracerProvider(), InMemorySpanExporter()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))


@pytest.fixture(autouse=True)
def traces(settings):
    if trace.get_tracer_provider() is not PROVIDER:
        trace.set_tracer_provider(PROVIDER)  # once in a process
    EXPORTER.clear()
    settings.DELAYQ = {**settings.DELAYQ, "TRACES": True}
    yield
    EXPORTER.clear()


def spans(kind=None):
    """Return the spans that have ended; of a kind."""
    return [span for span in EXPORTER.get_finished_spans() if kind in (None, span.kind)]


def within(name="request"):
    """A span of somebody's own."""
    return trace.get_tracer("test").start_as_current_span(name)


def execution():
    (span,) = spans(SpanKind.CONSUMER)
    return span


# -- jobs


def test_an_execution_of_a_job_is_a_child_of_its_enqueueing_with_what_the_conventions_want():
    with within() as request:
        result = tasks.add.using(queue_name="mail").enqueue(1)
    run_burst(name="host:1:abc")
    (sent,) = spans(SpanKind.PRODUCER)
    done = execution()
    assert {span.context.trace_id for span in spans()} == {request.get_span_context().trace_id}
    assert sent.parent.span_id == request.get_span_context().span_id
    assert done.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in done.links] == [sent.context.span_id]
    assert (sent.name, dict(sent.attributes)) == ("send mail", {
        "messaging.system": "django_delayq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": result.id,
        "delayq.task": "tests.app.tasks.add",
    })  # fmt: skip
    found = dict(done.attributes)
    assert 0 <= found.pop("delayq.lag") < 60
    assert datetime.fromisoformat(found.pop("delayq.due")) <= datetime.now(UTC)
    assert (done.name, done.status.status_code, found) == ("process mail", StatusCode.UNSET, {
        "messaging.system": "django_delayq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": result.id,
        "code.function.name": "tests.app.tasks.add",
        "delayq.task": "tests.app.tasks.add",
        "delayq.attempt": 1,
    })  # fmt: skip


@pytest.mark.parametrize("alias", ["default", "durable", "stored"])
def test_each_attempt_is_a_span_in_the_same_trace_and_tells_its_failure(alias):
    with within() as request:
        result = tasks.fail.using(backend=alias, max_attempts=2, backoff=0).enqueue()
    wait_until(lambda: run_burst() == 0 and len(spans(SpanKind.CONSUMER)) == 2)
    first, second = spans(SpanKind.CONSUMER)
    assert [span.attributes["delayq.attempt"] for span in (first, second)] == [1, 2]
    assert "delayq.lag" in first.attributes and "delayq.lag" not in second.attributes
    for span in (first, second):
        assert span.context.trace_id == request.get_span_context().trace_id
        assert span.attributes["messaging.message.id"] == result.id
        assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "builtins.RuntimeError")
        (event,) = span.events
        assert event.name == "exception" and "Traceback" in event.attributes["exception.stacktrace"]


def test_what_the_task_does_is_a_part_of_its_execution():
    tasks.CALLS.clear()
    outer = job_tasks.enqueue_another.enqueue(1)
    run_burst()
    run_burst()
    by_id = {span.context.span_id: span for span in spans()}
    inner = [span for span in spans(SpanKind.CONSUMER) if span.attributes["messaging.message.id"] != outer.id]
    assert inner and by_id[by_id[inner[0].parent.span_id].parent.span_id].kind is SpanKind.CONSUMER


def test_many_at_once_have_one_span_and_no_secret_of_a_call_is_told():
    with within():
        tasks.add.enqueue_many([((n,), {}) for n in range(3)])
    (sent,) = spans(SpanKind.PRODUCER)
    assert sent.attributes["messaging.batch.message_count"] == 3 and "messaging.message.id" not in sent.attributes
    run_burst()
    assert {span.parent.span_id for span in spans(SpanKind.CONSUMER)} == {sent.context.span_id}
    assert not [span for span in spans() if "args" in json.dumps(dict(span.attributes))]


def test_a_failure_is_told_without_the_secrets_of_its_call():
    schedule("tells", task="tests.jobs.tasks.leak", kwargs={"password": "hunter2", "note": "x"})
    orders.run_now(Schedule.objects.get())
    run_burst()
    failed = execution()
    assert "refused" in failed.status.description
    assert "hunter2" not in failed.to_json()


# -- what is carried in the text of a job


def test_the_call_is_the_same_with_or_without_a_trace():
    with within():
        traced = tasks.add.enqueue(7)
    with override_settings(DELAYQ={**conf.settings.DELAYQ, "TRACES": False}):
        plain = tasks.add.enqueue(7)
    lines = {}
    for name, result in {"traced": traced, "plain": plain}.items():
        stored = Stored(result)
        line, call, _ = decode(stored.queue, stored.member, stored.payload)
        lines[name] = line
        assert (call.task, call.args, call.kwargs) == ("tests.app.tasks.add", [7], {})
    assert trace_of(lines["plain"]) == {} and lines["plain"].startswith('{"task":')
    assert trace_of(lines["traced"])["traceparent"].startswith("00-")
    assert bare(lines["traced"]) == lines["traced"], "what is signed anew keeps it"


@pytest.mark.parametrize("line", ['{"trace":{"traceparent"', '{"trace":{},"x":1}', '{"trace":{"a":1},"b":2}', "", "{}"])
def test_a_line_without_a_trace_that_can_be_read_has_none(line):
    assert trace_of(line) == {}
    assert with_trace('{"task":"t"}', {}) == '{"task":"t"}'


@pytest.mark.parametrize("garbage", [b"\xff", "[1]", '{"traceparent":"nonsense"}', '{"traceparent":["x"]}', "9" * 5000])
def test_a_trace_that_somebody_falsified_harms_nothing(broker, garbage):
    row = schedule()
    name = keys.trace_key(broker.config.prefix, broker.shard_of(f"s{row.pk}", row.queue), f"s{row.pk}")
    broker.client.set(name, garbage)
    make_due(broker, row)
    run_burst()
    assert execution().parent is None and not execution().links


# -- schedules and orders


def test_due_points_begin_traces_of_their_own_linked_to_the_last_save(broker):
    with within() as request:
        row = schedule("nightly", kind="every", cron="", every=timedelta(minutes=5))
    for _ in range(2):
        make_due(broker, row)
        run_burst()
    points = spans(SpanKind.CONSUMER)
    assert len(points) == 2 and len({point.context.trace_id for point in points}) == 2
    for point in points:
        assert point.parent is None
        assert [link.context.span_id for link in point.links] == [request.get_span_context().span_id]
        assert point.attributes["delayq.schedule"] == "nightly"
        assert point.attributes["delayq.task"] == "tests.app.tasks.noop"
        assert point.attributes["messaging.message.id"].startswith(f"{row.pk}:due:")
        assert point.attributes["delayq.lag"] >= 0
    point = execution_of(Run.objects.order_by("pk").last())
    assert point.attributes["delayq.due"].startswith(f"{Run.objects.order_by('pk').last().due_at:%Y-%m-%dT%H:%M}")


def execution_of(run):
    key = f"{run.schedule_id}:{run.origin}:"
    return [span for span in spans(SpanKind.CONSUMER) if span.attributes["messaging.message.id"].startswith(key)][-1]


def test_what_a_person_orders_is_a_child_of_the_request(broker):
    row = schedule("nightly")
    with within() as request:
        orders.run_now(row)
    run_burst()
    done = execution()
    assert done.parent.span_id == request.get_span_context().span_id
    assert (done.attributes["delayq.schedule"], done.attributes["delayq.attempt"]) == ("nightly", 1)


def test_what_is_noted_of_a_save_goes_after_a_week_with_the_prefix_and_never_without_a_trace(broker):
    row = schedule()
    assert read_trace(broker, f"s{row.pk}", row.queue) == {}
    with within():
        row.save()
    name = keys.trace_key(broker.config.prefix, broker.shard_of(f"s{row.pk}", row.queue), f"s{row.pk}")
    assert 6 * 86400 < broker.client.pttl(name) / 1000 <= 7 * 86400
    assert keys.is_own(broker.config.prefix, name)
    assert broker.purge() > 0 and not broker.client.exists(name)


# -- in a project: a trace that begins in a web request, beside other instrumentations


def place(request):
    """A view that enqueues and orders."""
    tasks.add.enqueue(1)
    orders.run_now(Schedule.objects.get())
    return HttpResponse("ok")


urlpatterns = [path("place", place)]


@pytest.fixture
def instrumented():
    for instrumentor in (RedisInstrumentor(), DjangoInstrumentor()):
        instrumentor.instrument(tracer_provider=PROVIDER)
    yield
    for instrumentor in (RedisInstrumentor(), DjangoInstrumentor()):
        instrumentor.uninstrument()


def test_a_trace_begins_in_the_web_request_beside_the_instrumentations_of_django_and_redis(settings, instrumented):
    schedule("nightly")
    settings.ROOT_URLCONF = __name__
    EXPORTER.clear()
    assert Client().get("/place").status_code == 200
    run_burst()
    (server,) = spans(SpanKind.SERVER)
    executions = spans(SpanKind.CONSUMER)
    assert len(executions) == 2
    assert {span.context.trace_id for span in executions} == {server.context.trace_id}
    commands = spans(SpanKind.CLIENT)
    assert commands, "the request's own commands are told"
    assert {span.context.trace_id for span in commands} == {server.context.trace_id}, "and none of the worker"


def test_an_idle_worker_makes_no_spans_and_one_that_works_makes_its_executions(
    broker, settings, monkeypatch, instrumented
):
    settings.DELAYQ = {**settings.DELAYQ, "IDLE_CAP_SECONDS": 0.05}
    monkeypatch.setattr(upkeep, "DELTA_SECONDS", 0.2)
    with live_worker() as worker:
        wait_until(lambda: worker.worker.moved_at)
        EXPORTER.clear()
        moved = worker.worker.upkeep._due["delta"]
        wait_until(lambda: worker.worker.upkeep._due["delta"] > moved + 0.2, what="sweeps, looks and heartbeats")
        assert spans() == []
        with within():
            tasks.add.enqueue(1)
        wait_until(lambda: spans(SpanKind.CONSUMER))
    roots = [span for span in spans() if span.parent is None]
    assert [span.name for span in roots] == ["request"]


def test_a_task_that_hangs_has_a_span_that_ends(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "SLOTS_SECONDS", 0.2)
    settings.DELAYQ = {**settings.DELAYQ, "TIMEOUT_GRACE_SECONDS": 0.1}
    gate = tmp_path / "gate"
    tasks.stubborn.using(timeout=0.1).enqueue(str(tmp_path / "f"), str(gate))
    run_burst()
    gate.touch()
    hung = execution()
    assert hung.attributes["error.type"] == "django_delayq.exceptions.TaskTimeout"
    assert "Still running" in hung.events[0].attributes["exception.stacktrace"]


# -- off


def test_nothing_is_carried_and_no_span_is_made_where_traces_are_off(settings, broker):
    settings.DELAYQ = {**settings.DELAYQ, "TRACES": False}
    with within():
        result = tasks.add.enqueue(1)
        row = schedule()
        orders.run_now(row)
    stored = Stored(result)
    assert trace_of(decode(stored.queue, stored.member, stored.payload)[0]) == {}
    assert read_trace(broker, f"s{row.pk}", row.queue) == {}
    assert not [name for page in broker._own_keys() for name in page if b":trace:" in name]
    run_burst()
    assert [span.name for span in spans()] == ["request"]


def test_nothing_of_it_is_imported_where_it_is_off():
    code = """
import sys, django, redis.client, redis.connection, redis.cluster
redis.Redis.from_url("redis://127.0.0.1:1/0")
before = {*sys.modules}  # newer releases of redis-py import what they find of OpenTelemetry themselves
django.setup()
from django.core.management import call_command
from tests.app.tasks import add
add.enqueue(1)
call_command("delayq_worker", "--burst", "--json-logs")
found = [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client", "sentry_sdk"))]
print([name for name in found if name not in before])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=command_environment(TRACES=False), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_it_is_refused_at_once_where_the_package_is_missing(settings, monkeypatch):
    conf._load.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(conf.rules, "find_spec", lambda name: None)
        with pytest.raises(ImproperlyConfigured, match=r"django-delayq\[otel\]"):
            conf.get_config()


def test_it_works_where_there_is_no_redis(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    with within():
        tasks.add.enqueue(1)
        schedule()
    assert [span.name for span in spans(SpanKind.PRODUCER)] == ["send default"]


def test_a_broker_that_is_away_costs_the_link_only(broker, monkeypatch):
    with within():
        row = schedule()
    make_due(broker, row)
    web.open_breaker()
    run_burst()
    assert not execution().links and Run.objects.get().status == "succeeded"
