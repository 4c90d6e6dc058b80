"""The worker in one process on a real server: every rule that leads from a claimed member to its outcome."""

import json
from datetime import timedelta

import pytest

from django_delayq import chain, orders
from django_delayq.broker import Settlement
from django_delayq.models import Condition, Origin, Run, Schedule, ScheduleState, Status
from django_delayq.timing import from_ms, to_ms
from django_delayq.worker import dispatch
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.support import DAILY_CRON, DAY, OTHER_DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

DAILY = {"kind": "cron", "cron": DAILY_CRON}


def schedule(name="s", task="add", **values):
    values = {**DAILY, "args": [2] if task == "add" else [], **values}
    return Schedule.objects.create(name=name, task=f"tests.app.tasks.{task}", **values)


def view(broker, row):
    return broker.views([(f"s{row.pk}", row.queue)])[0]


def statuses():
    return list(Run.objects.order_by("due_at").values_list("status", flat=True))


def test_a_failing_task_is_recorded_with_its_traceback_and_the_chain_goes_on(broker):
    row = schedule(task="fail", kwargs={"message": "the bank is closed"})
    point = make_due(broker, row)
    run_burst()
    run = Run.objects.get()
    assert run.status == Status.FAILED
    assert "RuntimeError: the bank is closed" in run.reason
    assert "raise RuntimeError(message)" in run.error
    assert view(broker, row).point_ms == to_ms(point + DAY)
    row.refresh_from_db()
    assert (row.state.failing_streak, row.state.last_status) == (1, "failed")
    assert list(Schedule.objects.failing()) == [row]


def test_a_failed_attempt_is_retried_until_it_succeeds(broker, tmp_path):
    path = tmp_path / "tries"
    row = schedule(task="flaky", args=[str(path), 2], max_attempts=5, backoff=timedelta(0))
    make_due(broker, row)
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.attempt, run.result) == (Status.SUCCEEDED, 3, "attempt 3")
    row.refresh_from_db()
    assert row.state.run_count == 1


def test_attempts_end_and_the_point_fails(broker, tmp_path):
    path = tmp_path / "tries"
    row = schedule(task="flaky", args=[str(path), 9], max_attempts=3, backoff=timedelta(0))
    make_due(broker, row)
    run_burst()
    assert path.read_text() == "xxx"
    assert (Run.objects.get().status, Run.objects.get().attempt) == (Status.FAILED, 3)


def test_a_flush_between_attempts_grants_no_new_ones(broker, tmp_path):
    """Rule R5."""
    path = tmp_path / "tries"
    row = schedule(task="flaky", args=[str(path), 9], max_attempts=2, backoff=timedelta(0))
    make_due(broker, row)
    run = Run.objects.create(
        schedule=row, schedule_name=row.name, task=row.task, queue=row.queue, generation=row.generation,
        due_at=from_ms(view(broker, row).point_ms), status=Status.RETRYING, attempt=1, fence="old",
    )  # fmt: skip
    broker.purge()
    run_burst()
    run.refresh_from_db()
    assert path.read_text() == "x"
    assert (run.status, run.attempt) == (Status.FAILED, 2)


def test_async_tasks_run(broker, tmp_path):
    make_due(broker, schedule(task="anote", args=[str(tmp_path / "f")]))
    run_burst()
    assert (tmp_path / "f").read_text() == "async\n"
    assert Run.objects.get().result == "async"


def test_the_context_tells_schedule_point_key_and_attempt(broker, tmp_path):
    row = schedule(task="remember", args=[str(tmp_path / "f")])
    point = make_due(broker, row)
    run_burst()
    assert Run.objects.get().status == Status.SUCCEEDED, Run.objects.get().error
    assert (tmp_path / "f").read_text().strip() == f"s|{point.isoformat()}|{row.pk}:due:{to_ms(point)}|1"


def test_a_result_that_is_no_json_is_noted_and_the_run_succeeds(broker):
    make_due(broker, schedule(task="unserializable"))
    run_burst()
    run = Run.objects.get()
    assert run.status == Status.SUCCEEDED
    assert "not stored" in run.result


