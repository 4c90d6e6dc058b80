"""What runs is stopped by a person, on whatever worker, and is not tried again."""

import asyncio
import re
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from django_delayq import ledger
from django_delayq.exceptions import TaskCancelled
from django_delayq.models import Run
from django_delayq.recurrence.point import utcnow
from django_delayq.worker import loop, showing
from django_delayq.worker.calling import perform_task
from django_delayq.worker.held import Lease
from django_delayq.worker.timeouts import Timeouts, Watch
from tests.acceptance.support import wait_until
from tests.integration import mirroring
from tests.integration.admin_pages import client_for, make_job, text_of
from tests.integration.mirroring import Running, idle_worker
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def brisk(settings, monkeypatch):
    """What runs has its row sooner, and is looked at more often."""
    settings.DELAYQ = {**settings.DELAYQ, "RUNNING_AFTER_SECONDS": 0.1}
    monkeypatch.setattr(showing, "LOOK_SECONDS", 0.1)


def schedule(broker, task, **values):
    row = mirroring.schedule("endless", task=f"tests.app.tasks.{task}", max_attempts=5, **values)
    make_due(broker, row)
    return row


def running():
    wait_until(lambda: Run.objects.filter(status="running").exists(), 20, "a running row")
    return Run.objects.get()


@pytest.mark.parametrize("task", ["spin", "aspin"])
@pytest.mark.parametrize("timeout", [None, timedelta(hours=1)])
def test_what_runs_is_stopped_and_not_tried_again(broker, task, timeout, tmp_path):
    path = {"path": str(tmp_path / "ran")} if task == "aspin" else {}
    schedule(broker, task, timeout=timeout, kwargs={"seconds": 600, **path})
    with Running(threads=2):
        run = running()
        assert run.cancel(by="ann")
        wait_until(lambda: Run.objects.get().status == "failed", 20, "the end")
    run.refresh_from_db()
    assert (run.status, run.reason, run.attempt) == ("failed", "cancelled by ann", 1)
    assert "TaskCancelled" in run.error
    assert not run.cancel()


def test_a_task_that_waits_in_c_is_recorded_without_it_after_the_grace(broker, settings, monkeypatch, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "TIMEOUT_GRACE_SECONDS": 0.3}
    monkeypatch.setattr(loop, "SLOTS_SECONDS", 0.2)
    schedule(broker, "ablock", kwargs={"path": str(tmp_path / "ran"), "seconds": 6})
    with Running(threads=2) as running_worker:
        running().cancel()
        wait_until(lambda: Run.objects.get().status == "failed", 20, "the end")
        wait_until(lambda: running_worker.worker.leaving, 20, "a process that is to be replaced")
    run = Run.objects.get()
    assert run.reason == "cancelled"
    assert "Still running" in run.error


def made():
    """Return an entry under a lease that no server knows."""
    return Lease(None, "j1", "lease", time.monotonic() + 60, None, "", "", None, None)


def test_what_is_about_to_be_called_is_asked_about_again():
    """Between the slot and the task there is code of ours: a request that comes then is not used up."""
    timeouts = Timeouts(grace_seconds=1, give_up=print, overdue=print, forget=print)
    held = made()
    assert not timeouts.cancel(held, "ann")
    assert held.stopped_by is None


def test_a_coroutine_that_was_stopped_before_its_loop_ran_ends_at_once():
    held = made()
    timeouts = Timeouts(grace_seconds=60, give_up=print, overdue=print, forget=lambda: None)

    class Spun:
        @staticmethod
        async def func():
            """Never ends."""

        @staticmethod
        async def acall():
            await asyncio.sleep(600)

    class Watches(set):
        def add(self, watch):
            super().add(watch)
            assert timeouts.cancel(held, "ann"), "the loop does not run yet"

    timeouts._watches = Watches()
    ended = perform_task(held, Spun, timeouts)
    assert type(ended[1]) is TaskCancelled


def test_a_hard_timeout_that_comes_sooner_is_not_put_off():
    held = made()
    timeouts = Timeouts(grace_seconds=60, give_up=print, overdue=print, forget=print)
    watch = Watch(held, 1.0, 0.5, interrupt=False)
    timeouts._watches.add(watch)
    due = watch.hard_at
    timeouts.cancel(held, "ann")
    assert watch.hard_at == due


