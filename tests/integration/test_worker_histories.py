"""Histories that a review found: silent gaps, false reclaims, workers that died or spun."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import connections

from django_delayq import mirror, orders, registry
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.models import Run, Schedule, ScheduleState
from django_delayq.signals import run_finished
from django_delayq.timing import from_ms
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.app import tasks
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def mk(name="s", **v):
    return Schedule.objects.create(
        **{"name": name, "kind": "cron", "cron": DAILY_CRON, "task": "tests.app.tasks.noop", **v}
    )


def key(broker, part):
    return f"{{{broker.config.prefix}:default:0}}:{part}"


def idle_worker(**options):
    """A worker whose slots never start: what it submits waits."""
    worker = Worker(WorkerOptions(queues=("default", "mail"), threads=1, burst=True, **options))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    return worker


def ends(call):
    def run():
        try:
            call()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return not thread.is_alive()


def explained(points):
    rows = list(Run.objects.all())
    return [p for p in points if not any(r.due_at <= p <= (r.last_due_at or r.due_at) for r in rows)] == []


# I1: silent gaps


def test_points_missed_before_a_pause_are_explained(broker):
    row = mk(kind="every", cron="", every=timedelta(seconds=10), missed="all")
    first = make_due(broker, row, ago=timedelta(seconds=55))
    row.refresh_from_db()
    row.pause()
    run_burst()
    assert explained([first + n * timedelta(seconds=10) for n in range(5)])


def test_points_missed_before_an_edit_are_explained(broker):
    row = mk(kind="every", cron="", every=timedelta(seconds=10), missed="all")
    first = make_due(broker, row, ago=timedelta(seconds=55))
    row.refresh_from_db()
    row.every = timedelta(hours=1)
    row.save()
    run_burst()
    assert explained([first + n * timedelta(seconds=10) for n in range(5)])


def test_points_that_passed_while_redis_was_away_are_explained_after_an_edit(broker):
    """Never mirrored (no state row, so no next_due_at), fell due 4 times, was edited 30 s ago."""
    now = from_ms(broker.now_ms())
    mk(kind="every", cron="", every=timedelta(seconds=60))
    ScheduleState.objects.all().delete()
    broker.purge()
    made = now - timedelta(seconds=310)
    Schedule._base_manager.update(created_at=made, effective_from=now - timedelta(seconds=30), generation=1)
    run_burst()
    assert explained([made + n * timedelta(seconds=60) for n in (1, 2, 3, 4)])


# R8


def test_a_point_due_before_an_edit_to_a_denser_rule_still_runs_once(broker):
    row = mk(kind="every", cron="", every=timedelta(hours=1))
    point = make_due(broker, row, ago=timedelta(minutes=30))
    row.refresh_from_db()
    row.every = timedelta(seconds=10)
    row.save()
    run_burst()
    assert Run.objects.get(due_at=point).status == "succeeded"


# R6 / F2


def test_handing_back_what_did_not_start_counts_no_reclaim(broker):
    run = orders.run_now(mk())
    for _ in range(6):
        worker = idle_worker()
        worker.tick()
        worker.dispatcher.release_waiting()
        worker.recorder.flush()
    run.refresh_from_db()
    assert (run.reclaims, run.status != "lost") == (0, True)


# Note [Self-fence]


def test_what_lost_its_lease_while_it_waited_for_a_slot_is_not_started(broker):
    tasks.CALLS.clear()
    make_due(broker, mk(task="tests.app.tasks.add", args=[7]))
    worker = idle_worker()
    worker.tick()
    for held in worker.keeper._held:
        held.deadline = time.monotonic() - 1
    worker.keeper._expire()
    worker.slots.start()
    wait_until(lambda: not worker.slots.waiting and worker.slots.free, what="a slot to have taken it")
    assert tasks.CALLS == []


# worker ends or stands still


@pytest.mark.parametrize("point", [10**20, -(10**17), 10**16])
def test_a_point_beyond_the_calendar_is_healed(broker, point):
    row = mk()
    due = make_due(broker, row)
    broker.client.hset(key(broker, "point"), f"s{row.pk}", point)
    broker.client.zadd(key(broker, "due"), {f"s{row.pk}": 1})
    run_burst()
    assert Run.objects.get(due_at=due).status == "succeeded"


def test_an_endless_generation_does_not_spin(broker):
    row = mk()
    make_due(broker, row)
    broker.client.hset(key(broker, "gen"), f"s{row.pk}", "inf")
    worker = Worker(WorkerOptions(queues=("default", "mail"), threads=1, burst=True))
    try:
        assert ends(worker.run)
    finally:
        worker.stop()


def test_a_result_of_a_giant_number_is_noted(broker, monkeypatch):
    make_due(broker, mk(task="tests.app.tasks.add", args=[1]))
    task = registry.get_task("tests.app.tasks.add")
    monkeypatch.setattr(type(task), "call", lambda self, *args, **kwargs: 10**5000)
    run_burst()
    assert Run.objects.get().status == "succeeded"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_that_cannot_be_shown_is_a_failure_like_any_other(broker, monkeypatch):
    class Mute(Exception):
        def __str__(self):
            raise TypeError("no text")

    def boom(*args, **kwargs):
        raise Mute

    make_due(broker, mk())
    monkeypatch.setattr(type(registry.get_task("tests.app.tasks.noop")), "call", boom)
    worker = Worker(WorkerOptions(queues=("default", "mail"), threads=1, burst=True))
    try:
        assert ends(worker.run)
        assert Run.objects.get().status == "failed"
    finally:
        worker.stop()
        worker.stop()


@pytest.mark.parametrize("name", ["workers", "worker-details", "layout"])
def test_a_worker_starts_although_a_key_of_the_prefix_has_a_foreign_type(broker, name):
    broker.client.rpush(f"{broker.config.prefix}:{name}", "x")
    worker = Worker(WorkerOptions(queues=("default", "mail"), threads=1, burst=True))
    try:
        assert ends(lambda: worker.upkeep.begin(burst=True, stopping=lambda: worker.stopping))
    finally:
        worker.stopping = True


def test_an_empty_epoch_does_not_stop_a_shard(broker):
    make_due(broker, mk())
    broker.client.set(key(broker, "epoch"), "")
    run_burst()
    assert Run.objects.count() == 1


# repeated batches


def test_a_failure_after_the_commit_repeats_no_signal_and_counts_nothing_twice(broker, monkeypatch):
    second = mk("b")
    first = mk("a", overlap="allow")
    make_due(broker, first)
    make_due(broker, second)
    real, calls, seen = mirror.put_runs, [], []

    def broken(*args):
        calls.append(1)
        if len(calls) == 1:
            raise BrokerUnavailable("gone")
        return real(*args)

    monkeypatch.setattr(mirror, "put_runs", broken)

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


# policies


def test_max_runs_holds_also_for_overlapping_runs(broker):
    row = mk(kind="every", cron="", every=timedelta(seconds=10), overlap="allow", max_runs=1, missed="all")
    make_due(broker, row, ago=timedelta(seconds=55))
    run_burst()
    assert Run.objects.filter(status="succeeded").count() == 1


def test_raising_max_runs_does_not_fire_by_itself(broker):
    row = mk(max_runs=2)
    old = from_ms(broker.now_ms()) - timedelta(days=3)
    Schedule._base_manager.update(effective_from=old, created_at=old)
    state = {"last_due_at": old + timedelta(days=1), "run_count": 2, "condition": "exhausted"}
    ScheduleState.objects.update_or_create(schedule=row, defaults=state)
    broker.purge()
    row = Schedule.objects.get()
    row.max_runs = 3
    row.save()
    run_burst()
    assert not Run.objects.exists()


def test_an_error_that_nobody_foresaw_hands_its_entries_back_and_the_worker_goes_on(broker, monkeypatch):
    row = mk()
    make_due(broker, row)
    worker = Worker(WorkerOptions(queues=("default",), threads=1))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    monkeypatch.setattr("django_delayq.worker.trip.judge", lambda *args: 1 / 0)
    assert worker.round() == 1.0
    seen = broker.views([(f"s{row.pk}", "default")])[0]
    assert not seen.leased
    assert seen.score_ms > broker.now_ms() + 20_000
    assert len(worker.keeper) == 0
    worker.broker.close()
