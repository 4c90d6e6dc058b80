"""F44: isolated tasks raise, fork, leak, hang and die, each in a process of its own; the worker's goes on as it is."""

import signal
import sys
from datetime import datetime, timedelta

import pytest
from opentelemetry import trace

from django_delayq.calls.compat import TaskResultStatus, task_backends
from django_delayq.models import Run, Schedule
from tests.acceptance.support import wait_until
from tests.faults import isolated_tasks as tasks
from tests.faults.harness.isolated import MODULE, finished, gone, outcome, pids_in, point, said
from tests.faults.harness.load import SECOND
from tests.faults.harness.workers import WorkerProcess

ERRORS = "django_delayq.exceptions"
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("isolated")]


# -- what crosses


def test_f44_each_execution_has_a_fresh_process_with_its_value_and_its_context(worker):
    """What one has changed the next one does not find."""
    runs = [outcome(point("leak", "é", name=f"leak {n}")) for n in range(3)]
    assert [run.status for run in runs] == ["succeeded"] * 3, runs[0].error
    assert [run.result[0::2] for run in runs] == [[1, "é"]] * 3
    assert len({run.result[1] for run in runs} | {worker.pid}) == 4

    row = point("tell", name="context", priority=0, timeout=600 * SECOND)
    run = outcome(row)
    told = run.result
    assert (told["schedule"], told["same"], told["attempt"], told["lost"]) == ("context", [], 1, False)
    assert datetime.fromisoformat(told["due_at"]) == run.due_at
    assert (told["task"], told["status"], told["workers"]) == (f"{MODULE}.tell", "RUNNING", 1)


def test_f44_jobs_too_with_retries_errors_and_what_they_enqueue(worker):
    job = finished(tasks.tell.using(priority=7).enqueue(path=""))
    told = job.return_value
    assert (told["id"], told["kwargs"], told["priority"], told["attempt"]) == (job.id, {"path": ""}, 7, 1)

    tried = finished(tasks.fail_first.using(max_attempts=2, backoff=0.01).enqueue())
    assert (tried.return_value, tried.attempts) == (2, 2)
    assert tried.errors[0].exception_class is tasks.OutOfStock
    assert "in fail_first" in tried.errors[0].traceback and "no coffee left" in tried.errors[0].traceback

    row = point("leak", name="written")
    made = finished(tasks.enqueue.enqueue("written"))
    inner = finished(task_backends["default"].get_result(made.return_value))
    assert inner.return_value == [["from elsewhere"], {}]
    row.refresh_from_db()
    assert row.description == "written elsewhere"

    awaited = finished(tasks.wait.enqueue(0))
    assert awaited.return_value[0] != worker.pid

    unfit = finished(tasks.give.enqueue("set"))
    assert (unfit.status, unfit.errors[0].exception_class) == (TaskResultStatus.FAILED, TypeError)
    large = finished(tasks.give.enqueue("large"))
    assert large.status == TaskResultStatus.SUCCESSFUL
    with pytest.raises(ValueError, match="at most 65,536 are kept"):
        _ = large.return_value


def test_f44_what_it_does_belongs_to_the_trace_of_its_execution(tmp_path, settings):
    settings.DELAYQ = {**settings.DELAYQ, "TRACES": True}
    asked = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    with WorkerProcess(folder=tmp_path), trace.use_span(trace.NonRecordingSpan(asked)):
        assert finished(tasks.trace_id.enqueue()).return_value == "abc"


def test_f44_what_a_point_raises_is_told_as_it_was_raised_there(worker):
    errors = {how: outcome(point("fail", how, name=how)) for how in ("stock", "arguments", "exit", "group", "file")}
    assert {how: run.reason for how, run in errors.items()} == {
        "stock": f"{MODULE}.OutOfStock: no tea left",
        "arguments": f"{ERRORS}.InvalidArguments: never like this",
        "exit": "SystemExit: enough",
        "group": "ExceptionGroup: both (2 sub-exceptions)",
        "file": "OSError: [Errno 28] No space left: 'file'",
    }
    assert "raise OutOfStock" in errors["stock"].error and "KeyError: 'two'" in errors["group"].error
    assert "isolated.py" not in errors["stock"].error, "nothing of the worker's side"

    final = outcome(point("fail", "arguments", name="final", max_attempts=3))
    assert final.attempt == 1, "what cannot help is not tried again: the type has crossed"
    again = outcome(point("fail", "stock", name="again", max_attempts=2, backoff=timedelta(0)))
    assert again.attempt == 2
    noted = outcome(point("give", "set", name="a set"))
    assert noted.status == "succeeded" and "cannot be stored" in noted.result["not stored"]