def test_what_is_not_asked_about_goes_on(broker):
    schedule(broker, "spin", kwargs={"seconds": 1.5})
    with Running(threads=2):
        run = running()
        assert not Run.objects.filter(pk=run.pk + 1).request_stop()
        wait_until(lambda: Run.objects.get().status == "succeeded", 20, "the end")


def test_a_request_is_made_once_and_only_while_it_can_be_followed():
    run, ended = make_running(), make_job()
    assert run.cancel(by="ann") and run.cancel(by="bob")
    run.refresh_from_db()
    assert run.stop_requested_by == "ann"
    assert ledger.read_stop_requests([run.pk, ended.pk]) == {run.pk: "ann"}
    Run.objects.update(status="succeeded")
    assert not run.cancel(), "whatever this instance knows of it"


def test_an_outcome_and_a_request_leave_each_other_alone():
    run = make_running()
    row = ledger.load_runs([run.pk])[run.pk]
    outcome = ledger.Outcome(row, ledger.load_schedules([run.schedule_id])[run.schedule_id], ledger.get_version(row))
    run.cancel(by="ann")
    row.status, row.finished_at = "retrying", utcnow()
    assert ledger.record([outcome]) == [ledger.Won.YES]
    assert ledger.read_stop_requests([run.pk]) == {run.pk: "ann"}, "who takes over follows it too"


def test_a_retry_of_a_job_ends_the_request():
    job = make_job()
    Run.objects.update(stop_requested_at=utcnow(), stop_requested_by="ann")
    assert ledger.retry_job(job, utcnow())
    job.refresh_from_db()
    assert (job.status, job.stop_requested_at, job.stop_requested_by) == ("queued", None, "")


def test_without_the_database_what_runs_goes_on_and_is_asked_about_later(broker, monkeypatch):
    asked = []

    def away(keys):
        asked.append(keys)
        raise OperationalError("gone")

    class Running:
        stopped_by, title, outcome = None, "a run", SimpleNamespace(run=SimpleNamespace(pk=1))

    monkeypatch.setattr(ledger, "read_stop_requests", away)
    worker = idle_worker()
    worker.showing._stop_on_request([Running()])
    worker.showing._stop_on_request([Running()])
    assert len(asked) == 1
    worker.showing._backoff.until = 0.0
    worker.showing._stop_on_request([Running()])
    assert len(asked) == 2
    worker.broker.close()


def make_running():
    row = mirroring.schedule("<b>endless</b>", timeout=timedelta(hours=1))
    now = utcnow()
    values = {"status": "running", "worker": "host:1", "claimed_at": now, "started_at": now - timedelta(minutes=5)}
    run = Run.build_for(row, now, **values)
    run.save()
    return run


def test_the_page_of_what_runs_leads_to_a_stop_that_asks_first(boss):
    run = make_running()
    page = boss.get("/admin/django_delayq/overview/now/")
    assert "&lt;b&gt;endless" in page.content.decode() and "<b>endless" not in page.content.decode()
    text = text_of(page)
    assert "host:1" in text
    assert "54m" in text or "55m" in text, "the time that is left"
    stop = f"/admin/django_delayq/run/{run.pk}/stop/"
    assert stop in page.content.decode()
    assert "Stop" in text_of(boss.get(f"/admin/django_delayq/run/{run.pk}/change/"))
    assert "The task gets TaskCancelled" in text_of(boss.get(stop))
    run.refresh_from_db()
    assert run.stop_requested_at is None, "it only asks"
    boss.post(stop)
    run.refresh_from_db()
    assert run.stop_requested_at is not None
    assert re.search(r"stop requested \d+s ago Stop…", text_of(boss.get("/admin/django_delayq/overview/now/")))


def test_whoever_may_only_look_is_led_to_no_stop():
    make_running()
    viewer = client_for("view_run", "view_schedule")
    assert "Stop" not in text_of(viewer.get("/admin/django_delayq/overview/now/"))
