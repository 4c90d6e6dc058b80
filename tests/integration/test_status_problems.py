"""What `delayq_status` calls wrong, and what it does not."""

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command

from django_delayq import actions, sync
from django_delayq.index import Broker, EntryDefinition, MinuteCounts
from django_delayq.index.counters import MISSED
from django_delayq.models import Condition, Origin, Run, Schedule, ScheduleState, Tombstone
from django_delayq.monitoring import database_side, minutes
from django_delayq.monitoring.database_side import Comparison
from django_delayq.monitoring.problems import judge
from django_delayq.monitoring.redis_side import RedisView, ServerView
from django_delayq.monitoring.snapshot import Snapshot
from django_delayq.recurrence.point import utcnow
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.app import tasks
from tests.integration.admin_pages import kill_redis
from tests.integration.mirroring import schedule
from tests.integration.probing import ALIVE, SHARD, ask, beat, codes, key, text, well
from tests.support import OTHER_DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["well"]


def test_a_redis_that_is_away_is_told_with_what_the_database_knows(well, settings):
    good = settings.CACHES
    ScheduleState.objects.filter(schedule=schedule("lost")).update(condition=Condition.BROKEN)
    kill_redis(settings)
    code, found = ask()
    settings.CACHES = good
    assert code == 2
    assert [problem["code"] for problem in found["problems"]] == ["redis_unreachable"]
    assert "alias default in CACHES" in found["problems"][0]["message"]
    assert (found["redis"], found["workers"], found["shards"], found["differences"]) == (None, None, None, None)
    assert found["database"]["broken"]["names"] == ["lost"]


def test_missing_tables_are_told_with_what_redis_knows(well, monkeypatch):
    monkeypatch.setattr("django_delayq.models.Schedule._meta.db_table", "not_migrated")
    code, found = ask()
    assert (code, [problem["code"] for problem in found["problems"]]) == (2, ["database_unreachable"])
    assert "manage.py migrate" in found["problems"][0]["message"]
    assert len(found["workers"]) == 1
    assert (found["database"], found["differences"]) == (None, None)


def test_a_database_that_refuses_a_question_is_told(well, monkeypatch):
    monkeypatch.setattr("django_delayq.monitoring.database_side.ScheduleState._meta.db_table", "of_a_newer_version")
    assert codes() == (2, ["database_unreachable"])


def test_another_databases_prefix_is_wrong_and_nothing_else_of_it(broker):
    broker.write_note("layout", json.dumps({"database": "another", "version": 1, "shards": {"default": 1, "mail": 1}}))
    broker.upsert(broker.list_shards()[0], [EntryDefinition("s999999", 1, 1, 0)])
    code, found = ask()
    assert (code, found["layout"], found["differences"]) == (1, "foreign", None)
    assert [problem["code"] for problem in found["problems"]] == ["foreign_layout"]
    assert "delayq_sync --adopt" in found["problems"][0]["message"]


def test_a_queue_that_holds_something_and_has_no_live_worker_is_wrong(well):
    beat(well, {"queues": ["mail"]})
    assert codes() == (0, []), "the other one holds nothing"
    schedule()
    code, found = ask()
    assert (code, [problem["code"] for problem in found["problems"]]) == (1, ["no_worker"])
    assert found["problems"][0]["queue"] == "default"
    assert "delayq_worker" in found["problems"][0]["message"]
    beat(well, ago=200)
    assert codes() == (1, ["no_worker"])
    assert "silent" in text()
    beat(well)
    assert codes() == (0, [])


def test_a_queue_that_no_setting_names_any_more_is_a_problem_of_its_own_and_no_differences(well, settings):
    row = schedule("m", queue="mail")
    schedule("paused", queue="mail", enabled=False)
    schedule()
    actions.run_now(row)
    for _ in range(2):
        tasks.noop.using(queue_name="mail").enqueue()
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": ["default"]}
    settings.TASKS = {"default": {"BACKEND": settings.TASKS["default"]["BACKEND"]}}
    assert ask()[1]["unnamed"] == [{"kind": "queue", "name": "mail", "jobs": 0, "schedules": 1, "runs": 0}], "yet"
    age_all()
    assert codes() == (0, []), "another process has other settings, and a worker that serves the queue"
    beat(well, {"queues": ["default"]})
    code, found = ask()
    (problem,) = found["problems"]
    assert (code, problem["code"], problem["queue"], found["differences"]["total"]) == (1, "unknown_name", "mail", 0)
    assert "(enabled schedules: 1, queued runs: 1, open jobs: 2)" in problem["message"]
    assert found["unnamed"] == [{"kind": "queue", "name": "mail", "jobs": 2, "schedules": 1, "runs": 1}]
    out = io.StringIO()
    call_command("delayq_sync", stdout=out)
    assert problem["message"] in out.getvalue()