def test_a_decided_point_is_not_run_again_and_the_chain_goes_on(broker):
    """Rule R2: Redis went back to a point that the ledger knows."""
    row = schedule()
    point = make_due(broker, row)
    run_burst()
    place = broker.shard_of(f"s{row.pk}", "default")
    broker.client.zadd(f"{{{broker.config.prefix}:{place}}}:due", {f"s{row.pk}": 1})
    broker.client.hset(f"{{{broker.config.prefix}:{place}}}:point", f"s{row.pk}", to_ms(point))
    run_burst()
    assert statuses() == [Status.SUCCEEDED]
    assert view(broker, row).point_ms == to_ms(point + DAY)


def test_after_a_decided_point_the_next_one_keeps_its_jitter(broker):
    row = schedule()
    point = make_due(broker, row)
    run_burst()
    row.refresh_from_db()
    row.jitter = timedelta(minutes=30)
    row.save()
    wake = view(broker, row).score_ms
    place = broker.shard_of(f"s{row.pk}", "default")
    broker.client.zadd(f"{{{broker.config.prefix}:{place}}}:due", {f"s{row.pk}": 1})
    broker.client.hset(f"{{{broker.config.prefix}:{place}}}:point", f"s{row.pk}", to_ms(point))
    run_burst()
    assert statuses() == [Status.SUCCEEDED]
    assert to_ms(row.recurrence.next_after(row.effective_from)) < wake == view(broker, row).score_ms


def test_a_point_ahead_of_a_missing_one_goes_back_to_it(broker):
    """Rule R2: a hole in the ledger is filled, not jumped."""
    row = schedule(missed="all", kind="every", cron="", every=timedelta(seconds=10))
    first = make_due(broker, row, ago=timedelta(seconds=35))
    place = broker.shard_of(f"s{row.pk}", "default")
    later = first + timedelta(seconds=20)
    broker.client.hset(f"{{{broker.config.prefix}:{place}}}:point", f"s{row.pk}", to_ms(later))
    run_burst()
    assert Run.objects.order_by("due_at")[0].due_at == first
    assert Run.objects.filter(status=Status.SUCCEEDED).count() >= 4


def test_a_point_that_no_definition_has_is_not_run(broker):
    row = schedule()
    point = make_due(broker, row)
    place = broker.shard_of(f"s{row.pk}", "default")
    broker.client.hset(f"{{{broker.config.prefix}:{place}}}:point", f"s{row.pk}", to_ms(point) - 777)
    run_burst()
    assert [run.due_at for run in Run.objects.all()] == [point]


def test_a_member_without_a_point_is_rebuilt(broker):
    row = schedule()
    point = make_due(broker, row)
    place = broker.shard_of(f"s{row.pk}", "default")
    broker.client.hset(f"{{{broker.config.prefix}:{place}}}:point", f"s{row.pk}", "garbage")
    run_burst()
    assert [run.due_at for run in Run.objects.all()] == [point]
    assert statuses() == [Status.SUCCEEDED]


def test_members_of_nobody_are_dropped(broker):
    row = schedule()
    make_due(broker, row)
    place = broker.shard_of("x", "default")
    for member in ("x", "s999999", "r424242", "s1x", "s" + "9" * 40, "weird member"):
        broker.client.zadd(f"{{{broker.config.prefix}:{place}}}:due", {member: 1})
    run_burst()
    assert broker.stats([place])[0].members == 1
    assert statuses() == [Status.SUCCEEDED]


def test_a_schedule_deleted_behind_redis_is_not_run(broker):
    row = schedule()
    make_due(broker, row)
    ScheduleState.objects.all().delete()
    Schedule._base_manager.filter(pk=row.pk)._raw_delete("default")
    run_burst()
    assert Run.objects.count() == 0
    assert broker.stats([broker.shard_of(f"s{row.pk}", "default")])[0].members == 0


def test_a_schedule_disabled_behind_redis_is_skipped_and_dropped(broker):
    row = schedule()
    point = make_due(broker, row)
    row.refresh_from_db()
    row.pause("holidays")
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.reason, run.due_at) == (Status.SKIPPED, "paused", point)
    assert view(broker, row).score_ms is None


