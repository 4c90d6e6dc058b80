"""What a failed execution leaves in Sentry, in JSON lines and in structlog: its exception, once, and whose it is."""

import json
import logging
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import structlog

from django_delayq import actions
from django_delayq.ledger import Outcome
from django_delayq.ledger.rows import RunRow
from django_delayq.models import Run, Schedule
from django_delayq.worker.announcing import log_run
from django_delayq.worker.logs import JsonFormatter, LineFormatter, TaskFilter
from tests.acceptance.support import ROOT, command_environment
from tests.app import tasks
from tests.integration.mirroring import schedule
from tests.jobs import tasks as job_tasks
from tests.jobs.support import LOGGER
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

#: A worker as a project has it that uses Sentry, with all integrations that Sentry enables by itself.
PROJECT = """
import json, sys, sentry_sdk
from sentry_sdk.transport import Transport

class Memory(Transport):
    def capture_envelope(self, envelope):
        events.append(envelope.get_event())

events = []
{tags}
sentry_sdk.init("https://key@sentry.example/1", transport=Memory, {more})
from django.core.management import execute_from_command_line
try:
    execute_from_command_line(["manage.py", "delayq_worker", "--burst", "--json-logs"])
finally:
    print("EVENTS", json.dumps([event for event in events if event]))
"""
DOCS = (Path(ROOT) / "docs/observability.md").read_text("utf-8")


def example(word):
    """Return the example of the documentation that has this word."""
    (found,) = [block for block in re.findall(r"```python\n(.*?)```", DOCS, re.S) if word in block]
    return found


def work(tags="", more=""):
    """Run what is due in a process with Sentry; return the events, and the lines of the log."""
    code = PROJECT.format(tags=tags, more=more)
    done = subprocess.run([sys.executable, "-c", code], env=command_environment(), cwd=ROOT, capture_output=True)
    said = done.stdout.decode()
    assert "EVENTS " in said, said + done.stderr.decode()
    events = json.loads(said.partition("EVENTS ")[2].splitlines()[0])
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return events, lines


def test_a_failed_point_is_one_event_of_sentry_with_its_traceback_and_what_it_was(broker):
    row = schedule("nightly 100%", task="tests.app.tasks.fail")
    make_due(broker, row)
    tries = schedule("tries", task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(hours=1))
    make_due(broker, tries)
    events, lines = work()
    (event,) = events
    (failed,) = event["exception"]["values"][-1:]
    assert (failed["type"], failed["value"]) == ("RuntimeError", "no luck")
    assert failed["stacktrace"]["frames"][-1]["function"] == "fail"
    assert failed["stacktrace"]["frames"][-1]["vars"] == {"message": "'no luck'"}
    run = Run.objects.get(schedule=row)
    what = {"task": "tests.app.tasks.fail", "schedule": "nightly 100%", "queue": "default", "attempt": 1}
    what |= {"run": f"{row.pk}:due:{int(run.due_at.timestamp() * 1000)}"}
    assert {name: event["extra"][name] for name in what} == what
    assert event["logentry"]["message"] == "failed    nightly 100%%  %s", "the same for each of its points"
    told = {line["schedule"]: line for line in lines if "schedule" in line}
    assert told["nightly 100%"]["traceback"] == run.error.rstrip("\n")
    assert (told["tries"]["event"], told["tries"]["level"]) == ("retrying", "warning")


def test_a_failed_job_is_one_event_with_its_id_the_documented_tags_and_no_variables_where_they_are_not_wanted():
    result = tasks.fail.using(queue_name="mail").enqueue()
    events, _ = work(
        example("def tagged").partition("sentry_sdk.init")[0], "before_send=tagged, include_local_variables=False"
    )
    (event,) = events
    assert event["exception"]["values"][-1]["value"] == "no luck" and "vars" not in json.dumps(event["exception"])
    assert event["extra"]["job"] == result.id and result.id in event["logentry"]["formatted"]
    assert event["tags"] == {"task": "tests.app.tasks.fail", "queue": "mail"}
    assert event["logger"] == LOGGER


