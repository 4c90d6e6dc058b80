"""Writes, the mirror, the worker and the commands, with the app in a database of its own."""

import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction

from django_delayq import actions, sync
from django_delayq.models import Run, Schedule, Tombstone
from tests.acceptance.support import PATIENCE_SECONDS, wait_until, worker
from tests.integration.mirroring import absent, mirrored, schedule, view
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "schedules"])


def names_of_databases():
    """Return what tells a process of its own which databases to use. Its replica has no tables: nobody may read it."""
    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in ("default", "schedules")}
    empty = "postgres" if connections["schedules"].vendor == "postgresql" else ":memory:"
    return {
        "DJANGO_SETTINGS_MODULE": "tests.databases.settings",
        "DELAYQ_TEST_DATABASES": json.dumps({**names, "replica": empty}),
    }


def test_the_tables_are_where_the_router_sends_them():
    tables = {alias: connections[alias].introspection.table_names() for alias in ("default", "schedules")}
    assert "django_delayq_schedule" in tables["schedules"]
    assert "django_delayq_schedule" not in tables["default"]
    assert "auth_user" not in tables["schedules"]


def old():
    return Schedule.objects.filter(name="old")


def edited():
    row = old().get()
    row.cron = "7 * * * *"
    return row


NEW = {"name": "new", "task": "tests.app.tasks.noop", "kind": "cron", "cron": "0 * * * *"}
WRITES = {
    "create": lambda: Schedule.objects.create(**NEW),
    "bulk_create": lambda: Schedule.objects.bulk_create([Schedule(**NEW)]),
    "edit": lambda: edited().save(),
    "update": lambda: old().update(cron="7 * * * *"),
    "bulk_update": lambda: Schedule.objects.bulk_update([edited()], ["cron"]),
    "delete": lambda: old().get().delete(),
    "delete in bulk": lambda: old().delete(),
    "move": lambda: old().update(queue="mail"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_redis_follows_a_write_after_the_commit_of_the_right_database_and_not_before(broker, write):
    row = schedule("old")
    before = view(broker, row)
    with transaction.atomic(using="schedules"):
        with transaction.atomic(using="default"):
            write()
        assert view(broker, row) == before, "another database's commit is not the one to wait for"
        assert broker.read_stats(broker.list_shards()[:1])[0].members == 1
    assert all(mirrored(broker, each) for each in Schedule.objects.all())
    if not old().filter(queue="default").exists():
        assert absent(broker, row, "default")
    assert not Tombstone.objects.exists()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_rolled_back_write_leaves_no_trace(broker, write):
    row = schedule("old")
    before = view(broker, row)
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="schedules"):
        write()
        1 / 0  # noqa: B018 - the transaction fails
    assert Schedule.objects.get().cron == row.cron
    assert view(broker, row) == before
    assert broker.read_stats(broker.list_shards()[:1])[0].members == 1


def test_a_fixture_is_loaded_and_mirrored(broker, tmp_path):
    schedule("old")
    file = tmp_path / "schedules.json"
    call_command("dumpdata", "django_delayq.schedule", database="schedules", output=str(file), verbosity=0)
    Schedule.objects.all().delete()
    call_command("loaddata", str(file), database="schedules", verbosity=0)
    assert mirrored(broker, Schedule.objects.get(name="old"))


def test_the_sweeps_make_up_for_what_redis_has_missed(broker):
    schedule("a")
    gone = schedule("b")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("django_delayq.sync.after_commit._attempt", lambda *args: None)
        Schedule.objects.filter(name="a").update(cron="7 * * * *")
        Schedule.objects.get(name="b").delete()
        actions.run_now(Schedule.objects.get(name="a"))
    assert Tombstone.objects.exists()
    broker.swap_epochs([broker.list_shards()[0]], None, "test")
    assert sync.sweep_delta(broker)
    assert mirrored(broker, Schedule.objects.get(name="a"))
    assert absent(broker, gone)
    broker.purge()
    sync.check_layout(broker)
    assert sync.sweep_fully(broker).done
    assert mirrored(broker, Schedule.objects.get(name="a"))


def test_a_worker_runs_retries_and_records_in_the_primary(broker, tmp_path):
    good = schedule("good", cron=DAILY_CRON)
    flaky = schedule(
        "flaky", task="tests.app.tasks.flaky", kwargs={"path": str(tmp_path / "f"), "failures": 1}, cron=DAILY_CRON,
        max_attempts=2, backoff=timedelta(milliseconds=10),
    )  # fmt: skip
    make_due(broker, good)
    make_due(broker, flaky)
    run_burst()
    wait_until(lambda: run_burst() == 0 and not Run.objects.open().exists(), 10, "the second attempt")
    assert set(Run.objects.values_list("schedule_name", "status")) == {("good", "succeeded"), ("flaky", "succeeded")}


def test_a_worker_process_never_asks_the_replica(broker):
    row = schedule("beat", kind="every", every=timedelta(seconds=1), cron="", missed="all", overlap="queue_all")
    with worker(environment=names_of_databases()) as process:
        wait_until(lambda: Run.objects.filter(status="succeeded").count() >= 2, 20, "two runs")
        order = actions.run_now(row)
        wait_until(lambda: Run.objects.filter(pk=order.pk, status="succeeded").exists(), 20, "the order")
        schedule("later", kind="every", every=timedelta(seconds=1), cron="")
        wait_until(lambda: Run.objects.filter(schedule_name="later", status="succeeded").exists(), 20, "a new one")
        Schedule.objects.get(name="beat").delete()
        wait_until(lambda: not Tombstone.objects.exists(), 20, "Redis to hear of it, by a sweep where it was slow")
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    "command", [["check"], ["delayq_sync"], ["delayq_status", "--json", "--timeout", "60"], ["delayq_status", "s"]]
)
def test_the_commands_work_on_the_primary(broker, command):
    schedule("s", cron=DAILY_CRON)
    sync.check_layout(broker)
    environment = {
        **os.environ,
        **names_of_databases(),
        "DELAYQ_REDIS_URL": settings.CACHES["default"]["LOCATION"],
        "DELAYQ_TEST_OPTIONS": json.dumps(settings.DELAYQ),
    }
    program = [sys.executable, "-m", "django", *command]
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    if "--json" in command:
        assert {item["code"] for item in json.loads(done.stdout)["problems"]} <= {"no_worker", "not_built"}, done.stdout
        assert json.loads(done.stdout)["database"]["alias"] == "schedules"
    else:
        assert done.returncode == 0, done.stdout + done.stderr