def test_f44_what_it_says_is_heard_once_and_goes_on_to_the_worker_s_output(worker):
    run = outcome(point("say", "hello"))
    text = said(run)
    assert [text.count(word) for word in ("printed hello", "to stderr hello", "shop: logged hello")] == [1, 1, 1]
    assert "by a child" not in text
    log = worker.log()
    assert all(word in log for word in ("printed hello", "to stderr hello", "logged hello", "by a child hello"))


# -- its time, and who stops it


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", "TaskTimeout: stopped after its timeout of 3 s"),
        ("in C", "TaskTimeout: its timeout of 3 s was over; its process was killed within 5 s"),
        ("deaf", "TaskTimeout: its timeout of 3 s was over; its process was killed within 5 s"),
    ],
)
def test_f44_a_timeout_ends_it_whatever_it_does_and_the_worker_stays(worker, tmp_path, how, reason):
    path, beside = tmp_path / "pids", tmp_path / "beside"
    every = {"kind": "every", "every": SECOND, "args": [str(beside)]}
    Schedule.objects.create(name="beside", task=f"{MODULE}.neighbour", **every)
    run = outcome(point("hang", how, str(path), timeout=timedelta(seconds=3)))
    assert (run.status, run.reason) == ("failed", f"{ERRORS}.{reason}")
    assert "begun" in said(run)
    if how == "deaf":
        assert "not yet" in said(run) and "isolated_tasks.py" in run.error, "where it was"
    gone(pids_in(path))
    count = len(beside.read_text())
    wait_until(lambda: len(beside.read_text()) > count, what="the neighbour to go on")
    results = Run.objects.filter(schedule_name="beside", status="succeeded").values_list("result", flat=True)
    assert set(results) == {worker.pid}, "it was not recycled"
    assert worker.log().count("Worker ") == 1


def test_f44_one_that_catches_its_timeout_and_returns_has_succeeded(worker, tmp_path):
    run = outcome(point("hang", "catches", str(tmp_path / "pids"), timeout=timedelta(seconds=3)))
    assert (run.status, run.result) == ("succeeded", "caught")


def test_f44_a_coroutine_is_cancelled_by_its_loop(worker):
    run = outcome(point("wait", 600, timeout=timedelta(seconds=3)))
    assert (run.reason, said(run)) == (
        f"{ERRORS}.TaskTimeout: stopped after its timeout of 3 s", "cancelled in the loop\n",
    )  # fmt: skip


@pytest.mark.parametrize(("task", "args"), [("hang", ["raises"]), ("hang", ["in C"]), ("wait", [600])])
def test_f44_who_stops_it_ends_it(worker, tmp_path, task, args):
    path = tmp_path / "pids"
    row = point(task, *args, str(path), max_attempts=3)
    pids = pids_in(path)
    wait_until(lambda: Run.objects.filter(status="running").exists(), what="a running row")
    assert Run.objects.get().cancel(by="ann")
    run = outcome(row)
    assert (run.status, run.reason, run.attempt) == ("failed", "cancelled by ann", 1)
    assert "TaskCancelled" in run.error
    gone(pids)
    assert worker.alive


# -- what it leaves, takes and breaks


def test_f44_what_it_leaves_in_its_group_is_killed(worker, tmp_path):
    path = tmp_path / "pids"
    assert outcome(point("leave_a_child", str(path))).result == "left"
    gone(pids_in(path))
    run = outcome(point("come_back_twice", name="twice"))
    assert (run.status, run.result) == ("succeeded", "parent")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is the kernel's")
def test_f44_more_memory_than_it_may_have_is_an_error(worker):
    assert outcome(point("hog", 20, name="little")).result == 20 * 1024 * 1024
    run = outcome(point("hog", 500, name="much"))
    assert run.reason.startswith("MemoryError")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "with exit status 3"),
        ("kill", f"by signal {signal.SIGKILL:d} (SIGKILL)"),
        ("segfault", f"by signal {signal.SIGSEGV:d} (SIGSEGV)"),
    ],
)
def test_f44_a_process_that_ends_is_a_failure_that_says_how(worker, how, reason):
    run = outcome(point("end", how, max_attempts=2, backoff=timedelta(0)))
    assert (run.status, run.attempt, run.reclaims) == ("failed", 2, 0)
    died = "django_delayq.calls.commands.child.ProcessDied"
    assert run.reason == f"{died}: The process of the task ended {reason}, before the task did."
    assert "about to end" in run.error
    assert ("in end" in run.error) == (how == "segfault"), "where it was"
    assert outcome(point("leak", name="next")).status == "succeeded"
    assert worker.alive
