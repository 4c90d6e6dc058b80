"""F45: log, output, metrics, traces, pings, alerts and receivers raise, block or are gone: no outcome is theirs.

One worker for each fault, in which all of them fail at once, plays each kind of execution.
"""

import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import timedelta

import pytest

from django_delayq.models import Alert, Output, Run, Schedule
from tests.acceptance.support import lines, start_worker, wait_until
from tests.faults import side_channel_tasks as tasks
from tests.faults.harness.load import soon
from tests.faults.harness.shapes import free_ports
from tests.faults.harness.streams import STREAMS
from tests.faults.harness.table import Row
from tests.faults.test_f42_alerts import SECRET
from tests.integration.mirroring import schedule
from tests.receiving import Receiver

pytestmark = pytest.mark.django_db(transaction=True)

MODULE = "tests.faults.side_channel_tasks"
KINDS = {"thread": "in_a_thread", "coroutine": "in_a_coroutine", "isolated": "in_a_process"}
#: What a `blocks` lasts longer than.
TIMEOUT, LEASE = timedelta(seconds=2), 2
COMMAND = "django_delayq.tasks.management_command"


@contextmanager
def told(how):
    """Where pings and alerts go: a server that fails, or none."""
    with Receiver() as receiver:
        receiver.status, receiver.delay_seconds = (500, 0) if how == "raises" else (200, 600)
        yield receiver.host if how != "gone" else f"127.0.0.1:{free_ports(1)[0]}"


def points(path, host):
    """A point of each kind of execution, now."""
    same = {"ping_url": f"http://{host}/p", "max_attempts": 3, "backoff": timedelta(0)}
    for name, task in KINDS.items():
        # A log handler of an isolated task runs in the task's own thread and time.
        timeout = None if name == "isolated" else TIMEOUT
        Schedule.objects.create(
            name=name, task=f"{MODULE}.{task}", args=[str(path)], timeout=timeout, **same, **soon(0.2)
        )
    Schedule.objects.create(name="command", task=COMMAND, args=["tell", "hello"], **same, **soon(0.2))
    schedule("unserved", queue="unserved")  # an alert


@pytest.mark.parametrize("how", ["raises", "blocks", "gone"])
def test_f45_no_side_channel_decides_an_outcome(how, server, settings, tmp_path, note_row):
    path, log, port = tmp_path / "executions", tmp_path / "log", free_ports(1)[0]
    output, redirect = STREAMS[how]
    with told(how) as host, output() as stream:
        alerts = {"WEBHOOK": f"http://{host}/hook", "HOSTS": [host], "SECRET": SECRET, "EVERY": 1}
        settings.DELAYQ = {
            **settings.DELAYQ, "QUEUES": ["default", "mail", "unserved"], "TASK_MODULES": ["tasks", MODULE[13:]],
            "COMMANDS": ["tell"], "ALERTS": alerts, "LEASE_SECONDS": LEASE, "TIMEOUT_GRACE_SECONDS": 1,
        }  # fmt: skip
        points(path, host)
        jobs = [tasks.in_a_thread.enqueue(str(path)), tasks.in_a_process.enqueue(str(path))]
        environment = {"DELAYQ_TEST_BROKEN": how, "DELAYQ_TEST_BROKEN_LOG": str(log)}
        process = start_worker(
            "--queues", "default,mail", "--metrics", str(port), output=stream, environment=environment, cold=True,
            redirect=redirect, TRACES=True,
        )  # fmt: skip
        try:
            ended = Run.objects.filter(origin="due", status__in=["succeeded", "failed", "lost"])
            wait_until(lambda: ended.count() >= 4 or process.poll() is not None, what="the outcomes")
            assert process.poll() is None, log.read_text()
            for job in jobs:
                wait_until(lambda job=job: job.refresh() or job.is_finished, what="the job's end")
            wait_until(lambda: Alert.objects.filter(reported_at__isnull=False).exists(), what="the alert")
            scrape(port, how)
            if how == "blocks":
                process.kill()  # it would wait for them
                process.wait()
            else:
                process.terminate()
                assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    check(path, jobs)
    if how != "blocks":
        said = log.read_text()
        for what in ("OpenTelemetry's tracer", "Writing to std", "The receiver tests.faults.broken.fail of the signal"):
            assert said.count(what) == len({line for line in said.splitlines() if what in line}) > 0, said
    note_row(Row(f"F45 {how}", 6, 0, 0, None, None, None, None, None))


def check(path, jobs):
    """Each was executed once, has succeeded, and what it said is kept."""
    runs = {run.schedule_name: run for run in Run.objects.filter(origin="due")}
    assert {(name, run.status, run.attempt, run.reclaims) for name, run in runs.items()} == {
        (name, "succeeded", 1, 0) for name in [*KINDS, "command"]
    }, [run.error for run in runs.values()]
    assert sorted(word for (word,) in lines(path)) == sorted([*KINDS, "thread", "isolated"])
    for name in KINDS:
        text = runs[name].outputs.get().text
        assert f"printed {name}\n" in text and f"WARNING shop: logged {name}\n" in text
        assert text.count("\n") == 2, text
    assert {"said hello", "to stderr"} <= {line[:10].strip() for line in runs["command"].outputs.get().text.split("\n")}
    for job in jobs:
        job.refresh()
        assert (str(job.status), job.attempts) == ("SUCCESSFUL", 1), job.errors
    assert Output.objects.filter(run__origin="job", run__task=f"{MODULE}.in_a_thread").exists()


def scrape(port, how):
    """Ask for metrics, which a collector of the project spoils."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1):
            raise AssertionError("they were told")
    except urllib.error.HTTPError as error:
        assert error.code == 500
    except TimeoutError:
        assert how == "blocks"
