"""The worker in one process on a real server: every rule that leads from a claimed member to its outcome."""

import json
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import autoreload

from django_delayq import actions, sync
from django_delayq.calls import registry
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import Settlement
from django_delayq.ledger import chain
from django_delayq.models import Condition, Run, Schedule, ScheduleState, Status
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.signals import run_finished
from django_delayq.worker import dispatch
from django_delayq.worker.logs import JsonFormatter
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import OK, WorkerOptions
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.integration import mirroring
from tests.integration.mirroring import Running, idle_worker, set_due, view
from tests.support import DAY, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

TEN = timedelta(seconds=10)


def schedule(name="s", task="add", **values):
    values = {"args": [2] if task == "add" else [], **values}
    return mirroring.schedule(name, task=f"tests.app.tasks.{task}", **values)


def statuses():
    return list(Run.objects.order_by("due_at").values_list("status", flat=True))


def test_a_due_point_runs_once_and_the_next_one_waits(broker):
    row = schedule()
    point = make_due(broker, row)
    began = datetime.now(UTC)
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.result, run.due_at) == (Status.SUCCEEDED, 3, point)
    row.refresh_from_db()
    assert row.state.last_due_at == point
    assert row.state.run_count == 1
    seen = view(broker, row)
    assert (seen.point_ms, seen.leased) == (to_ms(point + DAY), False)
    assert began - timedelta(milliseconds=1) <= run.claimed_at <= datetime.now(UTC)


def test_the_command_called_from_code_runs_what_is_due_and_leaves_the_signals_as_they_were(broker):
    row = schedule()
    point = make_due(broker, row)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert call_command("delayq_worker", burst=True) is None
        assert {number: signal.getsignal(number) for number in before} == before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert Run.objects.get().due_at == point
    with pytest.raises(CommandError, match=r"not call_command\(\)"):
        call_command("delayq_worker", processes=2)


def test_a_worker_that_reloads_its_code_works_like_any_other(broker, monkeypatch):
    row = schedule()
    make_due(broker, row)
    monkeypatch.setattr(autoreload, "run_with_reloader", lambda run, options: run(options))
    call_command("delayq_worker", reload=True, max_runs=1)
    assert Run.objects.get().status == Status.SUCCEEDED


def test_a_flush_between_attempts_grants_no_new_ones(broker, tmp_path):
    """Rule R5."""
    path = tmp_path / "tries"
    row = schedule(task="flaky", args=[str(path), 9], max_attempts=2, backoff=timedelta(0))
    make_due(broker, row)
    run = Run.build_for(row, from_ms(view(broker, row).point_ms), status=Status.RETRYING, attempt=1, fence="old")
    run.save()
    broker.purge()
    run_burst()
    run.refresh_from_db()
    assert path.read_text() == "x"
    assert (run.status, run.attempt) == (Status.FAILED, 2)


def test_the_context_tells_schedule_point_key_and_attempt(broker, tmp_path):
    row = schedule(task="remember", args=[str(tmp_path / "f")])
    point = make_due(broker, row)
    run_burst()
    assert Run.objects.get().status == Status.SUCCEEDED, Run.objects.get().error
    assert (tmp_path / "f").read_text().strip() == f"s|{point.isoformat()}|{row.pk}:due:{to_ms(point)}|1"


@pytest.mark.parametrize("result", [object(), 10**5000], ids=["an object", "a giant number"])
def test_a_result_that_is_no_json_is_noted_and_the_run_succeeds(broker, monkeypatch, result):
    make_due(broker, schedule())
    task = registry.get_task("tests.app.tasks.add")
    monkeypatch.setattr(type(task), "call", lambda self, *args, **kwargs: result)
    run_burst()
    run = Run.objects.get()
    assert run.status == Status.SUCCEEDED
    assert "not stored" in run.result


@pytest.mark.parametrize("jitter", [timedelta(0), timedelta(minutes=30)])
def test_a_decided_point_is_not_run_again_and_the_chain_goes_on(broker, jitter):
    """Rule R2: Redis went back to a point that the ledger knows."""
    row = schedule()
    point = make_due(broker, row)
    run_burst()
    row.refresh_from_db()
    row.jitter = jitter
    row.save()
    before = view(broker, row)
    set_due(broker, row, "due", 1)
    set_due(broker, row, "point", to_ms(point))
    run_burst()
    assert statuses() == [Status.SUCCEEDED]
    assert view(broker, row) == before
    assert before.point_ms == to_ms(point + DAY) and (before.score_ms > before.point_ms) is bool(jitter)


