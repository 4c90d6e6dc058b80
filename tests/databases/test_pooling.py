"""PostgreSQL behind a pooler that gives connections away after each transaction: nothing of ours stays in a session."""

import os
import time
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from django_delayq import sync
from django_delayq.models import Run, Schedule
from tests.acceptance.support import wait_until
from tests.databases.pooler import Pooler, find_pooler
from tests.faults.harness.load import mixture, schedules
from tests.faults.harness.trace import Trace
from tests.faults.harness.verdict import decided
from tests.faults.harness.workers import Fleet
from tests.integration.admin_pages import ADD, LIST, change_url, client_for, fields
from tests.integration.mirroring import absent, mirrored
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pooler(tmp_path, transactional_db):
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: set DATABASE_URL")
    if find_pooler() is None:
        assert not os.environ.get("CI"), "install the package pgbouncer"
        pytest.skip("needs pgbouncer")
    with Pooler(tmp_path) as started:
        yield started


@pytest.fixture
def trace(tmp_path):
    return Trace(tmp_path / "trace")


def test_two_workers_with_more_threads_than_connections_miss_and_double_nothing(pooler, broker, trace, tmp_path):
    with pooler.here():
        boss = client_for(superuser=True)
        histories = mixture(20, trace)
        with Fleet(2, "--threads", "8", folder=tmp_path, environment=pooler.environment) as fleet:
            end = time.monotonic() + 5
            while time.monotonic() < end:
                for history in histories[:2]:
                    row = Schedule.objects.get(pk=history.pk)
                    form = fields(name=row.name, cron="", kind="every", every="1s", task=row.task, seen="")
                    form |= {"kwargs": f'{{"path": "{trace.path}"}}', "description": str(time.time())}
                    assert boss.post(change_url(row), form).status_code == 302
                call_command("delayq_export", stdout=StringIO())  # by a cursor of the server
            verdict = decided(histories, trace)
            assert fleet.stop() == [0, 0]
            logs = "".join(worker.log() for worker in fleet.workers)
    assert verdict.points > 50
    assert verdict.clean, verdict.complaints()
    assert "Traceback" not in logs
    assert "cannot be used" not in logs


def test_a_web_process_does_all_that_the_admin_and_the_commands_offer(pooler, broker):
    with pooler.here():
        boss = client_for(superuser=True)
        assert boss.post(ADD, fields(cron=DAILY_CRON)).status_code == 302
        row = Schedule.objects.get()
        assert mirrored(broker, row)
        assert boss.get(LIST).status_code == 200
        assert boss.post(f"{LIST}{row.pk}/run-now/").status_code == 302
        make_due(broker, row)
        run_burst(threads=8)
        assert set(Run.objects.values_list("origin", "status")) == {("manual", "succeeded"), ("due", "succeeded")}
        assert sync.sweep_fully(broker).done
        call_command("delayq_status", "s")
        assert boss.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
        assert absent(broker, row)


def test_a_pooler_that_is_restarted_costs_a_moment_and_no_point(pooler, broker, trace, tmp_path):
    histories = schedules(4, trace, missed="all", overlap="queue_all", every=timedelta(seconds=1))
    with Fleet(2, "--threads", "4", folder=tmp_path, environment=pooler.environment) as fleet:
        wait_until(lambda: Run.objects.filter(status="succeeded").count() > 4, 20, "runs before")
        pooler.stop()
        wait_until(lambda: any("cannot be used" in worker.log() for worker in fleet.workers), 20, "the outage")
        pooler.start()
        known = Run.objects.count()
        wait_until(lambda: Run.objects.count() > known + 4, 20, "runs afterwards")
        verdict = decided(histories, trace)
        assert all(worker.alive for worker in fleet.workers)
    assert verdict.clean, verdict.complaints()
    assert not Run.objects.filter(status="failed").exists()
