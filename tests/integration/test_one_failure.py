"""One failing point, seen everywhere: in Sentry, in Prometheus, in the trace of the web request, and in one mail."""

import json
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.support import ROOT, command_environment

pytestmark = pytest.mark.django_db(transaction=True)

#: A project that has all four, in a process of its own: Sentry and OpenTelemetry are for all of a process.
PROJECT = """
import json, time, warnings
from datetime import timedelta

import django, sentry_sdk
from opentelemetry import trace
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.transport import Transport


class Memory(Transport):
    def capture_envelope(self, envelope):
        events.append(envelope.get_event())


events, spans, provider = [], InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
sentry_sdk.init("https://key@sentry.example/1", transport=Memory)
DjangoInstrumentor().instrument()

from django.conf import settings
django.setup()
from django.core import mail
from django.core.mail.backends import locmem
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_delayq import actions
from django_delayq.monitoring import alerts
from django_delayq.recurrence.point import utcnow
from django_delayq.monitoring.metrics.fleet import told_of_all
from django_delayq.models import Alert, Schedule


def save(request):
    at = utcnow() + timedelta(seconds=1)
    row = Schedule.objects.create(name="nightly", task="tests.app.tasks.fail", kind="once", at=at)
    actions.run_now(row)
    return HttpResponse("ok")


ASKED = ("error.type", "delayq.schedule")
urlpatterns = [path("save", save)]
settings.ROOT_URLCONF = __name__
if django.VERSION >= (6, 1):
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
else:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
mail.outbox = []
assert Client().get("/save").status_code == 200
while Schedule.objects.get().at > utcnow():
    time.sleep(0.05)
call_command("delayq_worker", "--burst")
alerts.look_now()
Alert.objects.update(since=utcnow() - timedelta(hours=1))
for _ in range(3):
    alerts.look_now()
call_command("delayq_worker", "--burst")
print("TOLD", json.dumps({
    "events": [event for event in events if event],
    "metrics": told_of_all().decode(),
    "mails": [(message.subject, message.body, message.to) for message in mail.outbox],
    "spans": [
        (span.kind.name, span.context.trace_id, len(span.links), *map(span.attributes.get, ASKED))
        for span in spans.get_finished_spans()
    ],
}))
"""


def test_a_failing_point_is_seen_in_sentry_in_prometheus_in_the_trace_of_the_request_and_in_one_mail(prefix):
    alerts = {"MAIL": ["ops@example.com"], "FAILURES": 1}
    environment = command_environment(TRACES=True, ALERTS=alerts)
    done = subprocess.run([sys.executable, "-c", PROJECT], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert "TOLD " in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
    told = json.loads(done.stdout.partition("TOLD ")[2])

    failures = [event for event in told["events"] if event["extra"].get("schedule") == "nightly"]
    assert len(failures) == 2, "the point, and the run that the request has ordered"
    for event in failures:
        assert event["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "fail"
    assert {event["extra"]["run"].split(":")[1] for event in failures} == {"due", "manual"}

    samples = [each for family in text_string_to_metric_families(told["metrics"]) for each in family.samples]
    outcomes = [each for each in samples if each.name == "delayq_last_hour_outcomes"]
    assert [each.value for each in outcomes if each.labels["outcome"] == "failed"] == [2]

    error = "builtins.RuntimeError"
    (request,) = [trace for kind, trace, *_ in told["spans"] if kind == "SERVER"]
    executions = [(trace == request, *rest) for _, trace, *rest in told["spans"] if rest[-1] == "nightly"]
    (point, ordered) = sorted(executions)
    assert point == (False, 0, error, "nightly"), "a due point begins a trace"
    assert (ordered[0], ordered[2]) == (True, error), "what the request has ordered is in its trace"

    (mail,) = [each for each in told["mails"] if "nightly" in each[0]]
    assert mail[0] == "[Django] Alert: failing nightly" and mail[2] == ["ops@example.com"]
    assert "nightly (tests.app.tasks.fail) has failed 2 times in a row." in mail[1]
