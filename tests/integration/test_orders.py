"""Backfill: which points of the past it orders, what it leaves out, and that nothing of an order gets lost."""

import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import transaction

from django_delayq import actions, sync
from django_delayq.exceptions import InvalidArguments
from django_delayq.models import Origin, Run, Schedule, ScheduleState, Status
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import PATIENCE_SECONDS
from tests.app import tasks
from tests.integration.admin_pages import kill_redis
from tests.integration.mirroring import at_once, schedule
from tests.support import DAILY_CRON, DAY, OTHER_DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE_OF_IT, HOUR_OF_IT = map(int, DAILY_CRON.split()[:2])
FIRST = datetime(2025, 3, 10, HOUR_OF_IT, MINUTE_OF_IT, tzinfo=UTC)


def days(*numbers):
    """Return points of DAILY_CRON, of which none comes due during a test."""
    return [FIRST + number * DAY for number in numbers]


def row(subject, due_at, status, origin=Origin.DUE, **values):
    Run.build_for(subject, due_at, status=status, origin=origin, **values).save()


def ordered(runs):
    return [run.due_at for run in runs]


def members(broker):
    return {name for place in broker.list_shards() for page in broker.scan(place) for name in page if name[0] in "rj"}


def test_there_is_one_order_per_point_in_the_time_with_both_ends(broker):
    subject = schedule(queue="mail")
    runs = actions.backfill(subject, FIRST, FIRST + 3 * DAY)
    assert ordered(runs) == days(0, 1, 2, 3)
    saved = Run.objects.order_by("due_at")
    assert [run.pk for run in saved] == [run.pk for run in runs]
    for run in saved:
        assert (run.origin, run.separate, run.status) == (Origin.BACKFILL, True, Status.QUEUED)
        assert (run.schedule_name, run.task, run.queue) == ("s", "tests.app.tasks.noop", "mail")
    assert members(broker) == {f"j{run.pk}" for run in runs}


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_ordered_for_points_to_come(enabled):
    now = datetime.now(UTC)
    subject = schedule(enabled=enabled)
    last = subject.recurrence.previous_at_or_before(now, now - 2 * DAY)
    plan = actions.plan_backfill(subject, last, now + timedelta(days=400))
    assert [item.due_at for item in plan] == [last]
    assert ordered(actions.backfill(subject, last, now + timedelta(days=400))) == [last]
    assert actions.backfill(subject, now + timedelta(days=1), now + timedelta(days=400)) == []


def test_the_recurrence_is_the_one_the_database_has_now():
    stale = schedule()
    noon, hour = datetime(2025, 3, 10, 12, tzinfo=UTC), timedelta(hours=1)
    Schedule.objects.filter(pk=stale.pk).update(cron="30 */2 * * *", start_at=noon + hour, end_at=noon + 5 * hour)
    half_past = [noon + (n + 0.5) * hour for n in (2, 4)]
    assert ordered(actions.backfill(stale, noon, noon + DAY)) == half_past


def test_a_point_between_two_milliseconds_is_the_one_that_the_worker_would_record():
    anchor = FIRST + timedelta(microseconds=1)
    subject = schedule(kind="every", cron="", every=DAY, start_at=anchor)
    (run,) = actions.backfill(subject, anchor, anchor)
    assert Run.objects.get().due_at == run.due_at == from_ms(to_ms(anchor))


@pytest.mark.parametrize(
    ("status", "origin", "left_out"),
    [
        ("succeeded", "due", "succeeded"),
        ("running", "due", "running"),
        ("queued", "backfill", "backfilled"),
        ("failed", "backfill", "backfilled"),
        ("failed", "due", ""),
        ("lost", "due", ""),
        ("skipped", "due", ""),
        ("succeeded", "manual", ""),
    ],
)
def test_what_ran_or_runs_is_left_out_and_what_did_not_succeed_is_ordered(status, origin, left_out):
    subject = schedule()
    row(subject, FIRST + DAY, status, origin, separate=origin != "due")
    plan = actions.plan_backfill(subject, FIRST, FIRST + 2 * DAY)
    assert [item.left_out for item in plan] == ["", left_out, ""]
    assert [item.known for item in plan] == ["", "" if origin == "manual" else status, ""]
    assert Run.objects.count() == 1
    expected = days(0, 2) if left_out else days(0, 1, 2)
    assert ordered(actions.backfill(subject, FIRST, FIRST + 2 * DAY)) == expected


