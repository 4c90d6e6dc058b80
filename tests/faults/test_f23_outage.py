"""F23: nobody works for a week. Under each policy the ledger explains every point: what ran, and why others did not."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from django_delayq.calls import registry
from django_delayq.calls.compat import task
from django_delayq.models import Run, Schedule
from tests.faults.harness.oracle import histories_of
from tests.faults.simulated_time import SimulatedTime
from tests.support import run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

BEGIN = datetime(2027, 6, 1, 0, 0, 30, tzinfo=UTC)
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
#: Points of the outage: those after the third and up to the return, a quarter of an hour after the last of them.
MISSED_POINTS = 168
RETURN = BEGIN + 3 * HOUR + WEEK + HOUR / 4
OVERLAPS = ("skip", "queue_one", "queue_all", "allow")


@pytest.fixture
def time(monkeypatch, broker):
    simulated = SimulatedTime(monkeypatch.setattr, broker)
    simulated.set(BEGIN)
    yield simulated
    simulated.end()


def hourly(name, **values):
    values = {"task": "tests.app.tasks.noop", "kind": "every", "every": HOUR, "start_at": BEGIN, **values}
    return Schedule.objects.create(name=name, **values)


def work_for_three_hours(time, begin):
    for hour in (1, 2, 3):
        time.set(begin + hour * HOUR)
        run_burst()


def wanted(missed, window, most):
    """Return (points that run, reasons of those that do not) of the points of the outage, by the documented rules."""
    within = MISSED_POINTS if window is None else window // HOUR
    runs = {"skip": 0, "latest": min(1, within), "all": min(within, most)}[missed]
    reasons = {"skip": "missed", "latest": "missed", "all": "max_catch_up"}
    skipped = {"catch_up_window": MISSED_POINTS - within, reasons[missed]: within - runs}
    return runs, {reason: points for reason, points in skipped.items() if points}


def test_f23_a_weeks_outage_is_explained_under_every_policy(broker, time, report):
    kinds = list(product(("latest", "all", "skip"), OVERLAPS, (None, DAY), (10, 1000)))
    for missed, overlap, window, most in kinds:
        name = f"{missed} {overlap} {window} {most}"
        hourly(name, missed=missed, overlap=overlap, catch_up_window=window, max_catch_up=most)
    histories = histories_of(Schedule.objects.all())
    work_for_three_hours(time, BEGIN)
    time.set(RETURN)
    run_burst()
    time.set(RETURN + HOUR * 3 / 4)
    run_burst()
    report("F23 a week", histories, until=time.now(), traced=False, seconds=0)
    for missed, overlap, window, most in kinds:
        name = f"{missed} {overlap} {window} {most}"
        rows = Run.objects.filter(schedule_name=name).order_by("due_at")
        outage = [row for row in rows if BEGIN + 3 * HOUR + HOUR / 2 < row.due_at < RETURN]
        runs, skipped = wanted(missed, window, most)
        ran = [row for row in outage if row.status == "succeeded"]
        assert len(ran) == runs, name
        assert {row.reason: row.points for row in outage if row.status == "skipped"} == skipped, name
        assert len(outage) == runs + len(skipped), f"{name}: one row for each stretch"
        assert [row.due_at for row in ran] == [RETURN - HOUR / 4 - n * HOUR for n in reversed(range(runs))], name
        assert [row.status for row in rows if row.due_at > RETURN] == ["succeeded"], f"{name}: it goes on"


#: What the next execution does with the clocks.
LASTS = []


@task
def last():
    """Take the time that the test says."""
    if LASTS:
        LASTS.pop()()


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_f23_what_comes_due_while_the_first_run_after_the_outage_lasts_for_hours_is_explained(
    broker, time, monkeypatch, report, missed, overlap
):
    """Back after a week, just in time for a point; the first run takes five hours and a half."""
    monkeypatch.setitem(registry.get_tasks(), last.module_path, last)
    row = hourly("s", missed=missed, overlap=overlap, max_catch_up=4, task=last.module_path)
    histories = histories_of([row])
    work_for_three_hours(time, BEGIN)
    newest = RETURN - HOUR / 4
    time.set(newest)
    LASTS.append(lambda: time.set(newest + 5.5 * HOUR))
    run_burst(threads=1)
    run_burst(threads=1)  # the first one's idea of the server's clock was from before the jump
    assert not LASTS
    report(f"F23 {missed}, then {overlap}", histories, until=time.now(), traced=False, seconds=0)
    if missed != "all":  # which would still be catching up with what came before
        later = Run.objects.filter(due_at__gt=newest)
        found = {
            status: sum(run.points for run in later if run.status == status) for status in ("succeeded", "skipped")
        }
        ran = {"skip": 0, "queue_one": 1, "queue_all": 5, "allow": 1 if missed == "latest" else 0}[overlap]
        assert found == {"succeeded": ran, "skipped": 5 - ran}