def test_a_task_and_an_alias_that_only_jobs_name_are_problems(well):
    for name in ("gone", "former"):
        tasks.noop.enqueue()
        rows = Run.objects.filter(task="tests.app.tasks.noop")
        rows.update(task=f"tests.app.tasks.{name}", backend="former")
    assert codes() == (0, []), "a process with newer code may just have enqueued them"
    age_all()
    task, alias = ask()[1]["problems"]
    assert task["code"] == alias["code"] == "unknown_name"
    assert "tests.app.tasks.former (1), tests.app.tasks.gone (1)" in task["message"]
    assert "former (2)" in alias["message"]
    Run.objects.update(status="failed")
    assert ask()[1]["unnamed"] == []


def age_all():
    """Let open rows be a minute old, here and in Redis."""
    Run.objects.update(created_at=utcnow() - timedelta(minutes=1))
    broker = Broker(timeout_seconds=5, worker="test")
    sync.sweep_fully(broker)
    broker.close()


def test_a_flushed_shard_is_wrong_until_a_worker_is_at_it(well):
    row = schedule()
    place = well.get_shard(f"s{row.pk}", "default")
    well.client.delete(key(well, "epoch"))
    assert codes() == (1, ["not_built"])
    well.swap_epochs([place], None, "building:x", ttl_ms=60_000)
    code, found = ask()
    assert (code, {shard["epoch"] for shard in found["shards"]}) == (0, {"built", "building"})
    well.swap_epochs([place], "building:x", "x")
    assert codes() == (0, [])


def test_a_head_that_is_overdue_for_longer_than_asked_is_wrong(well):
    make_due(well, schedule(kind="every", cron="", every=timedelta(days=1)), timedelta(seconds=90))
    assert codes() == (1, ["overdue"])
    assert codes("--max-wait", "100000") == (0, [])
    well.claim(well.get_shard("s1", "default"), limit=1, lease_ms=30_000, request=1)
    assert codes("--max-wait", "0") == (0, [])


POINTS = ("points", "default", "tests.app.tasks.noop")


def count(broker, ago, **tally):
    """Count for the minute so many minutes ago."""
    number = broker.read_now_ms() // 60_000 - ago
    MinuteCounts(broker).add(
        "default", number, [(POINTS, {MISSED if name == "missed" else name: value for name, value in tally.items()})]
    )


def overloads():
    return [problem["message"] for problem in ask()[1]["problems"] if problem["code"] == "overdue"]


@pytest.mark.parametrize("a_second", [1, 3000])
def test_overload_is_told_the_same_however_many_points_a_second_with_what_to_do(well, a_second, caplog):
    for ago in range(10):
        count(well, ago, succeeded=24 * a_second, missed=36 * a_second)
    (text,) = overloads()
    needed, done = (float(number) for number in re.findall(r"(?:Needed|done): ([0-9]+[.][0-9])", text))
    assert 0.9 * a_second < needed < 1.3 * a_second
    assert 0.35 < done / a_second < 0.55  # rounded to a tenth
    load = minutes.read_load(well).values
    assert 0.39 < load["done"] / load["needed"] < 0.41
    assert len(overloads()) == 1
    worker = Worker(WorkerOptions(queues=("default",)))
    worker.upkeep.run_round()
    assert caplog.text.count("More runs are due than the workers can execute") == 1


