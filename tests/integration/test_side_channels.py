"""In the web process that saves and enqueues: what raises beside that reaches no caller, and is called after it."""

import logging
from contextlib import redirect_stdout

import pytest
from django.db import connection, transaction
from opentelemetry import trace

from django_delayq import actions, signals
from django_delayq.calls import tracing
from django_delayq.calls.capture import capture_output
from django_delayq.calls.compat import task_enqueued, task_finished
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import web
from django_delayq.models import Origin, Output, Run, Schedule
from tests.app import tasks
from tests.integration.mirroring import schedule
from tests.jobs.support import Standing, row
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


class Tracer:
    """A tracer whose span processors raise: where a span begins, or where it ends."""

    def __init__(self, where):
        self.where = where

    def start_span(self, name, **kwargs):
        if self.where == "start":
            raise RuntimeError("a processor that raises")
        return Span()


class Span(trace.NonRecordingSpan):
    def __init__(self):
        super().__init__(trace.INVALID_SPAN_CONTEXT)

    def end(self, end_time=None):
        raise RuntimeError("a processor that raises")


@pytest.fixture(params=["start", "end"])
def broken_tracer(request, settings, monkeypatch):
    settings.DELAYQ = {**settings.DELAYQ, "TRACES": True}
    monkeypatch.setattr(tracing, "get_tracer", lambda: Tracer(request.param))
    return request.param


@pytest.fixture
def broken_log():
    """Each handler of the root raises, for loggers of anybody."""
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit = lambda record: 1 / 0
    root.addHandler(handler)
    yield
    root.removeHandler(handler)


def broken(**kwargs):
    raise RuntimeError("a receiver that raises")


@pytest.fixture
def receivers():
    """Receivers that raise, of all signals."""
    everything = [task_enqueued, task_finished, signals.run_started, signals.run_finished, signals.schedule_broken]
    for signal in everything:
        signal.connect(broken)
    yield
    for signal in everything:
        signal.disconnect(broken)


def test_a_tracer_that_raises_neither_keeps_from_enqueueing_nor_decides_outcomes(broker, broken_tracer, caplog):
    results = [tasks.add.enqueue(1), tasks.fail.enqueue()]
    actions.run_now(schedule("s"))
    run_burst()
    assert [result.refresh() or str(result.status) for result in results] == ["SUCCESSFUL", "FAILED"]
    assert [result.attempts for result in results] == [1, 1]
    assert Run.objects.exclude(origin=Origin.JOB).get().status == "succeeded"
    assert caplog.text.count("OpenTelemetry's tracer failed") == 1


@pytest.fixture
def looked():
    """What receivers of `task_enqueued` find: whether the row, and the member, are there."""
    there = []

    def look(task_result, **kwargs):
        there.append((row(task_result).status, Standing(task_result).view.score_ms is not None))

    task_enqueued.connect(look)
    yield there
    task_enqueued.disconnect(look)


def test_enqueueing_returns_although_receivers_and_the_log_raise_and_the_job_is_there_before(
    broker, receivers, broken_log
):
    result = tasks.add.enqueue(1)
    assert (row(result).status, Standing(result).view.score_ms is not None) == ("queued", True)


def test_receivers_of_an_enqueueing_are_called_when_the_row_and_the_member_are_there(broker, looked):
    with transaction.atomic():
        tasks.add.enqueue(1)
        assert not looked
    assert looked == [("queued", True)]


def test_a_save_and_an_order_return_although_redis_is_away_and_the_log_raises(
    broker, receivers, broken_log, monkeypatch
):
    def refuse(call):
        raise BrokerUnavailable("away")

    monkeypatch.setattr(web, "ask", refuse)
    actions.run_now(schedule("s"))
    tasks.add.enqueue(1)
    assert (Schedule.objects.count(), Run.objects.count()) == (1, 2)


def test_receivers_of_an_outcome_are_called_once_it_is_recorded(broker, receivers, caplog):
    seen = []

    def ended(run, **kwargs):
        seen.append(Run.objects.get(pk=run.pk).status)

    def finished(task_result, **kwargs):
        seen.append(row(task_result).status)

    signals.run_finished.connect(ended)
    task_finished.connect(finished)
    try:
        make_due(broker, schedule("s"))
        tasks.add.enqueue(1)
        run_burst()
    finally:
        signals.run_finished.disconnect(ended)
        task_finished.disconnect(finished)
    assert seen == ["succeeded"] * 2
    assert caplog.text.count("of the signal run_finished failed and is ignored") == 1


def test_a_table_of_outputs_that_refuses_keeps_no_outcome_from_being_recorded(broker, caplog):
    tasks.say.enqueue("x")
    make_due(broker, schedule("s", task="tests.app.tasks.say", kwargs={"text": "x"}))

    def refuse(execute, sql, params, many, context):
        if sql.startswith(('INSERT INTO "django_delayq_output', 'INSERT OR IGNORE INTO "django_delayq_output')):
            return execute("SELECT nothing FROM django_delayq_output", (), False, context)
        return execute(sql, params, many, context)

    with capture_output(1000), connection.execute_wrapper(refuse):
        run_burst()
    assert not Output.objects.exists()
    assert list(Run.objects.values_list("status", flat=True)) == ["succeeded"] * 2
    assert caplog.text.count("The table of outputs failed") == 1


class Gone:
    """A stream that cannot be written."""

    def write(self, text):
        raise BrokenPipeError("nobody reads")

    flush = write


@pytest.mark.parametrize("most", [0, 1000])
@pytest.mark.parametrize("stream", [Gone(), None])
def test_a_task_prints_where_nothing_can_be_printed_and_that_is_kept(broker, stream, most):
    make_due(broker, schedule("s", task="tests.app.tasks.say", kwargs={"text": "x"}))
    with redirect_stdout(stream), capture_output(most):
        run_burst()
    run = Run.objects.get()
    assert run.status == "succeeded", run.error
    assert [output.text.split("\n")[0] for output in run.outputs.all()] == ["x "] * bool(most)


def test_a_span_that_was_not_begun_leaves_the_callers_trace_as_it_is(settings, monkeypatch):
    settings.DELAYQ = {**settings.DELAYQ, "TRACES": True}
    monkeypatch.setattr(tracing, "get_tracer", lambda: Tracer("start"))
    before = trace.get_current_span()
    assert tracing.trace_enqueueing(lambda: [trace.get_current_span()] * 2) == [before] * 2
