"""F28: due points that look alike are told separate: equal time and equal task, and one name used again."""

from datetime import timedelta

import pytest

from django_delayq.models import Run, Schedule
from django_delayq.recurrence.point import utcnow
from tests import failpoints
from tests.faults import tasks
from tests.faults.harness.oracle import histories_of
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]


def schedule(name, path, **values):
    values = {"kind": "cron", "cron": DAILY_CRON, **values}
    return Schedule.objects.create(name=name, task=tasks.trace.module_path, args=[str(path)], **values)


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_f28_equal_points_of_equal_tasks_all_run(broker, trace, report, overlap):
    rows = [schedule(f"s{n}", trace.path, overlap=overlap) for n in range(10)]
    points = {make_due(broker, row) for row in rows}
    assert len(points) == 1
    run_burst(threads=4)
    runs = Run.objects.order_by("schedule_id")
    assert [run.schedule_id for run in runs] == [row.pk for row in rows]
    assert {(run.due_at, run.status) for run in runs} == {(*points, "succeeded")}
    assert sorted(trace.per_point().values()) == [1] * 10
    report(f"F28 twins, overlap {overlap}", histories_of(Schedule.objects.all()))


def test_f28_a_name_used_again_begins_a_history_of_its_own(broker, trace, report):
    path = trace.path
    first = schedule("report", path, description="the first")
    point = make_due(broker, first)
    run_burst()
    old = Run.objects.get()
    first.delete()
    second = schedule("report", path, description="the second")
    run_burst()
    assert list(Run.objects.all()) == [old], "what the namesake did is no debt of the new one"
    assert make_due(broker, second) == point
    run_burst()
    assert sorted(Run.objects.values_list("pk", "schedule_id", "schedule_name", "due_at", "status")) == [
        (old.pk, old.schedule_id, "report", point, "succeeded"),
        (second.runs.get().pk, second.pk, "report", point, "succeeded"),
    ]
    assert old.schedule_id != second.pk
    second.refresh_from_db()
    assert (second.state.run_count, second.state.last_due_at) == (1, point)
    assert len(trace.executions()) == 2
    report("F28 one name twice", histories_of([second]))


def test_f28_an_outcome_of_a_deleted_schedule_is_not_its_successors_even_under_the_same_key(broker, trace, monkeypatch):
    """Restored by hand or by a fixture: the primary key is the same, the schedule is another."""
    path = trace.path
    first = schedule("report", path)
    make_due(broker, first)

    def replace(name):
        if name == "before_ledger" and Schedule.objects.filter(description="").exists():
            Schedule.objects.all().delete()
            second = Schedule(pk=first.pk, name="report", task=tasks.trace.module_path, args=[str(path)], kind="cron")
            second.cron, second.description = DAILY_CRON, "the second"
            second.save(force_insert=True)

    monkeypatch.setattr(failpoints, "reach", replace)
    run_burst()
    monkeypatch.undo()
    assert len(trace.executions()) == 1
    second = Schedule.objects.get()
    assert not second.runs.exists()
    assert second.created_at > utcnow() - timedelta(minutes=1)
    point = make_due(broker, second)
    run_burst()
    assert (second.runs.get().due_at, second.runs.get().status) == (point, "succeeded")
    second.refresh_from_db()
    assert second.state.run_count == 1
