"""F21: the database or Redis is down: at the start, at a save, in the middle. No busy loop; all resumes afterwards."""

import time
from contextlib import contextmanager

import pytest
from django.db import connection

from django_delayq.models import Schedule
from tests.acceptance.support import wait_until
from tests.faults.harness import database
from tests.faults.harness.load import mixture, schedules
from tests.faults.harness.servers import pointing_at
from tests.faults.harness.usage import AVAILABLE, usage
from tests.faults.harness.workers import WorkerProcess

pytestmark = [pytest.mark.django_db(transaction=True)]
#: Of one processor: what a worker may use while it can do nothing. It needs 1 %, and what else the machine does adds
#: nothing to it; a busy loop takes all that it can get.
IDLE_SHARE = 0.1


@contextmanager
def redis_down(server):
    server.stop()
    try:
        yield
    finally:
        server.start()


AWAY = {"Redis": redis_down, "database gone": lambda _: database.gone(), "database locked": lambda _: database.locked()}


def outage(worker, away, seconds):
    """Let a server be away for so long; return the share of a processor that the worker used, and when it was back."""
    with away:
        time.sleep(1)  # what was under way ends
        before = usage(worker.pid)
        time.sleep(seconds)
        after = usage(worker.pid)
    assert worker.alive
    share = (after.cpu_seconds - before.cpu_seconds) / seconds if AVAILABLE else 0.0
    return share, time.time()


@pytest.mark.parametrize(
    ("what", "seconds"),
    [*((what, 2) for what in AWAY), *(pytest.param(what, 30, marks=pytest.mark.long) for what in AWAY)],
)
def test_f21_a_worker_waits_for_a_server_that_is_down_and_goes_on(what, seconds, server, trace, tmp_path, report):
    histories = mixture(10, trace)
    with WorkerProcess(folder=tmp_path, environment=database.LOCK_SECONDS, LEASE_SECONDS=5) as worker:
        wait_until(lambda: len(trace.executions()) > 10, 30, "a load")
        share, back = outage(worker, AWAY[what](server), seconds)
        wait_until(lambda: len(trace.first_after(back)) == len(histories), 60, "all to go on")
        recovery = max(trace.first_after(back).values())
        note = f"{share:.0%} of a processor"
        report(f"F21 {what} down {seconds} s", histories, recovery=recovery, note=note)
    assert share <= IDLE_SHARE


@pytest.mark.parametrize("what", ["Redis", "database"])
def test_f21_a_worker_started_while_a_server_is_down_waits_for_it(what, server, trace, tmp_path, report):
    histories = schedules(5, trace)
    # A SQLite whose tables are not there is one that was never migrated, and a worker says so and ends.
    away = what if what == "Redis" else f"database {'locked' if connection.vendor == 'sqlite' else 'gone'}"
    with AWAY[away](server):
        worker = WorkerProcess(folder=tmp_path, environment=database.LOCK_SECONDS)
        # Nothing is written at the start where nothing is to be mirrored: a locked database is found when it records.
        said = ("Waiting for it", "The database cannot be used now")
        wait_until(
            lambda: any(text in worker.log() for text in said) or not worker.alive, 30, "that it says what it waits for"
        )
        time.sleep(0.5)  # it goes on waiting
    back = time.time()
    with worker:
        wait_until(lambda: len(trace.first_after(back)) == len(histories), 30, "all to begin")
        recovery = max(trace.first_after(back).values())
        report(f"F21 {what} down at start", histories, recovery=recovery)


@pytest.mark.parametrize("how", ["down", "silent"])
def test_f21_a_save_while_redis_is_down_succeeds_and_is_mirrored_later(how, server, proxy, trace, tmp_path, report):
    histories = schedules(5, trace)
    with pointing_at(proxy.url):
        getattr(proxy, "refuse" if how == "down" else "freeze")()
        for history in histories:
            row = Schedule.objects.get(pk=history.pk)
            row.kind, row.every, row.cron = "cron", None, "* * * * * *"
            row.save()
            history.note(row)
        Schedule.objects.get(pk=histories.pop().pk).delete()
    assert Schedule.objects.unmirrored().count() == len(histories)
    with WorkerProcess(folder=tmp_path):
        wait_until(lambda: not Schedule.objects.unmirrored().exists(), 30, "the sweep")
        edited = time.time()
        wait_until(lambda: len(trace.first_after(edited)) == len(histories), 30, "points of the edited definitions")
        report(f"F21 Redis {how} at save", histories)
    with server.broker() as broker:
        assert broker.read_stats(broker.list_shards()[:1])[0].members == len(histories)
