"""Which rows of the ledger go, which never do, and that what went can neither be recorded nor ordered once more."""

import threading
from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from django_delayq import actions, ledger
from django_delayq.exceptions import InvalidArguments
from django_delayq.ledger import Outcome, Won, get_version, retention
from django_delayq.ledger.rows import RunRow
from django_delayq.models import Origin, Run, Schedule, ScheduleState, Status
from django_delayq.monitoring import explain
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import PATIENCE_SECONDS
from tests.integration.histories import NOW, ago, history, horizon, keep, left, prune, run, schedule
from tests.integration.mirroring import at_once
from tests.support import DAILY_CRON, DAY

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["keep"]

OUTCOMES = (Status.SUCCEEDED, Status.FAILED, Status.SKIPPED, Status.LOST)


def test_days_count_from_the_end_of_a_run_and_without_a_setting_everything_stays(keep):
    owner = schedule()
    history(owner, 31, 29, 1)
    run(owner, 32, finished_at=ago(29))  # it took three days
    assert prune() == 0
    keep(30)
    assert prune() == 1
    assert left() == [32, 29, 1]
    assert horizon(owner) == 31


def test_each_outcome_is_kept_for_its_own_time_and_what_is_not_named_for_ever(keep):
    keep({"succeeded": 30, "skipped": 7, "failed": 365})
    owner = schedule()
    for number, status in enumerate(OUTCOMES):
        for days in (400, 40, 10, 5):
            run(owner, days + number / 10, status)
    prune()
    by_status = {status.value: left(owner, status=status) for status in OUTCOMES}
    assert {status: [round(days) for days in found] for status, found in by_status.items()} == {
        "succeeded": [10, 5], "failed": [40, 10, 5], "skipped": [5], "lost": [400, 40, 10, 5],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"keep": "all"}, [400, 300, 200, 100, 50, 10]),
        ({"keep": "last", "keep_last": 2}, [50, 10]),
        ({"keep": "last", "keep_last": 100}, [400, 300, 200, 100, 50, 10]),
        ({"keep": "none"}, [10]),
    ],
)
def test_a_schedule_says_what_is_kept_of_it(keep, values, kept):
    keep({"succeeded": 20, "skipped": 20, "failed": 350, "lost": 20})
    owner = schedule(**values)
    for days, status in ((400, "failed"), (300, "lost"), (200, "skipped"), (100, "failed"), (50, "succeeded")):
        run(owner, days, status)
    run(owner, 10)
    prune()
    assert left() == kept
    assert prune() == 0, "a second pass finds nothing"


@pytest.mark.parametrize("values", [{"keep": "failures"}, {"keep": "none"}, {"keep": "last", "keep_last": 1}])
def test_what_ended_just_now_stays_for_ten_minutes(values):
    owner = schedule(**values)
    for minutes in (1440, 13, 8, 5):
        ended = NOW - timedelta(minutes=minutes - 1)
        run(owner, minutes / 1440, finished_at=ended)
    assert prune(NOW) == 2
    assert len(left()) == 2


@pytest.mark.parametrize("values", [{"keep": "last"}, {"keep": "some"}])
def test_what_sql_wrote_and_nobody_understands_keeps_everything(keep, values):
    keep(1)
    history(schedule(**values), 9, 8, 7)
    assert prune() == 0


def test_where_failures_are_kept_they_are_for_as_long_as_the_setting_says(keep):
    keep({"failed": 30})
    owner = schedule(keep="failures")
    history(owner, 40, 20, status="failed")
    history(owner, 39, 19, status="lost")
    history(owner, 38, 18)
    assert prune() == 2
    assert left() == [39, 20, 19, 18]  # the newest outcome stays whatever it is


def test_the_newest_are_counted_over_all_origins_and_the_newest_of_the_chain_stays():
    owner = schedule(keep="last", keep_last=2)
    history(owner, 9, 8)
    history(owner, 7, 6, 5, origin=Origin.MANUAL)
    assert prune() == 2
    assert left() == [8, 6, 5]
    assert horizon(owner) == 9


