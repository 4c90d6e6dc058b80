"""F42: states of alerts begin and end while workers are killed and Redis is flushed: one message each way."""

import itertools
import json
import re
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta

import pytest

from django_delayq.models import Alert, Run, Schedule, ScheduleState
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.faults.harness.background import Background
from tests.faults.harness.load import schedules
from tests.faults.harness.workers import WorkerProcess
from tests.faults.patched.apps import patches
from tests.integration.mirroring import schedule
from tests.receiving import Receiver

pytestmark = pytest.mark.django_db(transaction=True)
UNSERVED = ["a", "b", "c", "d"]
SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
#: What workers do to themselves in the middle of a change, one after the other: each of the first three dies of it.
DEATHS = ("before_alert=kill@1", "after_alert=kill@2", "before_alert=kill@3", "")


class Chaos(Background):
    """Kills the oldest of the workers that serve most queues, again and again, and flushes Redis in between.

    Only once it works: on a slow machine each would otherwise be killed while it starts.
    """

    def __init__(self, server, start):
        super().__init__()
        self._server, self._start, self.kills, self.deaths, self.flushes = server, start, 0, 0, 0
        self._texts = itertools.cycle(DEATHS)
        self.workers = [start(failpoints=next(self._texts)) for _ in range(3)]

    def watch(self):
        while not self.ended.wait(2.0):
            dead = [worker for worker in self.workers if not worker.alive]
            dead = dead or [worker for worker in self.workers[:1] if "tasks known" in worker.log()]
            for worker in dead:
                self.deaths += not worker.alive
                worker.end()
                self.workers.remove(worker)
                self.workers.append(self._start(failpoints=next(self._texts)))
                self.kills += 1
            if dead and self.kills % 2:
                self._server.flush()
                self.flushes += 1


@pytest.fixture
def told(settings, tmp_path):
    """Where messages arrive, and the options and environment of workers that send them there."""
    with Receiver() as receiver:
        alerts = {
            "MAIL": ["ops@example.com"], "WEBHOOK": f"{receiver.url}/hook", "HOSTS": [receiver.host], "SECRET": SECRET,
            "FAILURES": 2, "EVERY": 2,
        }  # fmt: skip
        same = {"QUEUES": ["default", "mail", *UNSERVED], "IDLE_CAP_SECONDS": 1, "MAX_RECLAIMS": 100}
        settings.DELAYQ = {**settings.DELAYQ, **same, "ALERTS": alerts, "LEASE_SECONDS": 2}
        yield receiver


def enter(trace, gate):
    """Have states begin; return them by kind and subject."""
    begun = {("failed_jobs", queue) for queue in ("default", "mail")}
    for queue in ("default", "mail"):
        tasks.fail.using(queue_name=queue).enqueue()
    failing = schedules(
        6, trace, task="tests.faults.tasks.fail_at", kwargs={"path": str(trace.path), "gate": str(gate)}
    )
    begun |= {("failing", str(each.pk)) for each in failing}
    late = [each.pk for each in failing[:4]]
    Schedule.objects.filter(pk__in=late).update(expected_within=timedelta(seconds=3))
    begun |= {("late", str(pk)) for pk in late}
    unknown = [schedule(f"unknown {number}") for number in range(4)]
    Schedule.objects.filter(name__startswith="unknown").update(task="gone.tasks.send")
    begun |= {("unknown_task", str(row.pk)) for row in unknown}
    return begun | {("no_worker", queue) for queue in UNSERVED}


def leave(gate):
    """Have them end, by success first; what has succeeded is switched off, so that no slow machine is late again."""
    gate.unlink()
    Schedule.objects.filter(name__startswith="unknown").update(task="tests.app.tasks.noop")
    Run.objects.filter(origin="job", status="failed", task="tests.app.tasks.fail").delete()
    own = ScheduleState.objects.filter(schedule__task="tests.faults.tasks.fail_at")
    wait_until(lambda: not own.filter(failing_streak__gt=0).exists(), 120, "a success of each")
    Schedule.objects.filter(task="tests.faults.tasks.fail_at").update(enabled=False)


