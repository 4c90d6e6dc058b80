"""F31: another database, or another number of shards, under a prefix that is in use.

Workers, web processes and `delayq_sync` refuse and say what to do; nothing of the rightful owner is removed or delayed.
"""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from io import StringIO

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from django_delayq.index import Broker
from django_delayq.models import Run, Schedule, ScheduleState, Tombstone
from tests.acceptance.support import ROOT, wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.workers import WorkerProcess
from tests.integration.mirroring import mirrored, schedule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("dense")]


class Stranger:
    """Another project: a database of its own, by mistake the same Redis and the same prefix."""

    def __init__(self, path):
        self.database = {"DATABASE_URL": f"sqlite:///{path}", "DELAYQ_TEST_DATABASE": str(path)}

    def python(self, program):
        """Run a program there; return its exit status and all that it said."""
        environment = {
            **os.environ,
            **self.database,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DELAYQ_REDIS_URL": settings.CACHES["default"]["LOCATION"],
            "DELAYQ_TEST_PREFIX": settings.DELAYQ["PREFIX"],
        }
        program = "import django; django.setup()\n" + program
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def migrated(tmp_path_factory):
    path = tmp_path_factory.mktemp("stranger") / "db.sqlite3"
    other = {**os.environ, "DATABASE_URL": f"sqlite:///{path}", "DELAYQ_TEST_DATABASE": str(path)}
    command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    environment = {**other, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=120)
    return path


@pytest.fixture
def stranger(migrated, prefix):
    yield Stranger(migrated)
    with closing(sqlite3.connect(migrated)) as connection, connection:
        for model in (Run, ScheduleState, Tombstone, Schedule):
            connection.execute(f"DELETE FROM {model._meta.db_table}")  # noqa: S608


def content(broker, rows):
    """Return what Redis holds of schedules that are not due, and how many members there are."""
    views = broker.read_views([(f"s{row.pk}", row.queue) for row in rows])
    return views, [stats.members for stats in broker.read_stats(broker.list_shards())], broker.read_layout()


def refused(text, *parts):
    assert [part for part in parts if part not in text] == [], text


#: All that a web process and an operator may do, each with its answer on a line.
EVERYTHING = """
from django.core.management import CommandError, call_command
from django_delayq.models import Schedule
rows = [Schedule(name=f"theirs {n}", task="tests.app.tasks.noop", kind="cron", cron="9 * * * *") for n in range(9)]
for row in rows:
    row.save()
rows[0].queue = "mail"; rows[0].save()
rows[1].pause()
rows[2].delete()
Schedule.objects.filter(name="theirs 3").update(cron="8 * * * *")
for options in ((), ("--dry-run",)):
    try:
        call_command("delayq_sync", *options)
    except CommandError as error:
        print("REFUSED", error)
print("SAVED", Schedule.objects.count())
"""


def test_f31_another_database_under_the_prefix_is_refused_and_removes_nothing(
    broker, stranger, trace, tmp_path, report
):
    rows = [schedule(f"ours {n}") for n in range(9)]
    histories = schedules(3, trace, every=timedelta(seconds=0.25))
    with WorkerProcess(folder=tmp_path).ready() as ours:
        wait_until(lambda: len(trace.executions()) > 3, 30, "runs")
        before = content(broker, rows)
        status, said = stranger.python(EVERYTHING)
        assert status == 0, said
        refused(said, "SAVED 8", settings.DELAYQ["PREFIX"], "another database", "delayq_sync --adopt", "'PREFIX'")
        assert said.count("REFUSED") == 2
        with WorkerProcess(folder=tmp_path, environment=stranger.database) as theirs:
            assert theirs.wait() == 1
            refused(theirs.log(), settings.DELAYQ["PREFIX"], "another database", "delayq_sync --adopt")
        assert content(broker, rows) == before
        known = len(trace.executions())
        wait_until(lambda: len(trace.executions()) > known + 3, 30, "more runs")
        assert ours.alive
        report("F31 another database", histories)
    assert all(mirrored(broker, row) for row in rows)
    assert "WARNING" not in ours.log() and "ERROR" not in ours.log()


def test_f31_who_adopts_the_prefix_gets_it_whole_and_may_give_it_back(broker, stranger, trace, tmp_path, report):
    """A worker of the former owner that still runs ends, says why, and takes nothing with it."""
    schedule("ours")
    histories = schedules(3, trace, every=timedelta(seconds=0.25))
    with WorkerProcess(folder=tmp_path).ready() as former:
        wait_until(lambda: len(trace.executions()) > 3, 30, "runs")
        status, said = stranger.python(
            "from django.core.management import call_command\n"
            "from django_delayq.models import Schedule\n"
            "values = {'name': 'theirs', 'task': 'tests.app.tasks.noop', 'kind': 'cron', 'cron': '9 9 * * *'}\n"
            "Schedule.objects.create(pk=10**9, **values)\n"
            "call_command('delayq_sync', '--adopt')"
        )
        assert status == 0, said
        assert former.wait() == 1
        refused(former.log(), "another database", "delayq_sync --adopt")
    # What the former had claimed in that very moment it has handed back since: the next claim drops it, or a sweep.
    status, said = stranger.python("from django.core.management import call_command\ncall_command('delayq_sync')")
    assert status == 0, said
    names = set().union(*(page for place in broker.list_shards() for page in broker.scan(place)))
    assert names == {f"s{10**9}"}, "all of the new owner, nothing of the former one"
    call_command("delayq_sync", "--adopt", stdout=StringIO())
    known = len(trace.executions())
    with WorkerProcess(folder=tmp_path).ready():
        wait_until(lambda: len(trace.executions()) > known + 3, 30, "runs after it was given back")
        report("F31 adopted, and back", histories)
    status, said = stranger.python("from django.core.management import call_command; call_command('delayq_sync')")
    assert status != 0
    refused(said, "another database")


def test_f31_workers_of_another_number_of_shards_wait_and_touch_nothing_until_the_prefix_is_purged(
    broker, settings, trace, tmp_path, report
):
    rows = [schedule(f"ours {n}") for n in range(9)]
    histories = schedules(3, trace, every=timedelta(seconds=0.25))
    with WorkerProcess(folder=tmp_path).ready() as ours:
        wait_until(lambda: len(trace.executions()) > 3, 30, "runs")
        before = content(broker, rows)
        with WorkerProcess(folder=tmp_path, SHARDS={"default": 3}) as another:
            wait_until(lambda: ours.name in another.log(), 30, "who waits")
            refused(another.log(), "'default'", "1 shards", "3 in DELAYQ['SHARDS']")
        settings.DELAYQ = {**settings.DELAYQ, "SHARDS": {"default": 3}}
        with pytest.raises(CommandError, match="restart all of them"):
            call_command("delayq_sync", stdout=StringIO())
        assert content(broker, rows) == before
        ours.kill()  # it is waited for until it is taken for dead
    call_command("delayq_sync", "--purge", stdout=StringIO())
    known = len(trace.executions())
    with WorkerProcess(folder=tmp_path).ready():
        wait_until(lambda: len(trace.executions()) > known + 3, 30, "runs in three shards")
        report("F31 another number of shards", histories)
    sharded = Broker(timeout_seconds=5)
    assert all(mirrored(sharded, row) for row in rows)
    shards = sharded.list_shards(["default"])
    named = {sharded.get_shard(f"s{pk}", "default") for pk in Schedule.objects.values_list("pk", flat=True)}
    assert {shard for shard, stats in zip(shards, sharded.read_stats(shards), strict=True) if stats.members} == named
    sharded.close()