@pytest.mark.parametrize("values", [{}, {"keep": "none"}, {"keep": "failures"}])
def test_open_rows_and_the_newest_outcome_of_the_chain_stay_and_nothing_else(keep, values):
    keep(1)
    owner = schedule(**values)
    history(owner, 100, status="failed")
    for days, status in ((90, "running"), (80, "retrying"), (70, "queued")):
        run(owner, days, status, separate=True)
    run(owner, 60)
    run(owner, 50, origin=Origin.MANUAL)
    prune()
    assert left() == [90, 80, 70, 60, *([50] if values.get("keep") == "none" else [])]


def test_of_a_deleted_schedule_rows_go_by_the_setting_alone(keep):
    keep({"succeeded": 30, "failed": 60})
    owners = [schedule(f"s{n}", keep="all") for n in range(6)]
    for owner in owners:
        history(owner, 50, 10)
        history(owner, 51, 70, status="failed")
        run(owner, 90, "queued")
    for number in (0, 2, 3, 5):
        Schedule.objects.get(pk=owners[number].pk).delete()
    prune()
    for number, owner in enumerate(owners):
        assert left(owner) == ([90, 70, 51, 50, 10] if number in (1, 4) else [90, 51, 10]), number


def test_without_a_state_there_is_nowhere_to_note_it_so_only_orders_of_now_go(keep):
    keep(1)
    owner = schedule()
    ScheduleState.objects.all().delete()
    history(owner, 9, 8)
    run(owner, 7, origin=Origin.BACKFILL)
    run(owner, 6, origin=Origin.MANUAL)
    assert prune() == 1
    assert left() == [9, 8, 7]


def test_a_backfill_stays_until_the_chain_has_decided_what_lies_before_it(keep):
    """A point of the chain that waits since before a pause is before it, and would be refused else."""
    keep(1)
    owner = schedule()
    ScheduleState.objects.update(last_due_at=ago(9))
    run(owner, 9)
    run(owner, 5, origin=Origin.BACKFILL)
    assert prune() == 0
    ScheduleState.objects.update(last_due_at=ago(4))
    run(owner, 4)
    assert prune() == 2
    assert horizon(owner) == 5


def test_a_stretch_raises_the_horizon_to_its_end_and_a_run_now_raises_none(keep):
    keep(30)
    owner = schedule()
    history(owner, 90, 1, status="skipped")
    Run.objects.filter(due_at=ago(90)).update(last_due_at=ago(70), points=20)
    run(owner, 60, origin=Origin.MANUAL)
    assert prune() == 2
    assert horizon(owner) == 70
    ScheduleState.objects.update(pruned_until=ago(65))
    run(owner, 80)
    prune()
    assert horizon(owner) == 65, "it never falls"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_batches_and_pages_of_any_size_find_each_row_once(keep, monkeypatch, size):
    keep(30)
    monkeypatch.setattr(retention, "PRUNE_BATCH", max(size, 4))  # three rows may have one due point
    monkeypatch.setattr(retention, "MOST_SCHEDULES", size)
    owners = [schedule(f"s{n}", **({"keep": "last", "keep_last": 3} if n == 2 else {})) for n in range(5)]
    for owner in owners:
        for days in range(40, 20, -1):
            for origin in (Origin.DUE, Origin.MANUAL, Origin.BACKFILL):
                run(owner, days, "lost" if days == 35 else "succeeded", origin)
        run(owner, 2)
    Schedule.objects.get(pk=owners[1].pk).delete()
    batches = list(ledger.find_prunable(utcnow()))
    found = [row.pk for batch in batches for row in batch.rows]
    assert len(found) == len(set(found)) == 4 * 30 + 58
    assert max(len(batch.rows) for batch in batches) <= max(size, 4)
    assert [batch.done for batch in batches] == sorted(batch.done for batch in batches)
    assert batches[-1].done == ledger.LAST_KEY
    assert {row.schedule_id for batch in ledger.find_prunable(utcnow(), owners[2].pk) for row in batch.rows} == {
        owners[3].pk, owners[4].pk,
    }  # fmt: skip
    assert prune() == len(found)
    assert prune() == 0