def test_a_skipped_stretch_covers_its_points_also_one_that_began_earlier():
    subject = schedule()
    row(subject, FIRST - 5 * DAY, "skipped", last_due_at=FIRST + DAY, points=7)
    row(subject, FIRST + 3 * DAY, "skipped", last_due_at=FIRST + 4 * DAY, points=2)
    plan = actions.plan_backfill(subject, FIRST, FIRST + 5 * DAY)
    assert [item.known for item in plan] == ["skipped", "skipped", "", "skipped", "skipped", ""]
    assert not any(item.left_out for item in plan)


def test_a_point_that_the_chain_has_still_to_decide_is_left_out(broker):
    subject = schedule(cron=OTHER_DAILY_CRON)
    point = make_due(broker, subject)
    plan = actions.plan_backfill(subject, point - 2 * DAY, point)
    assert [(item.due_at, item.left_out) for item in plan][-1] == (point, "undecided")
    assert [item.left_out for item in plan[:-1]] == ["", ""]
    run_burst()
    assert [item.left_out for item in actions.plan_backfill(subject, point, point)] == ["succeeded"]


def test_all_points_that_the_chain_has_still_to_decide_are_left_out(broker):
    subject = schedule(kind="every", cron="", every=DAY, missed="all")
    first = make_due(broker, subject, 2.5 * DAY)
    plan = actions.plan_backfill(subject, first - DAY, first + 2 * DAY)
    assert [item.left_out for item in plan] == ["", "undecided", "undecided", "undecided"]


def test_a_point_that_a_worker_may_run_at_this_moment_is_left_out_also_after_a_pause(broker):
    subject = schedule(cron=OTHER_DAILY_CRON)
    point = make_due(broker, subject)
    subject.refresh_from_db()
    subject.pause()
    assert [item.left_out for item in actions.plan_backfill(subject, point, point)] == ["undecided"]


def test_what_passed_during_a_pause_is_ordered_while_it_lasts():
    subject = schedule(cron="* * * * *", enabled=False)
    now = datetime.now(UTC)
    minute = now.replace(second=0, microsecond=0)
    Schedule._base_manager.filter(pk=subject.pk).update(effective_from=now - DAY, created_at=now - 2 * DAY)
    assert ordered(actions.backfill(subject, minute, minute)) == [minute]


def test_more_points_than_the_limit_are_refused_with_their_number_before_anything_is_written(broker):
    subject = schedule()
    with pytest.raises(InvalidArguments, match=r"24 due times.*at most 23 can start.*shorter"):
        actions.backfill(subject, FIRST, FIRST + 23 * DAY, limit=23)
    assert not Run.objects.exists()
    assert members(broker) == set()
    for number in range(22):  # what is left out does not count
        row(subject, FIRST + number * DAY, "succeeded")
    assert len(actions.backfill(subject, FIRST, FIRST + 23 * DAY, limit=2)) == 2


def test_a_time_with_far_too_many_points_is_refused_without_looking_at_them():
    subject = schedule(cron="* * * * * *")
    with pytest.raises(InvalidArguments, match=r"31536000 due times.*at most 20000 can be examined"):
        actions.plan_backfill(subject, FIRST - timedelta(days=365), FIRST - timedelta(seconds=1))


def test_what_cannot_be_meant_is_refused_with_the_reason():
    subject = schedule()
    with pytest.raises(InvalidArguments, match="before the start"):
        actions.backfill(subject, FIRST, FIRST - DAY)
    with pytest.raises(ValueError, match="aware"):
        actions.backfill(subject, FIRST.replace(tzinfo=None), FIRST)
    delayed = schedule("delayed", kind="every", cron="", every=DAY, every_from="finish")
    with pytest.raises(InvalidArguments, match="Run now"):
        actions.backfill(delayed, FIRST, FIRST + DAY)
    Schedule.objects.filter(pk=subject.pk).delete()
    with pytest.raises(InvalidArguments, match="deleted"):
        actions.backfill(subject, FIRST, FIRST + DAY)
    assert not Run.objects.exists()