def test_a_point_ahead_of_a_missing_one_goes_back_to_it(broker):
    """Rule R2: a hole in the ledger is filled, not jumped."""
    row = schedule(missed="all", kind="every", cron="", every=TEN)
    first = make_due(broker, row, ago=timedelta(seconds=35))
    set_due(broker, row, "point", to_ms(first + timedelta(seconds=20)))
    run_burst()
    assert Run.objects.order_by("due_at")[0].due_at == first
    assert Run.objects.filter(status=Status.SUCCEEDED).count() >= 4


@pytest.mark.parametrize("damage", ["garbage", "no point of it", 10**20, -(10**17), 10**16])
def test_a_member_whose_point_is_none_of_the_definition_is_rebuilt(broker, damage):
    row = schedule()
    point = make_due(broker, row)
    set_due(broker, row, "due", 1)
    set_due(broker, row, "point", to_ms(point) - 777 if damage == "no point of it" else damage)
    run_burst()
    assert list(Run.objects.values_list("due_at", "status")) == [(point, "succeeded")]


def test_members_of_nobody_are_dropped(broker):
    row = schedule()
    make_due(broker, row)
    place = broker.get_shard("x", "default")
    for member in ("x", "s999999", "r424242", "s1x", "s" + "9" * 40, "weird member"):
        broker.client.zadd(f"{{{broker.config.prefix}:{place}}}:due", {member: 1})
    run_burst()
    assert broker.read_stats([place])[0].members == 1
    assert statuses() == [Status.SUCCEEDED]


def test_a_schedule_disabled_behind_redis_is_skipped_and_dropped(broker):
    row = schedule()
    point = make_due(broker, row)
    row.refresh_from_db()
    row.pause("holidays")
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.reason, run.due_at) == (Status.SKIPPED, "paused", point)
    assert view(broker, row).score_ms is None


def test_one_off_runs_once_and_is_finished(broker):
    row = schedule(kind="once", cron="", at=from_ms(broker.read_now_ms()) + timedelta(hours=1))
    at = from_ms(broker.read_now_ms() - 1000)
    before = at - timedelta(seconds=5)
    Schedule._base_manager.filter(pk=row.pk).update(at=at, created_at=before)
    Schedule.objects.filter(pk=row.pk).update(effective_from=before)
    broker.purge()
    run_burst()
    run_burst()
    assert statuses() == [Status.SUCCEEDED]
    row.refresh_from_db()
    assert row.state.condition == Condition.FINISHED
    assert "one-off" in row.state.condition_reason
    assert view(broker, row).score_ms is None


def test_max_runs_exhausts_and_a_higher_number_revives(broker):
    row = schedule(kind="every", cron="", every=TEN, max_runs=2, missed="all")
    make_due(broker, row, ago=timedelta(seconds=35))
    run_burst()
    assert statuses() == [Status.SUCCEEDED] * 2
    row.refresh_from_db()
    assert row.state.condition == Condition.FINISHED
    row.max_runs = 3
    row.save()
    row.refresh_from_db()
    assert row.state.condition == Condition.ACTIVE
    assert view(broker, row).score_ms is not None


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "queue_all"])
def test_the_claim_that_skips_missed_points_runs_the_newest_of_them(broker, overlap):
    """Rule R9: settled to it, the schedule would queue behind all others, and find it missed again."""
    row = schedule(kind="every", cron="", every=timedelta(minutes=1), grace=timedelta(seconds=1), overlap=overlap)
    first = make_due(broker, row, ago=timedelta(minutes=10))
    run_burst()
    skipped, ran = Run.objects.order_by("due_at")
    assert (skipped.status, skipped.reason, skipped.due_at) == ("skipped", "missed", first)
    assert skipped.points >= 9
    assert (ran.status, ran.due_at) == ("succeeded", skipped.last_due_at + timedelta(minutes=1))
    assert skipped.fence == ran.fence


def test_a_missed_point_that_is_still_to_wake_is_not_run_early(broker):
    row = schedule(kind="every", cron="", every=timedelta(minutes=1), jitter=timedelta(seconds=59), grace=timedelta(0))
    make_due(broker, row, ago=timedelta(minutes=10))
    run_burst()
    assert Run.objects.exists()
    for run in Run.objects.exclude(status=Status.SKIPPED):
        assert run.claimed_at >= chain.find_wake(row, run.due_at)


def test_a_worker_that_takes_over_runs_the_newest_point_that_the_last_one_had(broker):
    """Rule R9: it knows by the fence when that one decided; a newer point would hide that it may have begun."""
    row = schedule(kind="every", cron="", every=timedelta(minutes=1), grace=timedelta(0))
    make_due(broker, row, ago=timedelta(minutes=9))
    place = broker.get_shard(f"s{row.pk}", "default")
    claim = broker.claim(place, limit=10, lease_ms=0, request=1)
    assert [entry.member for entry in claim.entries] == [f"s{row.pk}"]
    claimed_ms = claim.now_ms - 150_000
    lease = f"{{{broker.config.prefix}:{place}}}:lease"
    broker.client.hset(lease, f"s{row.pk}", f"{claimed_ms}.e dead")
    run_burst(max_runs=1)
    skipped, ran = Run.objects.order_by("due_at")[:2]
    assert (skipped.status, ran.status, ran.reclaims) == ("skipped", "succeeded", 1)
    assert to_ms(ran.due_at) <= claimed_ms < to_ms(ran.due_at) + 60_000