def test_a_walk_that_ends_anywhere_is_continued_behind_what_is_done(keep, monkeypatch):
    keep(30)
    monkeypatch.setattr(retention, "PRUNE_BATCH", 4)
    for number in range(4):
        history(schedule(f"s{number}"), *range(40, 50), 1)
    after, went = 0, 0
    for _ in range(100):
        batch = next(ledger.find_prunable(utcnow(), after))
        went, after = went + len(ledger.prune(batch.rows).rows), batch.done
        if after == ledger.LAST_KEY:
            break
    assert (went, Run.objects.count()) == (40, 4)


def test_how_late_it_is_counts_from_the_time_at_which_a_row_should_have_gone(keep):
    keep(30)
    history(schedule(), 40, 35, 1)
    (batch,) = ledger.find_prunable(NOW)
    assert batch.late == (10 * DAY - timedelta(hours=6)).total_seconds()


def test_what_others_have_locked_stays_for_a_later_pass(keep):
    keep(30)
    owner, other, orphan = schedule(), schedule("b"), schedule("c")
    for each in (owner, other, orphan):
        history(each, 40, 1)
    Schedule.objects.get(pk=orphan.pk).delete()
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no locks of rows")
    (batch,) = ledger.find_prunable(utcnow())
    done, hold = threading.Event(), threading.Event()

    def lock():
        with transaction.atomic():
            list(ScheduleState.objects.select_for_update().filter(pk=owner.pk))
            list(Run.objects.select_for_update().filter(schedule_id=orphan.pk))
            hold.set()
            done.wait(PATIENCE_SECONDS)
        connections.close_all()

    thread = threading.Thread(target=lock)
    thread.start()
    try:
        assert hold.wait(PATIENCE_SECONDS)
        found = ledger.prune(batch.rows)
        assert (len(found.rows), found.left) == (1, 2)
        assert horizon(other) == 40
    finally:
        done.set()
        thread.join()
    assert prune() == 2


def test_two_that_prune_at_once_prune_each_row_once(keep, monkeypatch):
    keep(30)
    monkeypatch.setattr(retention, "PRUNE_BATCH", 10)
    for number in range(10):
        history(schedule(f"s{number}"), *range(40, 60), 1)
    Schedule.objects.get(name="s5").delete()
    went = sum(at_once(prune, prune)) + prune()
    assert (went, Run.objects.count()) == (200, 10)


@pytest.fixture
def owner(keep):
    """A schedule of which the point of forty days ago was pruned."""
    keep(30)
    made = schedule()
    history(made, 40, 1)
    prune()
    return made


def outcome(owner, days, status=Status.SUCCEEDED, **values):
    row = ledger.load_schedules([owner.pk])[owner.pk]
    due_at = ago(days)
    times = {"claimed_at": due_at, "started_at": due_at, "finished_at": due_at}
    return Outcome(RunRow.build_for(row, due_at, status=status, fence="late", worker="w", **times, **values), row)


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.SKIPPED, Status.LOST, Status.RETRYING])
def test_a_late_recorder_of_what_was_pruned_loses_and_writes_nothing(keep, status):
    keep(30)
    owner, other = schedule(), schedule("b")
    history(owner, 40, 1)
    late = [outcome(owner, 40, status), outcome(owner, 50, status), outcome(other, 0.0001)]
    prune()
    before = ScheduleState.objects.values().get(pk=owner.pk)
    assert ledger.record(late) == [Won.LOST, Won.LOST, Won.YES]
    assert left(owner) == [1]
    assert ScheduleState.objects.values().get(pk=owner.pk) == before