def test_a_point_due_before_an_edit_still_runs_once_and_the_rest_is_explained(broker):
    """Rule R8."""
    row = schedule()
    point = make_due(broker, row)
    row.refresh_from_db()
    row.cron = OTHER_DAILY_CRON
    row.save()
    run_burst()
    runs = list(Run.objects.order_by("due_at"))
    assert [(run.status, run.reason) for run in runs] == [("succeeded", ""), ("skipped", "edited")]
    assert runs[0].due_at == point
    row.refresh_from_db()
    assert runs[1].last_due_at == row.effective_from
    assert from_ms(view(broker, row).point_ms) == row.recurrence.next_after(row.effective_from)


def test_one_off_runs_once_and_is_exhausted(broker):
    row = schedule(kind="once", cron="", at=from_ms(broker.now_ms()) + timedelta(hours=1))
    at = from_ms(broker.now_ms() - 1000)
    Schedule._base_manager.filter(pk=row.pk).update(at=at)
    before = at - timedelta(seconds=5)
    Schedule._base_manager.filter(pk=row.pk).update(created_at=before)
    Schedule.objects.filter(pk=row.pk).update(effective_from=before)
    broker.purge()
    run_burst()
    run_burst()
    assert statuses() == [Status.SUCCEEDED]
    row.refresh_from_db()
    assert row.state.condition == Condition.EXHAUSTED
    assert "one-off" in row.state.condition_reason
    assert view(broker, row).score_ms is None


def test_max_runs_exhausts_and_a_higher_number_revives(broker):
    row = schedule(kind="every", cron="", every=timedelta(seconds=10), max_runs=2, missed="all")
    make_due(broker, row, ago=timedelta(seconds=35))
    run_burst()
    assert statuses() == [Status.SUCCEEDED] * 2
    row.refresh_from_db()
    assert row.state.condition == Condition.EXHAUSTED
    row.max_runs = 3
    row.save()
    row.refresh_from_db()
    assert row.state.condition == Condition.ACTIVE
    assert view(broker, row).score_ms is not None


def test_missed_points_are_one_stretch_and_the_latest_runs(broker):
    row = schedule(kind="every", cron="", every=timedelta(minutes=1), grace=timedelta(seconds=1))
    first = make_due(broker, row, ago=timedelta(minutes=10))
    run_burst()
    skipped, ran = Run.objects.order_by("due_at")
    assert (skipped.status, skipped.reason, skipped.due_at) == ("skipped", "missed", first)
    assert skipped.points >= 9
    assert ran.due_at == skipped.last_due_at + timedelta(minutes=1)
    assert ran.status == "succeeded"


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "queue_all"])
def test_the_claim_that_skips_missed_points_runs_the_newest_of_them(broker, overlap):
    """Rule R9: settled to it, the schedule would queue behind all others, and find it missed again."""
    row = schedule(kind="every", cron="", every=timedelta(minutes=1), grace=timedelta(seconds=1), overlap=overlap)
    make_due(broker, row, ago=timedelta(minutes=10))
    run_burst()
    skipped, ran = Run.objects.order_by("due_at")
    assert (skipped.status, ran.status) == ("skipped", "succeeded")
    assert skipped.fence == ran.fence


def test_a_missed_point_that_is_still_to_wake_is_not_run_early(broker):
    row = schedule(kind="every", cron="", every=timedelta(minutes=1), jitter=timedelta(seconds=59), grace=timedelta(0))
    make_due(broker, row, ago=timedelta(minutes=10))
    run_burst()
    assert Run.objects.exists()
    for run in Run.objects.exclude(status=Status.SKIPPED):
        assert run.claimed_at >= chain.wake_of(row, run.due_at)