def test_the_runs_happen_on_a_paused_finished_schedule_and_move_nothing_of_it(broker):
    sync.check_layout(broker)
    tasks.CALLS.clear()
    subject = schedule(task="tests.app.tasks.add", args=[1], max_runs=1)
    ScheduleState.objects.filter(schedule=subject).update(run_count=1, last_due_at=FIRST)
    subject.pause()
    before = ScheduleState.objects.values("last_due_at", "next_due_at", "run_count", "condition").get()
    actions.backfill(subject, FIRST + DAY, FIRST + 3 * DAY)
    run_burst()
    ran = list(Run.objects.order_by("due_at").values_list("due_at", "status"))
    assert ran == [(due_at, "succeeded") for due_at in days(1, 2, 3)]
    assert len(tasks.CALLS) == 3
    assert ScheduleState.objects.get().last_latency_ms is None  # it was not late, it was ordered so
    assert ScheduleState.objects.values("last_due_at", "next_due_at", "run_count", "condition").get() == before


def test_old_points_do_not_push_before_what_is_due_now(broker):
    subject, other = schedule(), schedule("other", cron=OTHER_DAILY_CRON)
    point = make_due(broker, other)
    runs = actions.backfill(subject, FIRST, FIRST + 5 * DAY)
    scores = [view.score_ms for view in broker.read_views([(f"j{run.pk}", "default") for run in runs])]
    assert scores == sorted(set(scores))  # equal ones would come in the order of their names: r10 before r9
    place = broker.get_shard("s1", "default")
    claim = broker.claim(place, limit=10, lease_ms=30_000, request=1)
    names = [entry.member for entry in claim.entries]
    assert point < datetime.now(UTC) and names == [f"s{other.pk}", *(f"j{run.pk}" for run in runs)]


def test_a_flush_and_a_redis_that_was_away_lose_none(broker, settings):
    good = settings.CACHES
    subject = schedule()
    actions.backfill(subject, FIRST, FIRST)
    assert len(members(broker)) == 1
    broker.purge()
    kill_redis(settings)
    assert len(actions.backfill(subject, FIRST, FIRST + DAY)) == 1
    settings.CACHES = good
    assert members(broker) == set()
    run_burst()
    ran = list(Run.objects.order_by("due_at").values_list("due_at", "status"))
    assert ran == [(due_at, "succeeded") for due_at in days(0, 1)]


def test_nothing_reaches_redis_before_the_commit_or_after_a_rollback(broker):
    subject = schedule()
    with pytest.raises(RuntimeError), transaction.atomic():
        actions.backfill(subject, FIRST, FIRST)
        assert members(broker) == set()
        raise RuntimeError
    assert not Run.objects.exists()
    assert members(broker) == set()


def test_what_two_people_order_at_once_is_ordered_once(monkeypatch):
    subject = schedule()
    plan = actions.plan_backfill
    both_have_planned = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def plan_then_wait(*args, **options):
        found = plan(*args, **options)
        both_have_planned.wait()
        return found

    monkeypatch.setattr(actions, "plan_backfill", plan_then_wait)

    def order(first, last):
        return ordered(actions.backfill(subject, FIRST + first * DAY, FIRST + last * DAY))

    one, other = at_once(partial(order, 0, 5), partial(order, 3, 8))
    assert sorted(one + other) == days(*range(9))
    assert [run.due_at for run in Run.objects.order_by("due_at")] == days(*range(9))


def test_orders_of_one_schedule_in_the_same_ms_are_two(broker):
    row, now = schedule("s"), utcnow()
    first, second = actions.run_now(row, now=now), actions.run_now(row, now=now)
    assert second.due_at - first.due_at == timedelta(milliseconds=1)
    assert [run.schedule_id for run in actions.run_each_now([row, row], now=now)] == [row.pk]
    run_burst()
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}