def test_recording_reads_the_horizon_with_the_state_that_it_locks_anyway(owner):
    fresh = outcome(owner, 0.0001)
    with CaptureQueriesContext(connection) as queries:
        assert ledger.record([fresh]) == [Won.YES]
    assert len([query for query in queries if ScheduleState._meta.db_table in query["sql"]]) == 2  # read, written


def test_what_belongs_to_a_pruned_point_is_lost_with_it(owner):
    stretch = outcome(owner, 40, Status.SKIPPED)
    run_behind = outcome(owner, 0.0001)
    run_behind.owner = stretch
    assert ledger.record([stretch, run_behind]) == [Won.LOST, Won.LOST]
    assert left() == [1]


def test_a_take_over_of_what_was_pruned_does_not_begin(owner):
    other = schedule("b")
    starting = [outcome(each, days, Status.RUNNING) for each, days in ((owner, 40), (owner, 0.0001), (other, 40))]
    assert ledger.start(starting) == [Won.LOST, Won.YES, Won.YES]
    assert Run.objects.filter(status="running").count() == 2
    assert ledger.start(starting[1:]) == [Won.YES, Won.YES], "a lost COMMIT reply"


def test_a_take_over_for_a_deleted_schedule_does_not_begin():
    owner = schedule()
    starting = outcome(owner, 40, Status.RUNNING)
    owner.delete()
    assert ledger.start([starting]) == [Won.LOST]
    assert not Run.objects.exists()


def test_a_running_row_that_was_closed_and_pruned_is_lost(keep):
    keep(30)
    owner = schedule()
    begun = run(owner, 40, Status.RUNNING, fence="late", worker="w")
    run(owner, 1)
    late = outcome(owner, 40, pk=begun.pk)
    late.seen = get_version(begun)
    Run.objects.filter(pk=begun.pk).update(status="lost", finished_at=ago(39))
    assert prune() == 1
    assert ledger.record([late]) == [Won.LOST]
    assert left() == [1]


def test_a_deleted_and_re_created_schedule_begins_without_a_horizon(owner):
    late = outcome(owner, 40)
    owner.delete()
    again = schedule()
    assert horizon(again) is None
    assert ledger.record([late]) == [Won.GONE]
    run(again, 40)
    assert sorted(left(again)) == [40]


HISTORIES = st.lists(
    st.tuples(
        st.integers(1, 100), st.sampled_from(("succeeded", "failed", "skipped", "lost", "running")),
        st.sampled_from(("due", "due", "manual", "backfill")),
    ),
    min_size=1, max_size=20, unique_by=lambda row: (row[0], row[2]),
)  # fmt: skip
KEPT = st.sampled_from(
    [("", None), ("failures", None), ("none", None), *(("last", number) for number in range(1, 12)), ("all", None)]
)
DAYS = st.dictionaries(st.sampled_from(("succeeded", "failed", "skipped", "lost")), st.sampled_from((1, 20, 60, None)))


@pytest.mark.everything
@settings(max_examples=60)
@given(rows=HISTORIES, kept=KEPT, days=DAYS, decided=st.integers(1, 101))
def test_after_any_pruning_nothing_of_the_past_is_recorded_twice(rows, kept, days, decided):
    """Everything that stood is executed again: each point has at most the outcome that it had."""
    with override_settings(DELAYQ={**django_settings.DELAYQ, "HISTORY_DAYS": days}):
        Schedule.objects.all().delete()
        Run.objects.all().delete()
        owner = schedule(keep=kept[0], keep_last=kept[1])
        ScheduleState.objects.update(last_due_at=ago(min([decided, *(d for d, _, origin in rows if origin == "due")])))
        for number, status, origin in rows:
            run(owner, number, status, origin)
        newest = Run.objects.filter(origin="due").exclude(status="running").order_by("-due_at").first()
        went = prune()
        stands = set(Run.objects.values_list("pk", "status"))
        assert len(stands) == len(rows) - went
        assert newest is None or (newest.pk, newest.status) in stands
        assert sum(status == "running" for _, status in stands) == sum(status == "running" for _, status, _ in rows)
        points = {number for number, _, origin in rows if origin == "due"}
        if points:
            again = [outcome(owner, number) for number in points]
            assert set(ledger.record(again)) == {Won.LOST}
            assert set(ledger.start([outcome(owner, number, Status.RUNNING) for number in points])) == {Won.LOST}
        assert set(Run.objects.values_list("pk", "status")) == stands
        assert prune() == 0


