"""`manage.py delayq_worker` as an operator meets it: what wakes it, what it asks, and what it refuses."""

import io
import time
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from django_delayq import actions
from django_delayq.models import Run, Schedule
from django_delayq.worker.timers import WORKERS_FIRST_SECONDS
from tests.acceptance.processes import first_look, settled
from tests.acceptance.support import wait_until, worker
from tests.faults.harness.servers import Server, pointing_at
from tests.support import DAILY_CRON, YEARLY_CRON, count_keys

pytestmark = pytest.mark.django_db(transaction=True)


def noop(name="s", **values):
    values = {"kind": "cron", "cron": DAILY_CRON, **values}
    return Schedule.objects.create(name=name, task="tests.app.tasks.noop", **values)


def test_an_idle_worker_is_woken_by_an_order(broker):
    row = noop()
    with worker(IDLE_CAP_SECONDS=60) as process:
        wait_until(lambda: broker.read_workers())
        look = first_look(broker, process.pid)
        settled(broker)
        run = actions.run_now(row)
        wait_until(lambda: Run.objects.get(pk=run.pk).status == "succeeded")
    run.refresh_from_db()
    assert run.claimed_at < look + timedelta(seconds=60), "the order woke nobody; a regular look found it"


def test_an_idle_worker_hardly_talks_to_redis(prefix):
    seconds, seen = 12, []
    with Server() as server, pointing_at(server.url), server.broker() as broker:
        noop(cron=YEARLY_CRON)

        def asked():
            broker.client.config_resetstat()
            time.sleep(seconds)  # what is measured
            stats = broker.client.info("commandstats").items()
            seen.append({name: value["calls"] for name, value in stats if "config" not in name and "info" not in name})
            return sum(seen[-1].values()) / seconds

        with worker("--queues", "default"):
            wait_until(lambda: broker.read_workers())
            time.sleep(4 * WORKERS_FIRST_SECONDS)  # the sweeps at its start; at first it asks more often how many live
            wait_until(lambda: asked() <= 0.5, what=f"a worker that hardly asks anything; {seen}")  # from some time on


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queues", "default,nope"], "'nope'"),
        (["--queues", ""], "''"),
        (["--threads", "0"], "--threads"),
        (["--max-runs", "0"], "--max-runs: must be at least 1, not 0"),
        (["--processes", "0"], "--processes: must be at least 1, not 0"),
        (["--burst", "--reload"], "--reload"),
        (["--processes", "2", "--reload"], "use it without --processes"),
        (["--processes", "2"], "not call_command"),
    ],
)
def test_options_that_are_wrong_or_exclude_each_other_are_refused(arguments, words):
    with pytest.raises(CommandError, match=words):
        call_command("delayq_worker", *arguments, stdout=io.StringIO())


def test_where_the_mirror_is_off_commands_refuse_to_work_and_touch_no_redis(settings, broker):
    noop()
    count = count_keys(broker)
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    for command in (["delayq_worker"], ["delayq_sync"], ["delayq_sync", "--purge"]):
        with pytest.raises(CommandError, match="MIRROR"):
            call_command(*command, stdout=io.StringIO())
    assert count_keys(broker) == count > 0


def test_missing_tables_are_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr("django_delayq.models.Schedule._meta.db_table", "not_migrated")
    for command in ("delayq_worker", "delayq_sync"):
        with pytest.raises(CommandError, match="migrate"):
            call_command(command, stdout=io.StringIO())