def test_a_worker_that_takes_over_runs_the_newest_point_that_the_last_one_had(broker):
    """Rule R9: it knows by the fence when that one decided; a newer point would hide that it may have begun."""
    row = schedule(kind="every", cron="", every=timedelta(minutes=1), grace=timedelta(0))
    make_due(broker, row, ago=timedelta(minutes=9))
    place = broker.shard_of(f"s{row.pk}", "default")
    claim = broker.claim(place, limit=10, lease_ms=0, request=1)
    assert [entry.member for entry in claim.entries] == [f"s{row.pk}"]
    claimed_ms = claim.now_ms - 150_000
    lease = f"{{{broker.config.prefix}:{place}}}:lease"
    broker.client.hset(lease, f"s{row.pk}", f"{claimed_ms * 1024}.e dead")
    run_burst(max_runs=1)
    skipped, ran = Run.objects.order_by("due_at")[:2]
    assert (skipped.status, ran.status, ran.reclaims) == ("skipped", "succeeded", 1)
    assert to_ms(ran.due_at) <= claimed_ms < to_ms(ran.due_at) + 60_000


def test_a_take_over_writes_a_running_row_first_and_counts_it(broker):
    """Rule R2b and R6: the last holder vanished."""
    row = schedule()
    point = make_due(broker, row)
    place = broker.shard_of(f"s{row.pk}", "default")
    broker.claim(place, limit=10, lease_ms=0, request=1)
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.reclaims, run.due_at) == (Status.SUCCEEDED, 1, point)


def test_a_point_that_kills_its_workers_is_lost_and_the_schedule_goes_on(broker):
    row = schedule()
    point = make_due(broker, row)
    place = broker.shard_of(f"s{row.pk}", "default")
    Run.objects.create(
        schedule=row, schedule_name=row.name, task=row.task, queue=row.queue, generation=row.generation,
        due_at=point, status=Status.RUNNING, reclaims=3, fence="old", worker="dead",
    )  # fmt: skip
    broker.claim(place, limit=10, lease_ms=0, request=1)
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.reason) == (Status.LOST, "poison")
    assert view(broker, row).point_ms == to_ms(point + DAY)


def test_run_now_runs_beside_the_chain_also_when_paused(broker):
    row = schedule(enabled=False)
    run = orders.run_now(row)
    run_burst()
    run.refresh_from_db()
    assert (run.status, run.origin, run.result) == (Status.SUCCEEDED, Origin.MANUAL, 3)
    row.refresh_from_db()
    assert row.state.last_due_at is None
    assert row.state.run_count == 0
    assert broker.stats([broker.shard_of(f"r{run.pk}", "default")])[0].members == 0


def test_run_now_survives_a_flush(broker):
    row = schedule()
    run = orders.run_now(row)
    broker.purge()
    run_burst()
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED


def test_overlapping_runs_are_members_of_their_own(broker):
    row = schedule(overlap="allow")
    point = make_due(broker, row)
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.apart, run.origin, run.due_at) == ("succeeded", True, "due", point)
    row.refresh_from_db()
    assert (row.state.run_count, row.state.last_due_at) == (1, point)
    assert view(broker, row).point_ms == to_ms(point + DAY)


@pytest.fixture
def long_delay(monkeypatch):
    """What is not known comes back after half a minute at first: not while a test is looking."""
    monkeypatch.setattr(dispatch, "UNKNOWN_TASK_FIRST_MS", 30_000)


def test_a_task_that_nobody_knows_is_released_with_a_delay(broker, caplog, long_delay):
    row = schedule()
    make_due(broker, row)
    Schedule._base_manager.filter(pk=row.pk).update(task="tests.app.tasks.gone")
    run_burst()
    assert Run.objects.count() == 0
    seen = view(broker, row)
    assert not seen.leased
    assert 25_000 < seen.score_ms - broker.now_ms() <= 30_000
    assert "tests.app.tasks.gone" in caplog.text


def test_a_task_that_was_corrected_does_not_wait_out_its_delay(broker, long_delay):
    row = schedule()
    point = make_due(broker, row)
    Schedule._base_manager.filter(pk=row.pk).update(task="tests.app.tasks.gone")
    run_burst()
    assert view(broker, row).score_ms > broker.now_ms()
    row.refresh_from_db()
    row.task = "tests.app.tasks.add"
    row.save()
    run_burst()
    assert (Run.objects.get().status, Run.objects.get().due_at) == (Status.SUCCEEDED, point)