def test_what_is_over_and_what_is_too_little_is_no_overload(well):
    for ago in (3, 4):
        count(well, ago, succeeded=10, missed=90)
    for ago in (0, 1):
        count(well, ago, succeeded=90, missed=0)
    assert not overloads()
    count(well, 0, missed=1)
    assert len(overloads()) == 1, "it goes on"
    for ago in range(5):
        count(well, ago, succeeded=1000)
    assert not overloads()


@pytest.mark.parametrize("alone", [True, False])
def test_the_first_minute_is_left_out_where_others_tell_enough(well, alone):
    count(well, 4, succeeded=1000, missed=1000)
    if not alone:
        for ago in range(4):
            count(well, ago, succeeded=60, missed=60)
    assert minutes.read_load(well).executed == (1000 if alone else 240)


@pytest.mark.parametrize("since", [None, datetime.min.replace(tzinfo=UTC)], ids=["the start", "always"])
def test_what_fell_due_while_no_worker_could_work_is_no_overload(well, since):
    worker = Worker(WorkerOptions(queues=("default",), burst=True))
    if since is not None:
        worker.trip.counted.since = since
    row = schedule("s", kind="every", cron="", every=timedelta(seconds=2))
    make_due(well, row, timedelta(seconds=80))
    worker.run()
    found = minutes.sum_rows(minutes.read_rows(datetime.now(UTC) - timedelta(hours=1), broker=well))[POINTS]
    assert found["skipped:missed"] >= 38
    assert found.get(MISSED, 0) == (0 if since is None else found["skipped:missed"])


@pytest.mark.parametrize("how", ["a server in trouble", "refused outcomes"])
def test_an_outage_moves_on_the_time_since_which_workers_can_work(well, monkeypatch, how):
    worker = Worker(WorkerOptions(queues=("default",)))
    counted = worker.trip.counted
    counted.since = before = datetime.now(UTC) - timedelta(hours=1)
    worker.tick()
    assert counted.since == before
    if how == "a server in trouble":
        worker.trouble.until = float("inf")
    else:
        monkeypatch.setattr(worker.recorder, "flush", lambda: None)
        worker.recorder.full = True
    worker.tick()
    assert counted.since > before


@pytest.mark.parametrize("paused", [{"task": "tests.app.tasks.noop"}, {"queue": "default"}, {"queue": "mail"}])
def test_what_fell_due_while_its_own_queue_or_task_was_paused_is_no_overload(well, paused):
    worker = Worker(WorkerOptions(queues=("default",), burst=True))
    worker.trip.counted.since = datetime.min.replace(tzinfo=UTC)
    make_due(well, schedule("s", kind="every", cron="", every=timedelta(seconds=2)), timedelta(seconds=80))
    actions.pause(**paused)
    worker.controls.refresh()
    actions.resume(**paused)
    worker.controls._read_at = 0.0
    worker.run()
    found = minutes.sum_rows(minutes.read_rows(datetime.now(UTC) - timedelta(hours=1), broker=well))[POINTS]
    assert found.get(MISSED, 0) == (found["skipped:missed"] if paused == {"queue": "mail"} else 0)


def test_outcomes_that_were_discarded_are_a_problem(well):
    count(well, 7, discarded=2)
    code, found = ask()
    assert (code, [problem["code"] for problem in found["problems"]]) == (1, ["discarded"])
    assert found["problems"][0]["message"].startswith("The database refused 2 outcomes in the last hour")


@pytest.mark.parametrize("old", [True, False])
def test_an_edit_or_deletion_that_nobody_mirrored_for_long_is_wrong(well, settings, old):
    good = settings.CACHES
    edited, deleted = schedule("edited"), schedule("deleted")
    kill_redis(settings)
    edited.save()
    deleted.delete()
    settings.CACHES = good
    when = datetime.now(UTC) + timedelta(minutes=-1 if old else 1)  # however slow this machine is, that is young
    Schedule._base_manager.update(updated_at=when)
    Tombstone._base_manager.update(created_at=when)
    code, found = ask()
    assert found["stale_edits"] == (2 if old else 0)
    assert [problem["code"] for problem in found["problems"]] == (["out_of_sync"] if old else [])
    assert code == old
    assert found["differences"]["total"] == 2