def open_states():
    return set(Alert.objects.filter(reported_at__isnull=False, recovered_at=None).values_list("kind", "subject"))


def mailed(folder):
    found = [re.findall(r"^Message-ID: <(\S+)@", path.read_text(), re.M) for path in folder.iterdir()]
    return {name for names in found for name in names}


def test_f42_one_message_each_way_of_every_state_whatever_is_killed_or_flushed(server, trace, told, tmp_path):
    gate, mails = tmp_path / "gate", tmp_path / "mails"
    gate.touch()
    mails.mkdir()
    environment = {"DELAYQ_TEST_MAIL": str(mails), **patches("upkeep_ms=1000")}  # its holder dies again and again
    for queue in UNSERVED:
        schedule(queue, queue=queue)
    with WorkerProcess("--burst", folder=tmp_path, environment=environment) as first:  # builds all
        assert first.wait(60) == 0
    with ExitStack() as stack:

        def start(*arguments, **how):
            arguments = arguments or ("--queues", "default,mail")
            worker = WorkerProcess(*arguments, folder=tmp_path, environment=environment, **how)
            return stack.enter_context(worker)

        calm = start()
        wait_until(lambda: {("no_worker", queue) for queue in UNSERVED} <= open_states(), 60, f"{calm.log()[-800:]}")
        calm.kill()
        with Chaos(server, start) as chaos:
            begun = enter(trace, gate)
            assert len(begun) == 20
            wait_until(lambda: begun <= open_states(), 240, f"all: {begun - open_states()}")
            wait_until(lambda: chaos.kills > 3 and chaos.deaths and chaos.flushes > 1, 60, "kills and flushes")
            start("--queues", ",".join(UNSERVED))
            leave(gate)
            wait_until(lambda: not begun & open_states(), 120, f"ends: {begun & open_states()}")
        wait_until(lambda: all(len(row.sent) in (2, 4) for row in rows()), 120, "deliveries")
        unfinished = Run.objects.filter(origin="job").exclude(status="succeeded")
        wait_until(lambda: not begun & open_states() and not unfinished.exists(), 120, "jobs")
    expected = {f"{row.pk}.opened" for row in rows()} | {f"{row.pk}.recovered" for row in rows() if row.recovered_at}
    hooked = {request.headers["webhook-id"] for request in told.requests}
    assert hooked == expected and mailed(mails) == expected
    times = Counter((row.kind, row.subject) for row in rows())
    assert {state: times[state] for state in begun} == dict.fromkeys(begun, 1)
    bodies = {json.loads(request.body)["type"] for request in told.requests}
    assert bodies == {"alert.opened", "alert.recovered"}
    killed = f"{chaos.kills} kills ({chaos.deaths} within a change), {chaos.flushes} flushes"
    print(f"{killed}: {len(told.requests)} requests for {len(expected)} messages")


def rows():
    return [row for row in Alert.objects.all() if row.reported_at is not None]


def test_f42_a_message_whose_worker_is_killed_is_sent_by_another(server, told, tmp_path):
    """Nobody else looks: the job alone brings it."""
    mails = tmp_path / "mails"
    mails.mkdir()
    row = schedule("nightly")
    ScheduleState.objects.update_or_create(schedule=row, defaults={"failing_streak": 2})
    told.delay_seconds = 600  # whoever sends hangs
    with WorkerProcess(folder=tmp_path, environment={"DELAYQ_TEST_MAIL": str(mails)}) as worker:
        wait_until(lambda: Run.objects.filter(origin="job", status="running").exists(), 60, worker.log()[-500:])
        time.sleep(0.1)  # until it has begun to send
        worker.kill()
    server.flush()
    told.delay_seconds = 0
    with WorkerProcess(folder=tmp_path, environment={"DELAYQ_TEST_MAIL": str(mails)}):
        wait_until(
            lambda: {request.headers["webhook-id"] for request in told.requests} >= {f"{key()}.opened"}, 60, "it"
        )
        wait_until(lambda: mailed(mails) >= {f"{key()}.opened"}, 60, "the mail")


def key():
    return Alert.objects.get(kind="failing").pk