def test_a_recurrence_that_cannot_be_computed_parks_the_schedule(broker):
    row = schedule()
    make_due(broker, row)
    Schedule._base_manager.filter(pk=row.pk).update(timezone="Mars/Olympus")
    run_burst()
    row.refresh_from_db()
    assert row.state.condition == Condition.PARKED
    assert "Mars/Olympus" in row.state.condition_reason
    assert view(broker, row).score_ms is None
    row.timezone = "UTC"
    row.save()
    row.refresh_from_db()
    assert row.state.condition == Condition.ACTIVE


def test_arguments_that_no_longer_fit_fail_without_retries(broker):
    row = schedule(max_attempts=5)
    make_due(broker, row)
    Schedule._base_manager.filter(pk=row.pk).update(args=[1, 2, 3])
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.attempt) == ("failed", 1)
    assert "add(a: int, b: int = 1)" in run.reason


def test_max_runs_option_ends_the_worker(broker):
    for number in range(5):
        make_due(broker, schedule(name=f"s{number}"))
    run_burst(max_runs=2, threads=1)
    assert Run.objects.count() == 2


def test_the_settle_that_never_came_is_made_up_without_a_second_run(broker):
    """Rule R3: killed between ledger and settle."""
    row = schedule()
    point = make_due(broker, row)
    place = broker.shard_of(f"s{row.pk}", "default")
    claim = broker.claim(place, limit=1, lease_ms=0, request=1)
    Run.objects.create(
        schedule=row, schedule_name=row.name, task=row.task, queue=row.queue, generation=row.generation,
        due_at=point, status=Status.SUCCEEDED, fence=claim.fence, worker="dead",
    )  # fmt: skip
    ScheduleState.objects.update_or_create(schedule=row, defaults={"last_due_at": point})
    run_burst()
    assert statuses() == [Status.SUCCEEDED]
    assert view(broker, row).point_ms == to_ms(point + DAY)
    late = Settlement(f"s{row.pk}", claim.holder, "next", to_ms(point), row.generation, to_ms(point))
    assert broker.settle(place, [late]).replies == [0]


def test_log_lines_tell_schedule_point_lag_duration_and_outcome(broker, caplog):
    caplog.set_level("INFO", "django_delayq.worker")
    point = make_due(broker, schedule(name="nightly report"))
    run_burst()
    line = next(record for record in caplog.records if "nightly report" in record.getMessage())
    text = line.getMessage()
    assert text.startswith("succeeded")
    assert f"due {point:%Y-%m-%d %H:%M:%S}" in text
    assert "lag" in text and "took" in text
    from django_delayq.worker.logs import JsonFormatter

    event = json.loads(JsonFormatter().format(line))
    assert (event["schedule"], event["event"]) == ("nightly report", "succeeded")
    assert event["lag_ms"] >= 0


def test_every_row_knows_its_worker_and_its_times(broker):
    make_due(broker, schedule())
    run_burst(name="host:1:abc")
    run = Run.objects.get()
    assert run.worker == "host:1:abc"
    assert run.due_at <= run.claimed_at
    assert run.started_at <= run.finished_at


def waiting_worker(threads=1):
    """A worker whose threads never start, so that what it claims stays unstarted."""
    worker = Worker(WorkerOptions(queues=("default",), threads=threads))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    worker.tick()
    return worker


def test_a_drain_hands_back_what_did_not_start_at_once(broker):
    row = schedule()
    make_due(broker, row)
    worker = waiting_worker()
    assert view(broker, row).leased
    assert worker.drain() == 0
    seen = view(broker, row)
    assert not seen.leased
    assert seen.score_ms <= broker.now_ms()
    assert Run.objects.count() == 0
    worker.broker.close()


def test_what_waits_behind_stalled_slots_is_handed_back(broker):
    """Note [Claim ahead]: more was claimed than the slots turned out to start."""
    row = schedule()
    make_due(broker, row)
    worker = waiting_worker()
    worker.slots.busy += 1  # something else runs in its only slot
    worker.tick()
    assert not view(broker, row).leased
    assert worker.slots.capacity() == 0
    worker.broker.close()
