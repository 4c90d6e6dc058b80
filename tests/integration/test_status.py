"""What `delayq_status` sees in Redis and the database, also of jobs, and how it says so."""

import time
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from django_delayq import actions
from django_delayq.index import Broker, Settlement
from django_delayq.management.commands.delayq_status import build_dict, format_lines
from django_delayq.models import Condition, Origin, Run, ScheduleState
from django_delayq.monitoring import database_side
from django_delayq.monitoring.snapshot import Snapshot
from django_delayq.recurrence.point import utcnow
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.app import tasks
from tests.integration.mirroring import schedule
from tests.integration.probing import ask, beat, build, codes, text, well
from tests.jobs.support import Standing
from tests.support import count_keys, make_due

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["well"]


def test_all_is_well_where_a_worker_lives_and_everything_is_mirrored(well):
    schedule()
    assert ask()[0] == 0
    shown = text()
    assert shown.splitlines()[0] == "All is well."
    assert "Problem" not in shown


def test_the_json_has_exactly_the_documented_keys(well):
    schedule()
    found = ask()[1]
    assert list(found) == [
        "status", "problems", "prefix", "layout", "redis", "workers", "shards", "differences", "stale_edits",
        "database", "unknown_tasks", "late", "load", "last_hour", "held_back", "unnamed", "pruned",
    ]  # fmt: skip
    server = found["redis"][0]
    assert set(server) == {
        "name", "version", "memory_policy", "used_bytes", "max_bytes", "appendonly", "disk_problem",
    }  # fmt: skip
    assert set(found["workers"][0]) == {
        "name", "queues", "heartbeat_age", "uptime", "running", "held", "threads", "memory_mb", "live",
    }  # fmt: skip
    assert set(found["shards"][0]) == {
        "queue", "shard", "members", "due", "leased", "oldest_due", "epoch", "jobs", "jobs_due",
    }  # fmt: skip
    assert {"total", "unmirrored", "tombstones", "missing", "ghosts", "torn", "unbuilt"} <= set(found["differences"])
    assert set(found["database"]) == {
        "alias", "vendor", "broken", "failing", "refused", "open_runs", "failed_jobs",
    }  # fmt: skip
    assert set(found["database"]["open_runs"]) == {"queued", "running", "retrying"}
    assert (found["prefix"], found["layout"], found["stale_edits"]) == (well.config.prefix, "ours", 0)


def test_it_tells_of_workers_what_they_say_and_how_long_ago(well):
    began = time.monotonic()
    beat(well, {"queues": ["mail"], "started": time.time() - 100, "running": 3, "held": 5}, ago=7)
    (worker,) = ask()[1]["workers"]
    assert (worker["name"], worker["queues"], worker["live"]) == ("test", ["mail"], True)
    assert (worker["running"], worker["held"]) == (3, 5)
    assert 6 < worker["heartbeat_age"] < 8 + time.monotonic() - began


def test_a_worker_tells_its_queues_again_after_a_flush_that_another_worker_made_up_for(broker):
    worker = Worker(WorkerOptions(queues=("mail",), threads=1))
    worker.upkeep._run_round()
    broker.purge()
    build(broker)
    worker.upkeep._due["beat"] = 0.0  # 30 s later
    worker.upkeep._run_round()
    worker.broker.close()
    assert [found["queues"] for found in ask()[1]["workers"]] == [["mail"]]


@pytest.mark.parametrize("details", ["", "garbage", "[1]", '{"queues": 3, "started": "x", "running": true}'])
def test_a_worker_that_describes_itself_in_garbage_is_still_told(well, details):
    beat(well, details)
    (worker,) = ask()[1]["workers"]
    assert (worker["name"], worker["queues"], worker["uptime"], worker["running"]) == ("test", [], None, None)