def test_a_schedule_that_moves_only_when_its_long_run_has_ended_is_not_wrong(well):
    row = schedule(kind="every", cron="", every=timedelta(days=1))
    make_due(well, row, timedelta(seconds=1))
    well.claim(well.get_shard(f"s{row.pk}", "default"), limit=1, lease_ms=30_000, request=1)
    row.refresh_from_db()
    row.queue = "mail"
    row.save()
    before = datetime.now(UTC) - timedelta(minutes=1)
    Schedule._base_manager.update(updated_at=before)
    Tombstone._base_manager.update(created_at=before)
    assert Tombstone._base_manager.count() == 1
    assert ask()[1]["stale_edits"] == 0


def test_entries_that_are_missing_left_over_or_torn_are_wrong(well):
    rows = [schedule(f"s{number}") for number in range(3)]
    well.client.zrem(key(well, "due"), f"s{rows[0].pk}")
    well.client.hdel(key(well, "point"), f"s{rows[0].pk}")
    well.client.hdel(key(well, "gen"), f"s{rows[0].pk}")
    code, found = ask()
    assert (code, [problem["code"] for problem in found["problems"]]) == (1, ["out_of_sync"])
    assert "delayq_sync" in found["problems"][0]["message"]
    sync.sweep_fully(well)
    assert codes() == (0, [])
    well.upsert(well.get_shard("r77", "default"), [EntryDefinition("r77", 1, well.read_now_ms() + 60_000, 0)])
    assert codes() == (1, ["out_of_sync"])


def test_a_schedule_that_was_broken_while_it_owed_a_point_is_no_difference(well):
    row = schedule(cron=OTHER_DAILY_CRON)
    make_due(well, row)
    Schedule.objects.filter(pk=row.pk).update(timezone="Mars/Olympus")
    assert ask("--max-wait", "100000")[1]["differences"]["total"] == 0
    run_burst()
    beat(well)
    code, found = ask()
    assert (code, found["differences"]["total"], found["shards"][0]["members"]) == (0, 0, 0)
    assert found["database"]["broken"]["count"] == 1


def test_what_a_worker_is_just_writing_is_no_difference(well, monkeypatch):
    """The first look comes between the commit of an order and its way to Redis."""
    row = schedule()
    run = Run.build_for(row, datetime.now(UTC), origin=Origin.MANUAL, separate=True, status="queued")
    run.save()
    looks = []

    compare = database_side.compare

    def compare_then_enqueue(broker, queues):
        looks.append(compare(broker, queues))
        sync.put_runs(well, [run])
        return looks[-1]

    monkeypatch.setattr("django_delayq.monitoring.database_side.compare", compare_then_enqueue)
    assert codes() == (0, [])
    assert [look.differences.missing for look in looks] == [1, 0]


def test_keys_of_a_foreign_type_are_wrong(well):
    schedule()
    well.client.delete(key(well, "due"))
    well.client.set(key(well, "due"), "garbage")
    assert codes() == (1, ["redis_unfit"])


def judged(server=None, **values):
    snapshot = Snapshot(redis=RedisView((ALIVE,), (SHARD,), (server or ServerView(),)), **values)
    return [problem.code for problem in judge(snapshot)]


@pytest.mark.parametrize(
    ("server", "found"),
    [
        (ServerView(memory_policy="allkeys-lru"), ["redis_unfit"]),
        (ServerView(memory_policy="noeviction", used_bytes=100, max_bytes=100), ["redis_unfit"]),
        (ServerView(memory_policy="noeviction", used_bytes=99, max_bytes=100), []),
        (ServerView(used_bytes=100), []),
        (ServerView(disk_problem="rdb_last_bgsave_status"), ["redis_unfit"]),
    ],
)
def test_a_server_that_cannot_be_trusted_is_wrong(server, found):
    assert judged(server) == found


def test_what_is_leased_may_differ_for_a_moment():
    differences = sync.Differences(unmirrored=0, tombstones=0, missing=1, ghosts=1, torn=0, unbuilt=0)
    for leased, found in ((2, []), (1, ["out_of_sync"])):
        shards = (replace(SHARD, members=5, leased=leased),)
        snapshot = Snapshot(redis=RedisView((ALIVE,), shards), comparison=Comparison("ours", differences=differences))
        assert [problem.code for problem in judge(snapshot)] == found