def test_formatters_print_what_failed_without_the_secrets_of_its_call(broker, caplog):
    make_due(broker, schedule("tells", task="tests.jobs.tasks.leak", kwargs={"password": "hunter2", "note": "x"}))
    run_burst()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info[0] is RuntimeError
    for formatter in (JsonFormatter(), logging.Formatter()):
        text = formatter.format(record)
        assert "in leak" in text and "hunter2" not in text
    line = LineFormatter().format(record)
    assert "\n" not in line and "refused ********" in line, "one line an outcome"


def test_a_retry_of_a_job_is_told_with_its_exception_and_its_fields(caplog):
    result = job_tasks.leak.using(max_attempts=2, backoff=9).enqueue("hunter2", "x")
    run_burst()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    event = json.loads(JsonFormatter().format(record))
    assert {"event": "retrying", "job": result.id, "attempt": 1, "queue": "default"}.items() <= event.items()
    assert record.job == result.id and "in leak" in event["traceback"] and "hunter2" not in json.dumps(event)


@pytest.mark.parametrize("what", ["point", "job"])
def test_what_a_task_logs_itself_tells_which_execution_it_was(what, caplog):
    caplog.handler.addFilter(TaskFilter())
    if what == "job":
        expected = {"job": tasks.speak.enqueue("hello").id}
    else:
        row = schedule("speaks", task="tests.app.tasks.speak", args=["hello"])
        actions.run_now(row)
        expected = {"schedule": "speaks", "run": f"{row.pk}:manual"}
    run_burst()
    logging.getLogger("elsewhere").warning("outside")
    (inside,) = [record for record in caplog.records if record.getMessage() == "hello"]
    (outside,) = [record for record in caplog.records if record.getMessage() == "outside"]
    expected |= {"task": "tests.app.tasks.speak", "queue": "default"}
    for name, value in expected.items():
        assert str(getattr(inside, name)).startswith(value)
        assert not hasattr(outside, name)


def test_the_documented_way_to_structlog_has_the_fields_of_an_outcome_and_of_a_task(broker, caplog):
    values = {"structlog": structlog}
    exec(example("ProcessorFormatter"), values)  # noqa: S102 - our own documentation
    formatter = values["LOGGING"]["formatters"]["structlog"]
    shown = structlog.stdlib.ProcessorFormatter(**{name: value for name, value in formatter.items() if name != "()"})
    caplog.handler.addFilter(TaskFilter())
    caplog.set_level("INFO")
    make_due(broker, schedule("nightly", task="tests.app.tasks.speak", args=["hello"]))
    run_burst()
    found = [json.loads(shown.format(record)) for record in caplog.records]
    (outcome,) = [line for line in found if str(line["event"]).startswith("succeeded")]
    (inside,) = [line for line in found if line["event"] == "hello"]
    for line in (outcome, inside):
        assert (line["schedule"], line["task"], line["queue"]) == ("nightly", "tests.app.tasks.speak", "default")


def test_json_lines_tell_the_ids_of_the_trace(broker, caplog, settings):
    from tests.integration.test_traces import EXPORTER, PROVIDER, trace

    if trace.get_tracer_provider() is not PROVIDER:
        trace.set_tracer_provider(PROVIDER)
    EXPORTER.clear()
    settings.DELAYQ = {**settings.DELAYQ, "TRACES": True}
    caplog.handler.addFilter(TaskFilter())
    make_due(broker, schedule("nightly", task="tests.app.tasks.speak", args=["hello"]))
    caplog.set_level("INFO")
    run_burst()
    (span,) = EXPORTER.get_finished_spans()
    wanted = {"trace_id": f"{span.context.trace_id:032x}", "span_id": f"{span.context.span_id:016x}"}
    (outcome,) = [record for record in caplog.records if "succeeded" in record.getMessage()]
    (inside,) = [record for record in caplog.records if record.getMessage() == "hello"]
    assert wanted.items() <= json.loads(JsonFormatter().format(outcome)).items()
    assert wanted.items() <= vars(inside).items()


def test_what_is_lost_has_no_exception_and_is_told_all_the_same(broker, caplog):
    row = Schedule.objects.get(pk=schedule("nightly").pk)
    run = RunRow.build_for(row, row.effective_from, status="lost", reason="poison")
    log_run(Outcome(run, row))
    assert caplog.records[-1].exc_info is None and caplog.records[-1].schedule == "nightly"
