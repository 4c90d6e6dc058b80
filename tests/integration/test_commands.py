"""Management commands as tasks: which, with what arguments, in processes that end with their run or their worker."""

import os
import re
import signal
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.core.management import BaseCommand

from django_delayq.calls import registry
from django_delayq.calls.capture import capture_output
from django_delayq.calls.commands import build_words
from django_delayq.calls.commands.child import Process, _find_program
from django_delayq.exceptions import InvalidArguments, UnknownTask
from django_delayq.models import Run, Schedule
from tests.acceptance.processes import alive
from tests.acceptance.support import output_of, wait_until, worker
from tests.integration.admin_pages import client_for
from tests.support import COMMANDS, DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
TASK = "django_delayq.tasks.management_command"


@pytest.fixture(autouse=True)
def allowed(settings, monkeypatch):
    monkeypatch.delitem(sys.modules, "django_delayq.tasks", raising=False)  # it has the names that it was imported with
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": COMMANDS, "TIMEOUT_GRACE_SECONDS": 2}


def schedule(*args, broker=None, **values):
    """A schedule of a command, due where there is a broker."""
    row = Schedule(name="s", task=TASK, args=list(args), kind="cron", cron=DAILY_CRON, **values)
    row.save()
    if broker is not None:
        make_due(broker, row)
    return row


def pids_in(path):
    """Return those of the command, its guard and its child, once they are there."""
    wait_until(path.exists, 30, "the command")
    return [int(pid) for pid in path.read_text().split()]


def gone(pids):
    wait_until(lambda: not alive(pids), 20, f"the end of {pids}")


# -- which, and with what


def test_without_names_it_is_not_offered_and_says_what_to_do(settings):
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": []}
    assert TASK not in registry.get_tasks()
    with pytest.raises(ValidationError, match=r"DELAYQ\['COMMANDS'\] is empty"):
        schedule("tell")
    with pytest.raises(UnknownTask, match="COMMANDS"):
        registry.get_task(TASK)


def test_with_names_it_is_offered_whatever_the_modules_of_tasks_and_without_a_default_queue(settings):
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["jobs.nightly"]}
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["mail"]}}
    assert registry.get_tasks()[TASK].queue_name == registry.get_task(TASK).queue_name == "mail"


REFUSED = [
    (["flush"], r"'flush' may not be scheduled: DELAYQ\['COMMANDS'\] does not name it.*Add it there"),
    (["tel"], "Did you mean 'tell'"),
    (["nowhere"], "No installed app has a management command 'nowhere'"),
    (["tell", "--secnds=1"], "unrecognized arguments: --secnds=1"),
    (["tell", "--seconds=soon"], "invalid float value: 'soon'"),
    (["tell", "--sec"], "expected one argument"),
    (["tell", None], "a text or a number"),
    (["tell", "--help"], "Leave them out"),
    (["tell", "--settings=evil"], "the worker's own"),
    (["tell", "--pythonp=/tmp"], "the worker's own"),
    (["tell", "--", "--pythonpath=/tmp"], "the worker's own"),
]


@pytest.mark.parametrize(("args", "why"), REFUSED)
def test_what_cannot_be_called_is_refused_when_it_is_saved_and_when_it_is_executed(args, why, capsys):
    with pytest.raises(ValidationError) as caught:
        schedule(*args)
    assert re.search(why, " ".join(caught.value.messages))
    with pytest.raises(InvalidArguments, match=why):
        registry.get_task(TASK).call(*args)
    assert capsys.readouterr().out == ""


class Filed(BaseCommand):
    """A command that reads arguments from files, and one of whose parts does so by another sign."""

    def create_parser(self, *args, **kwargs):
        return super().create_parser(*args, **kwargs, fromfile_prefix_chars="@")

    def add_arguments(self, parser):
        part = parser.add_subparsers().add_parser("part", fromfile_prefix_chars="+")
        part.add_argument("words", nargs="*")