def daily(**values):
    owner = schedule(kind="cron", cron=DAILY_CRON, **values)
    first = owner.recurrence.next_after(ago(10))
    return owner, [first + n * DAY for n in range(8)]


def test_a_backfill_leaves_out_what_was_pruned(keep):
    keep(5)
    owner, points = daily()
    for due_at in points[:3]:
        run(owner, (NOW - due_at) / DAY)
    prune()
    assert ScheduleState.objects.get(pk=owner.pk).pruned_until == points[1]
    Run.objects.all().delete()
    plan = actions.plan_backfill(owner, points[0], points[4])
    assert [item.left_out for item in plan] == ["pruned", "pruned", "", "", ""]
    assert [each.due_at for each in actions.backfill(owner, points[0], points[4])] == points[2:5]
    assert [each.due_at for each in Run.objects.order_by("due_at")] == points[2:5]


def test_a_backfill_of_nothing_but_pruned_points_says_up_to_when(keep):
    owner, points = daily()
    ScheduleState.objects.filter(pk=owner.pk).update(pruned_until=points[3])
    with pytest.raises(InvalidArguments, match=rf"deleted up to {points[3]:%Y-%m-%d %H:%M:%S} UTC.*later"):
        actions.backfill(owner, points[0], points[3])
    assert [item.left_out for item in actions.plan_backfill(owner, points[0], points[4])] == ["pruned"] * 4 + [""]


def test_the_page_of_a_backfill_and_explain_say_what_was_pruned(keep, boss):
    owner, points = daily()
    run(owner, (NOW - points[0]) / DAY, "failed")
    ScheduleState.objects.filter(pk=owner.pk).update(pruned_until=points[1])
    url = f"/admin/django_delayq/schedule/{owner.pk}/backfill/"
    until = f"deleted up to {points[1]:%Y-%m-%d %H:%M:%S} UTC"
    assert until in boss.get(url).content.decode()
    form = {"start_0": f"{points[0]:%Y-%m-%d}", "start_1": "00:00", "end_1": "23:59:59"}
    page = boss.get(url, {**form, "end_0": f"{points[3]:%Y-%m-%d}"}).content.decode()
    assert page.count("its history is pruned") == 2
    assert "2 due times are left out" in page
    page = boss.get(url, {**form, "end_0": f"{points[0]:%Y-%m-%d}"}).content.decode()
    assert f"The history of this schedule is {until}" in page
    owner = Schedule.objects.get(pk=owner.pk)
    told = " ".join(explain.explain_point(owner, explain.parse_moment(points[1].isoformat(), "UTC", NOW), NOW))
    assert "its row was deleted: see DELAYQ['HISTORY_DAYS']" in told


def test_a_backfill_that_was_planned_before_the_pruning_orders_nothing_of_it(monkeypatch):
    owner, points = daily()
    plan = actions.plan_backfill

    def planned_before(*args, **options):
        found = plan(*args, **options)
        ScheduleState.objects.filter(pk=owner.pk).update(pruned_until=points[2])
        return found

    monkeypatch.setattr(actions, "plan_backfill", planned_before)
    assert [each.due_at for each in actions.backfill(owner, points[0], points[4])] == points[3:5]
