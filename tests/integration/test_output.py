"""What an execution has logged and printed is kept with its outcome: once, without secrets, as long as that row."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_delayq import ledger
from django_delayq.calls.capture import capture_output
from django_delayq.models import Output, Run
from django_delayq.worker import loop
from tests.app import tasks
from tests.integration import mirroring
from tests.integration.histories import history, prune, schedule
from tests.jobs.support import row
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
MOST = 65536


def schedule_of(task, broker, **values):
    make_due(broker, mirroring.schedule(task=f"tests.app.tasks.{task}", **values))


def work(**options):
    with capture_output(MOST):
        run_burst(**options)


def test_a_run_keeps_what_its_task_has_said_without_its_secrets(broker):
    schedule_of("say", broker, kwargs={"text": "hello", "password": "open sesame"})
    work()
    [output] = Run.objects.get().outputs.all()
    lines = output.text.splitlines()
    assert output.attempt == 1 and lines[:2] == ["hello ********", "to stderr"]
    assert lines[2].endswith("WARNING shop.tasks: logged hello with ********") and len(lines) == 3


def test_what_says_nothing_has_no_row_and_costs_no_query(broker):
    schedule_of("noop", broker)
    queries = []
    with connection.execute_wrapper(lambda execute, sql, *rest: queries.append(sql) or execute(sql, *rest)):
        work()
    assert Run.objects.get().status == "succeeded" and not Output.objects.exists()
    assert not [sql for sql in queries if "django_delayq_output" in sql and "LIMIT" not in sql], "but for the sweep's"


def test_each_attempt_keeps_its_own(broker):
    schedule_of("say", broker, kwargs={"fail": True}, max_attempts=3, backoff=timedelta(0))
    work()
    run = Run.objects.get()
    assert (run.status, run.attempt) == ("failed", 3)
    assert list(run.outputs.order_by("attempt").values_list("attempt", flat=True)) == [1, 2, 3]


def test_a_coroutine_and_its_threads_are_heard(broker):
    schedule_of("asay", broker, kwargs={"text": "x"})
    work()
    assert Output.objects.get().text == "coroutine x\nthread x\n"


def test_what_is_cut_off_by_its_hard_timeout_keeps_what_it_had_said(broker, settings, monkeypatch):
    monkeypatch.setattr(loop, "SLOTS_SECONDS", 0.2)
    settings.DELAYQ = {**settings.DELAYQ, "TIMEOUT_GRACE_SECONDS": 0.3}
    schedule_of("say_and_hang", broker, kwargs={"text": "before"}, timeout=timedelta(seconds=0.3))
    work()
    run = Run.objects.get()
    assert (run.status, run.reason) == ("failed", "timeout")
    assert run.outputs.get().text == "before\ninterrupted\n"


def test_only_the_end_is_kept_in_bytes(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_OUTPUT_BYTES": 1000}
    schedule_of("say", broker, kwargs={"text": "é" * 3000})
    with capture_output(1000):
        run_burst()
    text = Output.objects.get().text
    assert 900 < len(text.encode()) <= 1000 and text.endswith("é with \n")


def test_a_batch_whose_commit_got_no_reply_is_kept_once(broker, monkeypatch, caplog):
    schedule_of("say", broker)
    tasks.say.enqueue("hello")
    record, lost = ledger.record, []

    def losing(outcomes):
        won = record(outcomes)
        if outcomes and not lost:
            lost.append(outcomes)
            raise OperationalError("the reply to the COMMIT was lost")
        return won

    monkeypatch.setattr(ledger, "record", losing)
    work()
    assert lost and Output.objects.count() == 2
    assert "refused" not in caplog.text and "cannot be recorded" not in caplog.text
    assert [run.outputs.count() for run in Run.objects.all()] == [1, 1]


def test_jobs_keep_theirs_without_secrets_also_those_before_a_retry(broker):
    result = tasks.say.enqueue("hello", fail=True, password="open sesame")
    work()
    output = Output.objects.get()
    assert output.run == row(result) and output.attempt == 1
    assert "open sesame" not in output.text and "hello ********" in output.text
    assert result.task.get_backend().retry(result.id)
    work()
    assert list(Output.objects.order_by("pk").values_list("attempt", flat=True)) == [1, 2]


def test_outputs_are_pruned_with_their_rows_in_a_statement_for_all(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "HISTORY_DAYS": 1}
    owner = schedule("old", enabled=False)
    history(owner, *(9 + number / 24 for number in range(200)), 0.1)
    for run in Run.objects.all():
        run.outputs.create(attempt=1, text="said")
    with CaptureQueriesContext(connection) as queries:
        assert prune() == 200
    assert sum("DELETE" in query["sql"] for query in queries) == 2
    assert Output.objects.get().run == Run.objects.get()


def test_outputs_go_with_their_rows_and_what_sql_leaves_behind_is_swept(broker):
    schedule_of("say", broker)
    tasks.say.enqueue("hello")
    work()
    assert Output.objects.count() == 2
    Run.objects.filter(origin="job").delete()
    assert Output.objects.count() == 1 and ledger.prune_outputs(10) == 0
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_delayq_run")
    assert ledger.prune_outputs(10) == 1 and not Output.objects.exists()
