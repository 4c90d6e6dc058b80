"""F19: transactions that are rolled back or half kept, a process that dies between COMMIT and Redis, edits that arrive
late. Redis ends with what the database has, within the delta sweep.
"""

import os
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection, connections, transaction

from django_delayq import actions
from django_delayq.index import Broker
from django_delayq.models import Run, Schedule, Tombstone
from tests.acceptance.support import ROOT, wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.table import Row
from tests.faults.harness.verdict import goes_on
from tests.faults.harness.workers import WorkerProcess
from tests.faults.live import live_worker
from tests.integration.mirroring import absent, mirrored, schedule, view
from tests.support import DAILY_CRON, OTHER_DAILY_CRON, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.mark.smoke
def test_f19_a_rolled_back_transaction_leaves_no_trace_under_a_live_worker(broker, dense, trace, report):
    """Everything that can be written is written and taken back, again and again, while the schedules run."""
    histories = schedules(5, trace, every=timedelta(seconds=0.2))
    rows = list(Schedule.objects.all())
    with live_worker():
        for number in range(8):
            row = rows[number % 5]
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                row.refresh_from_db()
                row.kind, row.cron, row.every = "cron", "0 0 1 1 *", None
                row.save()
                schedule(f"never {number}")
                Schedule.objects.exclude(pk=row.pk).update(enabled=False)
                actions.run_now(row)
                Schedule.objects.all().delete()
                1 / 0  # noqa: B018 - the transaction fails
            goes_on(broker, histories)  # each of them: what a transaction wrote into Redis would stop some of them
        report("F19 rolled back", histories)
    assert not Tombstone.objects.exists()
    assert broker.read_stats(broker.list_shards()[:1])[0].members == 5


def test_f19_of_nested_transactions_only_what_was_committed_reaches_redis(broker):
    row, other = schedule("a"), schedule("b")
    before = view(broker, row)
    with transaction.atomic():
        with transaction.atomic():
            Schedule.objects.filter(pk=row.pk).update(cron="5 * * * *")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            Schedule.objects.filter(pk=row.pk).update(cron="6 * * * *", queue="mail")
            other.delete()
            schedule("inner")
            1 / 0  # noqa: B018 - the inner transaction fails
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with transaction.atomic():
                schedule("innermost")
            1 / 0  # noqa: B018 - the inner one was kept, the outer one is not
        assert view(broker, row) == before, "nothing reaches Redis before the outermost commit"
    assert set(Schedule.objects.values_list("name", "cron", "queue")) == {
        ("a", "5 * * * *", "default"), ("b", DAILY_CRON, "default"),
    }  # fmt: skip
    assert all(mirrored(broker, one) for one in Schedule.objects.all())
    assert broker.read_stats(broker.list_shards()[:1])[0].members == 2
    assert not Tombstone.objects.exists()


PROGRAM = """
import django; django.setup()
from django.db import transaction
from django_delayq import actions
from django_delayq.models import Schedule
from tests.support import DAILY_CRON, OTHER_DAILY_CRON
row = {row.name: row for row in Schedule.objects.all()}
with transaction.atomic():
    Schedule.objects.create(name="new", task="tests.app.tasks.noop", kind="cron", cron=DAILY_CRON)
    row["edit"].cron = OTHER_DAILY_CRON; row["edit"].save()
    row["pause"].pause("before the crash")
    row["move"].queue = "mail"; row["move"].save()
    row["deletion"].delete()
    actions.run_now(row["order"])
"""


def crash():
    """Run a web process that dies between COMMIT and Redis; return its exit status."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DELAYQ_REDIS_URL": settings.CACHES["default"]["LOCATION"],
        "DELAYQ_TEST_DATABASE": str(connection.settings_dict["NAME"]),
        "DELAYQ_TEST_PREFIX": settings.DELAYQ["PREFIX"],
        "DELAYQ_FAILPOINTS": "before_mirror=kill",
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, timeout=60, check=False
    ).returncode


def test_f19_what_was_committed_by_a_process_that_died_before_redis_is_made_up_for(broker, tmp_path, note_row):
    rows = {name: schedule(name) for name in ("edit", "pause", "move", "deletion", "order")}
    with WorkerProcess(folder=tmp_path):
        wait_until(
            lambda: broker.read_note("swept"),
            what="the end of the full sweep at its start; the next one comes too late",
        )
        assert crash() == -9
        assert Schedule.objects.filter(name="new").exists(), "it died after the COMMIT"
        took = wait_until(lambda: converged(broker, rows), 30, "Redis to agree")
        wait_until(lambda: Run.objects.filter(origin="manual", status="succeeded").exists(), 30, "the ordered run")
    note_row(Row("F19 died after COMMIT", 6, 0, 0, None, None, None, None, None, took, None))


def converged(broker, rows):
    return (
        all(mirrored(broker, row) for row in Schedule.objects.filter(enabled=True))
        and absent(broker, rows["pause"])
        and absent(broker, rows["deletion"])
        and absent(broker, rows["move"], "default")
        and not Schedule.objects.unmirrored().exists()
    )


def pause(row):
    row.pause()


def move(row):
    row.queue = "mail"
    row.save()


def edit(row):
    row.cron = OTHER_DAILY_CRON
    row.save()


def delete(row):
    row.delete()


@pytest.mark.parametrize("newer", [edit, pause, move, delete])
def test_f19_an_older_definition_that_is_delivered_late_does_not_undo_a_newer_one(broker, monkeypatch, newer):
    """Two web processes: the first has read its definition and is held up before it writes to Redis."""
    row = schedule()
    reached, go, upsert = threading.Event(), threading.Event(), Broker.upsert

    def late_upsert(self, *args, **kwargs):
        if threading.current_thread().name == "late":
            reached.set()
            assert go.wait(20)
        return upsert(self, *args, **kwargs)

    def older():
        try:
            edited = Schedule.objects.get()
            edited.cron = "0 0 1 1 *"
            edited.save()
        finally:
            connections.close_all()

    monkeypatch.setattr(Broker, "upsert", late_upsert)
    thread = threading.Thread(target=older, name="late")
    thread.start()
    assert reached.wait(20)
    row = Schedule.objects.get()
    pk = row.pk
    newer(row)
    go.set()
    thread.join(20)
    if newer is edit:
        assert mirrored(broker, row), "at once, without a sweep"
    run_burst()
    row.pk = pk
    assert not Run.objects.exists()
    if newer in (pause, delete, move):
        assert absent(broker, row, "default")
    if newer in (edit, move):
        assert mirrored(broker, Schedule.objects.get())
    assert not Schedule.objects.unmirrored().exists()
