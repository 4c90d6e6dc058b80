"""OpenTelemetry: an execution is a span, in the trace of what caused it or linked to that; idle workers make none."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from opentelemetry import trace
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from django_delayq import actions, conf
from django_delayq.models import Run, Schedule
from django_delayq.worker import loop, upkeep
from tests.acceptance.support import ROOT, command_environment, wait_until
from tests.app import tasks
from tests.faults.live import live_worker
from tests.integration.mirroring import schedule
from tests.jobs import tasks as job_tasks
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
    told = {"messaging.system": "django_delayq", "messaging.destination.name": "mail"}
    told |= {"messaging.message.id": result.id, "delayq.task": "tests.app.tasks.add"}
    sending = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert (sent.name, dict(sent.attributes)) == ("send mail", told | sending)
    found = dict(done.attributes)
    assert 0 <= found.pop("delayq.latency") < 60
    assert datetime.fromisoformat(found.pop("delayq.due")) <= datetime.now(UTC)
    told |= {"messaging.operation.name": "process", "messaging.operation.type": "process"}
    told |= {"code.function.name": "tests.app.tasks.add", "delayq.attempt": 1}
    assert (done.name, done.status.status_code, found) == ("process mail", StatusCode.UNSET, told)


def test_each_attempt_is_a_span_in_the_same_trace_and_tells_its_failure():
    with within() as request:
        result = tasks.fail.using(max_attempts=2, backoff=0).enqueue()
    wait_until(lambda: run_burst() == 0 and len(spans(SpanKind.CONSUMER)) == 2)
    first, second = spans(SpanKind.CONSUMER)
    assert [span.attributes["delayq.attempt"] for span in (first, second)] == [1, 2]
    assert "delayq.latency" in first.attributes and "delayq.latency" not in second.attributes
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
    actions.run_now(Schedule.objects.get())
    run_burst()
    failed = execution()
    assert "refused" in failed.status.description
    assert "hunter2" not in failed.to_json()


def test_the_row_of_a_job_carries_the_span_of_its_enqueueing_and_nothing_else():
    with within():
        tasks.add.enqueue(7)
    (sent,) = spans(SpanKind.PRODUCER)
    ((name, parent),) = Run.objects.get().options.pop("trace").items()
    assert (name, parent[:-2]) == ("traceparent", f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-")
    assert list(Run.objects.get().options) == ["trace"]
    assert Run.objects.get().call == {"args": [7], "kwargs": {}}


@pytest.mark.parametrize("garbage", [{"traceparent": "nonsense"}, {"traceparent": ["x"]}, {}, {"a": 1}])
def test_a_trace_that_cannot_be_read_harms_nothing(garbage):
    result = tasks.add.enqueue(7)
    Run.objects.update(options={"trace": garbage})
    run_burst()
    result.refresh()
    assert (result.return_value, execution().parent, execution().links) == (8, None, ())


def test_due_points_begin_traces_of_their_own(broker):
    with within():
        row = schedule("nightly", kind="every", cron="", every=timedelta(minutes=5))
    for _ in range(2):
        make_due(broker, row)
        run_burst()
    points = spans(SpanKind.CONSUMER)
    assert len(points) == 2 and len({point.context.trace_id for point in points}) == 2
    for point in points:
        assert (point.parent, point.links) == (None, ())
        assert point.attributes["delayq.schedule"] == "nightly"
        assert point.attributes["delayq.task"] == "tests.app.tasks.noop"
        assert point.attributes["messaging.message.id"].startswith(f"{row.pk}:due:")
        assert point.attributes["delayq.latency"] >= 0
    assert points[-1].attributes["delayq.due"].startswith(f"{Run.objects.latest('pk').due_at:%Y-%m-%dT%H:%M}")


def place(request):
    """A view that enqueues and orders."""
    tasks.add.enqueue(1)
    actions.run_now(Schedule.objects.get())
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
    ordered = {span.attributes.get("delayq.schedule"): span for span in executions}
    assert set(ordered) == {None, "nightly"} and ordered["nightly"].attributes["delayq.attempt"] == 1
    assert ordered["nightly"].parent.span_id == server.context.span_id
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


def test_nothing_is_carried_and_no_span_is_made_where_traces_are_off(settings, broker):
    settings.DELAYQ = {**settings.DELAYQ, "TRACES": False}
    with within():
        tasks.add.enqueue(1)
        actions.run_now(schedule())
    assert list(Run.objects.values_list("options", flat=True)) == [None, None]
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