def test_it_counts_members_due_and_leased_of_each_shard_and_how_late_the_head_is(well):
    make_due(well, schedule("first", kind="every", cron="", every=timedelta(days=1)), timedelta(seconds=20))
    schedule("second")
    schedule("mail", queue="mail")
    shards = {shard["queue"]: shard for shard in ask()[1]["shards"]}
    assert (shards["default"]["members"], shards["default"]["due"], shards["default"]["leased"]) == (2, 1, 0)
    assert 19 < shards["default"]["oldest_due"] < 600
    assert (shards["mail"]["members"], shards["mail"]["due"], shards["mail"]["oldest_due"]) == (1, 0, None)
    well.claim(well.get_shard("s1", "default"), limit=1, lease_ms=30_000, request=1)
    shards = {shard["queue"]: shard for shard in ask()[1]["shards"]}
    assert (shards["default"]["due"], shards["default"]["leased"], shards["default"]["oldest_due"]) == (0, 1, None)


def test_broken_and_failing_schedules_and_open_runs_are_told_and_are_no_alarm(well):
    for number in range(7):
        schedule(f"f{number}")
    schedule("paused", enabled=False)
    lost = schedule("lost")
    ScheduleState.objects.exclude(schedule=lost).update(failing_streak=1)
    ScheduleState.objects.filter(schedule=lost).update(condition=Condition.BROKEN)
    actions.run_now(lost)
    code, found = ask()
    assert code == 0
    assert found["database"]["broken"] == {"count": 1, "names": ["lost"]}
    assert (found["database"]["failing"]["count"], len(found["database"]["failing"]["names"])) == (7, 5)
    assert found["database"]["open_runs"] == {"queued": 1, "running": 0, "retrying": 0}
    lines = text().splitlines()
    assert "Broken: 1 (lost)" in lines
    assert any(line.startswith("Failing: 7 (f") and line.endswith(", …)") for line in lines)
    assert "7 schedules fail" in lines


def test_it_writes_nothing(broker):
    schedule()
    broker.purge()
    assert codes()[0] == 1
    assert count_keys(broker) == 0


def test_what_was_not_counted_in_time_is_said_and_not_taken_for_nothing():
    snapshot = Snapshot(vendor="sqlite")
    lines = format_lines(snapshot)
    assert "Broken: not counted in time" in lines
    found = build_dict(snapshot)
    assert found["database"] == {
        "alias": "default", "vendor": "sqlite", "broken": None, "failing": None, "refused": None, "open_runs": None,
        "failed_jobs": None,
    }  # fmt: skip


def test_settings_that_cannot_be_used_are_status_2_and_reveal_no_password(settings):
    good = settings.CACHES, settings.DELAYQ
    settings.CACHES = {"default": {**good[0]["default"], "LOCATION": "redis://:pass/word@127.0.0.1:6379/0"}}
    with pytest.raises(CommandError, match="not the address of a Redis server") as caught:
        call_command("delayq_status")
    assert caught.value.returncode == 2
    assert "'pass'" not in str(caught.value)
    settings.CACHES, settings.DELAYQ = good[0], {**good[1], "MIRROR": False}
    with pytest.raises(CommandError, match="MIRROR") as caught:
        call_command("delayq_status")
    assert caught.value.returncode == 2
    settings.DELAYQ = good[1]


@pytest.mark.parametrize(("option", "value"), [("--max-wait", "-1"), ("--max-wait", "nan"), ("--timeout", "0")])
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(CommandError, match=option) as caught:
        call_command("delayq_status", option, value)
    assert caught.value.returncode == 2


NAMES = ("members", "due", "leased", "jobs", "jobs_due")


def enqueue(number=1, queue="default", **options):
    return tasks.noop.using(queue_name=queue, **options).enqueue_many([([], {})] * number)


def claim(broker, limit):
    (place,) = [place for place in broker.list_shards() if place.queue == "default"]
    return broker.claim(place, limit=limit, lease_ms=30_000, request=1)


def queues():
    """Return the sums of each queue, and the longest wait in it."""
    found = {}
    for shard in ask()[1]["shards"]:
        sums, oldest = found.setdefault(shard["queue"], ([0] * 5, []))
        sums[:] = [mine + shard[name] for mine, name in zip(sums, NAMES, strict=True)]
        oldest += [shard["oldest_due"]] if shard["oldest_due"] is not None else []
    return {queue: (sums, max(oldest, default=None)) for queue, (sums, oldest) in found.items()}


