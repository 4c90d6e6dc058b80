"""What was pruned can neither be recorded, begun nor ordered once more."""

import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test.utils import CaptureQueriesContext, override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from django_delayq import explain, ledger, orders
from django_delayq.exceptions import InvalidBackfill
from django_delayq.ledger import Outcome, Won, version_of
from django_delayq.models import Run, Schedule, ScheduleState, Status
from django_delayq.rows import RunRow
from tests.integration.histories import NOW, ago, history, horizon, keep, left, prune, run, schedule
from tests.support import DAILY_CRON, DAY

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["keep"]


# -- the ledger


def outcome(owner, days, status=Status.SUCCEEDED, **values):
    row = ledger.load_schedules([owner.pk])[owner.pk]
    due_at = ago(days)
    times = {"claimed_at": due_at, "started_at": due_at, "finished_at": due_at}
    return Outcome(RunRow.of(row, due_at, status=status, fence="late", worker="w", **times, **values), row)


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


def test_recording_reads_the_horizon_with_the_state_that_it_locks_anyway(keep):
    keep(30)
    owner = schedule()
    history(owner, 40, 1)
    prune()
    fresh = outcome(owner, 0.0001)
    with CaptureQueriesContext(connection) as queries:
        assert ledger.record([fresh]) == [Won.YES]
    assert len([query for query in queries if ScheduleState._meta.db_table in query["sql"]]) == 2  # read, written


def test_what_belongs_to_a_pruned_point_is_lost_with_it(keep):
    keep(30)
    owner = schedule()
    history(owner, 40, 1)
    prune()
    stretch = outcome(owner, 40, Status.SKIPPED)
    run_behind = outcome(owner, 0.0001)
    run_behind.owner = stretch
    assert ledger.record([stretch, run_behind]) == [Won.LOST, Won.LOST]
    assert left() == [1]


def test_a_take_over_of_what_was_pruned_does_not_begin(keep):
    keep(30)
    owner, other = schedule(), schedule("b")
    history(owner, 40, 1)
    prune()
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
    late.seen = version_of(begun)
    Run.objects.filter(pk=begun.pk).update(status="lost", finished_at=ago(39))
    assert prune() == 1
    assert ledger.record([late]) == [Won.LOST]
    assert left() == [1]


def test_a_deleted_and_re_created_schedule_begins_without_a_horizon(keep):
    keep(30)
    owner = schedule()
    history(owner, 40, 1)
    prune()
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


# -- backfills


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
    plan = orders.plan_backfill(owner, points[0], points[4])
    assert [item.left_out for item in plan] == ["pruned", "pruned", "", "", ""]
    assert [each.due_at for each in orders.backfill(owner, points[0], points[4])] == points[2:5]
    assert [each.due_at for each in Run.objects.order_by("due_at")] == points[2:5]


def test_a_backfill_of_nothing_but_pruned_points_says_up_to_when(keep):
    owner, points = daily()
    ScheduleState.objects.filter(pk=owner.pk).update(pruned_until=points[3])
    with pytest.raises(InvalidBackfill, match=rf"pruned up to {points[3]:%Y-%m-%d %H:%M:%S} UTC.*later"):
        orders.backfill(owner, points[0], points[3])
    assert [item.left_out for item in orders.plan_backfill(owner, points[0], points[4])] == ["pruned"] * 4 + [""]


def test_the_page_of_a_backfill_and_explain_say_what_was_pruned(keep, boss):
    owner, points = daily()
    run(owner, (NOW - points[0]) / DAY, "failed")
    ScheduleState.objects.filter(pk=owner.pk).update(pruned_until=points[1])
    url = f"/admin/django_delayq/schedule/{owner.pk}/backfill/"
    until = f"pruned up to {points[1]:%Y-%m-%d %H:%M:%S} UTC"
    assert until in boss.get(url).content.decode()
    form = {"start_0": f"{points[0]:%Y-%m-%d}", "start_1": "00:00", "end_1": "23:59:59"}
    page = boss.get(url, {**form, "end_0": f"{points[3]:%Y-%m-%d}"}).content.decode()
    assert page.count("its history is pruned") == 2
    assert "2 points are left out" in page
    page = boss.get(url, {**form, "end_0": f"{points[0]:%Y-%m-%d}"}).content.decode()
    assert f"The history of this schedule is {until}" in page
    owner = Schedule.objects.get(pk=owner.pk)
    told = " ".join(explain.explain_point(owner, explain.parse_moment(points[1].isoformat(), "UTC", NOW), NOW))
    assert "its row was pruned" in told


def test_a_backfill_that_was_planned_before_the_pruning_orders_nothing_of_it(monkeypatch):
    owner, points = daily()
    plan = orders._plan

    def planned_before(*args):
        found = plan(*args)
        ScheduleState.objects.filter(pk=owner.pk).update(pruned_until=points[2])
        return found

    monkeypatch.setattr(orders, "_plan", planned_before)
    assert [each.due_at for each in orders.backfill(owner, points[0], points[4])] == points[3:5]