def test_a_file_of_arguments_is_refused(settings, monkeypatch, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": ["filed"]}
    monkeypatch.setattr("django_delayq.calls.commands.line.get_commands", lambda: {"filed": Filed()})
    (tmp_path / "words").write_text("harmless at the check")
    for sign in "@+":
        with pytest.raises(InvalidArguments, match="names a file of arguments"):
            build_words("filed", ["part", f"{sign}{tmp_path}/words"])
    assert build_words("filed", ["part", "a@b", "%c"]) == ["filed", "part", "a@b", "%c"]


def test_the_form_offers_the_names_and_refuses_what_the_command_refuses():
    admin = client_for(superuser=True)
    data = {"name": "f", "task": TASK, "args": '["tell", "--seconds=soon"]', "kind": "cron"}
    page = admin.post("/admin/django_delayq/schedule/add/", data).content.decode()
    assert "invalid float value" in page
    assert "Run a management command of those" in page
    page = admin.post("/admin/django_delayq/schedule/add/", {**data, "args": '["tell"]'}).content.decode()
    assert all(name in page for name in COMMANDS) and "invalid float" not in page
    assert "tell: Say words." in page and "clearsessions: Can be run as a cronjob" in page, "their own help"


# -- one run


def test_what_it_writes_is_the_output_of_a_run_that_has_succeeded(broker):
    schedule("tell", "hello", "--tag=x", broker=broker)
    with capture_output(65536):
        run_burst()
    run = Run.objects.get()
    assert (run.status, run.error) == ("succeeded", "")
    assert sorted(run.outputs.get().text.splitlines()) == ["said hello in tests.settings", "to stderr"]


def test_the_output_of_a_process_that_ended_unread_is_read_at_its_end():
    process = Process(["no-such-command"])
    wait_until(lambda: process.ended, 30, "its end")
    process.end()
    assert any("no-such-command" in line for line in process.last)


def test_an_exit_status_fails_with_the_last_lines_of_stderr(broker):
    schedule("tell", "--fail=no luck", broker=broker)
    run_burst()
    run = Run.objects.get()
    assert run.status == "failed"
    assert run.reason == "django_delayq.calls.commands.child.CommandFailed: tell: exit status 1: CommandError: no luck"
    assert "to stderr\nCommandError: no luck" in run.error


def test_what_is_no_longer_allowed_fails_and_is_not_tried_again(broker, settings):
    schedule("tell", broker=broker, max_attempts=3)
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": ["clearsessions"]}
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.attempt) == ("failed", 1) and "may not be scheduled" in run.reason


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is the kernel's")
def test_a_memory_limit_holds(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "COMMAND_MEMORY_MB": 400}
    schedule("tell", "--megabytes=500", broker=broker)
    run_burst()
    assert (
        Run.objects.get().reason == "django_delayq.calls.commands.child.CommandFailed: tell: exit status 1: MemoryError"
    )


# -- ends


@pytest.mark.parametrize("stubborn", [False, True])
def test_its_timeout_ends_it_with_all_that_it_started(broker, tmp_path, stubborn):
    path = tmp_path / "pids"
    options = ["--seconds=600", f"--pids={path}", *(["--stubborn"] if stubborn else [])]
    for seconds in (2, 8, 32):  # until the command has begun by then, however slow the machine is
        Schedule.objects.all().delete()
        schedule("tell", "before", *options, broker=broker, timeout=timedelta(seconds=seconds))
        with capture_output(65536):
            assert run_burst() == 0, "its thread is not lost"
        if path.exists():
            break
    run = Run.objects.latest("pk")
    assert run.reason == f"django_delayq.exceptions.TaskTimeout: stopped after its timeout of {seconds} s"
    assert "said before" in run.outputs.get().text
    assert not alive(pids_in(path)), "nor a zombie"


def test_who_stops_a_run_ends_its_command(broker, tmp_path):
    path = tmp_path / "pids"
    schedule("tell", "--seconds=600", f"--pids={path}", broker=broker)
    thread = threading.Thread(target=run_burst)
    thread.start()
    pids = pids_in(path)
    wait_until(lambda: Run.objects.filter(status="running").exists(), 20, "a running row")
    assert alive(pids) == set(pids) and Run.objects.get().cancel(by="ann")
    thread.join(30)
    run = Run.objects.get()
    assert (run.status, run.reason) == ("failed", "cancelled by ann")
    gone(pids)


@contextmanager
def running(broker, tmp_path, *words):
    """A worker process, and the pids of the command that it runs, of its guard and of its child: all of them end."""
    path = tmp_path / "pids"
    with worker(COMMANDS=COMMANDS) as process:
        schedule("tell", "hello", "--seconds=600", f"--pids={path}", *words, broker=broker)
        pids = pids_in(path)
        yield process, pids
        gone(pids)


def test_a_process_that_dies_takes_its_command_along(broker, tmp_path):
    with running(broker, tmp_path, "--stubborn") as (process, pids):
        assert alive(pids) == set(pids)
        process.kill()
        process.wait()


def test_a_worker_that_drains_lets_it_end(broker, tmp_path):
    with running(broker, tmp_path, "--seconds=1.5") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert Run.objects.get().status == "succeeded"


def test_a_killed_command_fails_with_the_signal(broker, tmp_path):
    with running(broker, tmp_path) as (process, pids):
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: Run.objects.filter(status="failed").exists(), 30, "the outcome")
        assert process.poll() is None
        wait_until(lambda: "said hello" in output_of(process), what="that its output is also the worker's")
    run = Run.objects.get()
    assert run.reason == "django_delayq.calls.commands.child.CommandFailed: tell: exit status 137: to stderr"
    assert "said hello" in run.outputs.get().text


def test_the_program_of_the_worker_runs_its_commands(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "manage.py", "delayq_worker", "--burst"])
    assert _find_program() == [sys.executable, "-X", "dev", "manage.py"]
    monkeypatch.setattr(sys, "orig_argv", ["gunicorn"])
    assert _find_program() == [sys.executable, "-m", "django"]