def test_a_task_that_nobody_knows_is_released_with_a_delay_and_does_not_wait_it_out_once_corrected(
    broker, caplog, monkeypatch
):
    monkeypatch.setattr(dispatch, "UNKNOWN_TASK_FIRST_MS", 30_000)
    row = schedule()
    point = make_due(broker, row)
    Schedule._base_manager.filter(pk=row.pk).update(task="tests.app.tasks.gone")
    run_burst()
    assert Run.objects.count() == 0
    seen = view(broker, row)
    assert not seen.leased
    assert 25_000 < seen.score_ms - broker.read_now_ms() <= 30_000
    assert "tests.app.tasks.gone" in caplog.text
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
    assert row.state.condition == Condition.BROKEN
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


def test_the_settle_that_never_came_is_made_up_without_a_second_run(broker):
    """Rule R3: killed between ledger and settle."""
    row = schedule()
    point = make_due(broker, row)
    place = broker.get_shard(f"s{row.pk}", "default")
    claim = broker.claim(place, limit=1, lease_ms=0, request=1)
    Run.build_for(row, point, status=Status.SUCCEEDED, fence=claim.fence, worker="dead").save()
    ScheduleState.objects.update_or_create(schedule=row, defaults={"last_due_at": point})
    run_burst()
    assert statuses() == [Status.SUCCEEDED]
    assert view(broker, row).point_ms == to_ms(point + DAY)
    late = Settlement(f"s{row.pk}", claim.holder, "next", to_ms(point), row.generation, to_ms(point))
    assert broker.settle(place, [late]).replies == [0]


def test_log_lines_tell_schedule_point_latency_duration_and_outcome(broker, caplog):
    caplog.set_level("INFO", "django_delayq.worker")
    point = make_due(broker, schedule(name="nightly report"))
    run_burst()
    line = next(record for record in caplog.records if "nightly report" in record.getMessage())
    text = line.getMessage()
    assert text.startswith("succeeded")
    assert f"due {point:%Y-%m-%dT%H:%M:%S}" in text
    assert "latency" in text and "took" in text
    event = json.loads(JsonFormatter().format(line))
    assert (event["schedule"], event["event"]) == ("nightly report", "succeeded")
    assert event["latency_ms"] >= 0


def test_a_drain_hands_back_what_did_not_start_at_once(broker):
    row = schedule()
    make_due(broker, row)
    worker = idle_worker()
    worker.tick()
    assert view(broker, row).leased
    assert worker.drain() == 0
    seen = view(broker, row)
    assert not seen.leased
    assert seen.score_ms <= broker.read_now_ms()
    assert Run.objects.count() == 0
    worker.broker.close()


def test_what_waits_behind_stalled_slots_is_handed_back(broker):
    """Note [Entries are claimed ahead]: more was claimed than the slots turned out to start."""
    row = schedule()
    make_due(broker, row)
    worker = idle_worker()
    worker.tick()
    worker.slots.busy += 1  # something else runs in its only slot
    worker.tick()
    assert not view(broker, row).leased
    assert worker.slots.get_capacity() == 0
    worker.broker.close()


def noop(name="s", **values):
    return schedule(name, **{"task": "noop", **values})


def test_an_empty_epoch_does_not_stop_a_shard(broker):
    row = noop()
    make_due(broker, row)
    broker.client.set(f"{{{broker.config.prefix}:{broker.get_shard(f's{row.pk}', 'default')}}}:epoch", "")
    run_burst()
    assert Run.objects.count() == 1


def test_points_that_passed_while_redis_was_away_are_explained_after_an_edit(broker):
    """Never mirrored (no state row, so no next_due_at), fell due 4 times, was edited 30 s ago."""
    now = from_ms(broker.read_now_ms())
    noop(kind="every", cron="", every=timedelta(seconds=60))
    ScheduleState.objects.all().delete()
    broker.purge()
    made = now - timedelta(seconds=310)
    Schedule._base_manager.update(created_at=made, effective_from=now - timedelta(seconds=30), generation=1)
    run_burst()
    stretches = [(run.due_at, run.last_due_at or run.due_at) for run in Run.objects.all()]
    for point in [made + n * timedelta(seconds=60) for n in (1, 2, 3, 4)]:
        assert any(first <= point <= last for first, last in stretches), point