def age(result, seconds):
    """Let a job that is due have been so for so many seconds longer."""
    found = Standing(result)
    found.client.zincrby(found.names["jobs"], -seconds * 1000, found.member)
    found.client.hincrby(found.names["point"], found.member, -seconds * 1000)


def fail(queue, status="failed", origin=Origin.JOB, number=1):
    now = utcnow()
    values = {"queue": queue, "status": status, "origin": origin, "separate": True, "task": "t", "generation": 1}
    points = [now + timedelta(seconds=n) for n in range(number)]
    Run.objects.bulk_create([Run(due_at=point, token=f"{point:%H%M%S%f}", **values) for point in points])


def test_it_counts_the_jobs_of_each_queue(built):
    enqueue(3, run_after=timedelta(hours=1))
    enqueue(2)
    enqueue(1, queue="mail")
    found = queues()
    assert (found["default"][0], found["mail"][0]) == ([5, 2, 0, 5, 2], [1, 1, 0, 1, 1])
    assert claim(built, 2).entries
    assert queues()["default"] == ([5, 0, 2, 5, 0], None)
    assert "Queue default: 5 entries (5 jobs), 0 due (0 jobs), 2 leased" in text().splitlines()


@pytest.mark.parametrize("shards", [1, 3])
def test_the_oldest_of_all_shards_is_told(settings, prefix, shards):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": shards}
    broker = Broker(timeout_seconds=5, worker="test")
    build(broker)
    age(enqueue(12)[7], 500)
    sums, oldest = queues()["default"]
    assert sums[-1] == 12 and 500 <= oldest < 530
    broker.close()


@pytest.mark.parametrize("priority", [100, -100])
def test_of_those_whose_turn_it_is_the_first_tells_how_long_it_has_waited_whatever_its_priority(built, priority):
    waiting = enqueue(5, priority=priority)
    assert claim(built, 1).entries, "the others have moved on to their turn"
    assert Standing(waiting[4]).view.score_ms == 0
    assert 0 <= queues()["default"][1] < 60
    for result in waiting[1:]:
        found = Standing(result)
        found.client.zincrby(found.names["jobs-ready"], -500_000, found.member)
    assert 500 <= queues()["default"][1] < 560


def test_a_retry_has_not_waited_since_it_was_enqueued(built):
    (result,) = enqueue()
    age(result, 500)
    claimed, place = claim(built, 1), built.get_shard(Standing(result).member, "default")
    assert built.settle(place, [Settlement(Standing(result).member, claimed.holder, "retry")]).replies == [1]
    assert 0 <= queues()["default"][1] < 60


def test_a_queue_without_a_worker_in_which_a_job_has_been_due_for_long_is_one_problem(built):
    beat(built, {"queues": ["mail"], "started": 1})
    (result,) = enqueue()
    assert codes() == (0, []), "another host may be about to serve it"
    age(result, 100)
    (problem,) = ask()[1]["problems"]
    assert (problem["code"], problem["queue"]) == ("no_worker", "default")
    assert "1 schedule, run or job of it cannot start" in problem["message"] and "delayq_worker" in problem["message"]
    assert codes("--max-wait", "1000") == (0, [])
    beat(built)
    assert codes() == (1, ["overdue"])


def test_jobs_that_have_failed_are_counted_among_the_newest_failures(built, monkeypatch):
    assert (ask()[1]["database"]["failed_jobs"], "failed jobs 0" in text()) == (0, True)
    for queue, ended in (("default", "failed"), ("mail", "lost"), ("of nobody", "failed")):
        fail(queue, ended)
    fail("default", origin=Origin.MANUAL)
    fail("default", "skipped")
    assert ask()[1]["database"]["failed_jobs"] == 3
    assert "failed jobs 3" in text()
    fail("default", number=5)
    monkeypatch.setattr(database_side, "MOST_READ", 4)
    assert ask()[1]["database"]["failed_jobs"] == 5, "of each status the newest are looked at"