def test_a_point_due_before_an_edit_to_a_denser_rule_still_runs_once_and_the_rest_is_explained(broker):
    """Rule R8."""
    row = noop(kind="every", cron="", every=timedelta(hours=1))
    point = make_due(broker, row, ago=timedelta(minutes=30))
    row.refresh_from_db()
    row.every = TEN
    row.save()
    run_burst()
    ran, rest = Run.objects.order_by("due_at")[:2]
    assert (ran.due_at, ran.status, rest.status, rest.reason) == (point, "succeeded", "skipped", "edited")
    row.refresh_from_db()
    assert rest.last_due_at == row.effective_from
    assert from_ms(view(broker, row).point_ms) == row.recurrence.next_after(row.effective_from)


def test_run_now_runs_beside_the_chain_also_when_paused_and_after_a_flush(broker):
    row = schedule(enabled=False)
    run = actions.run_now(row)
    broker.purge()
    run_burst()
    run.refresh_from_db()
    assert (run.status, run.origin, run.result) == (Status.SUCCEEDED, "manual", 3)
    row.refresh_from_db()
    assert (row.state.last_due_at, row.state.run_count) == (None, 0)
    assert broker.read_stats([broker.get_shard(f"r{run.pk}", "default")])[0].members == 0


def test_handing_back_what_did_not_start_counts_no_reclaim(broker):
    run = actions.run_now(noop())
    for _ in range(6):
        worker = idle_worker()
        worker.tick()
        worker.dispatcher.release_waiting()
        worker.recorder.flush()
        assert not worker.keeper._held
    run.refresh_from_db()
    assert (run.reclaims, run.status != "lost") == (0, True)


# Note [Leases end at the deadline]


def test_what_lost_its_lease_while_it_waited_for_a_slot_is_not_started(broker):
    tasks.CALLS.clear()
    make_due(broker, noop(task="add", args=[7]))
    worker = idle_worker()
    worker.tick()
    for held in worker.keeper._held:
        held.deadline = time.monotonic() - 1
    worker.keeper._expire()
    worker.slots.start()
    wait_until(lambda: not worker.slots.waiting and worker.slots.free, what="a slot to have taken it")
    assert tasks.CALLS == []


def test_an_endless_generation_does_not_spin(broker):
    row = noop()
    make_due(broker, row)
    set_due(broker, row, "gen", "inf")
    with Running(threads=1, burst=True) as running:
        running.ended()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_that_cannot_be_shown_is_a_failure_like_any_other(broker, monkeypatch):
    class Mute(Exception):
        def __str__(self):
            raise TypeError("no text")

    def boom(*args, **kwargs):
        raise Mute

    make_due(broker, noop())
    monkeypatch.setattr(type(registry.get_task("tests.app.tasks.noop")), "call", boom)
    with Running(threads=1, burst=True) as running:
        running.ended()
        assert Run.objects.get().status == "failed"


@pytest.mark.parametrize("name", ["workers", "worker-details", "layout"])
def test_a_worker_starts_although_a_key_of_the_prefix_has_a_foreign_type(broker, name):
    broker.client.rpush(f"{broker.config.prefix}:{name}", "x")
    with Running(threads=1, burst=True) as running:
        assert running.ended() == OK


def test_a_failure_after_the_commit_repeats_no_signal_and_counts_nothing_twice(broker, monkeypatch):
    second = noop("b")
    first = noop("a", overlap="allow")
    make_due(broker, first)
    make_due(broker, second)
    real, calls, seen = sync.put_runs, [], []

    def broken(*args):
        calls.append(1)
        if len(calls) == 1:
            raise BrokerUnavailable("gone")
        return real(*args)

    monkeypatch.setattr(sync, "put_runs", broken)

    def receive(run, **kwargs):
        seen.append(run.schedule_name)

    run_finished.connect(receive)
    try:
        run_burst()
    finally:
        run_finished.disconnect(receive)
    second.refresh_from_db()
    assert second.state.run_count == 1
    assert seen.count("b") == 1


def test_max_runs_holds_also_for_overlapping_runs(broker):
    row = noop(kind="every", cron="", every=TEN, overlap="allow", max_runs=1, missed="all")
    make_due(broker, row, ago=timedelta(seconds=55))
    run_burst()
    assert Run.objects.filter(status="succeeded").count() == 1


def test_an_error_that_nobody_foresaw_hands_its_entries_back_and_the_worker_goes_on(broker, monkeypatch):
    row = noop()
    make_due(broker, row)
    worker = Worker(WorkerOptions(queues=("default",), threads=1))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    monkeypatch.setattr("django_delayq.worker.trip.judge", lambda *args: 1 / 0)
    assert worker.run_round() == 1.0
    seen = broker.read_views([(f"s{row.pk}", "default")])[0]
    assert not seen.leased
    assert seen.score_ms > broker.read_now_ms() + 20_000
    assert len(worker.keeper) == 0
    worker.broker.close()
