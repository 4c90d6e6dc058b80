"""F17: clocks that step, clocks that differ, and days that are longer or shorter than others."""

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import F

from django_delayq import actions
from django_delayq.models import Run, Schedule
from django_delayq.recurrence import from_ms, to_ms
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.oracle import History, Version, check, histories_of
from tests.faults.harness.workers import WorkerProcess
from tests.faults.live import together
from tests.faults.patched.apps import patches
from tests.faults.simulated_time import SimulatedTime
from tests.support import run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def time(monkeypatch, broker):
    simulated = SimulatedTime(monkeypatch.setattr, broker)
    yield simulated
    simulated.end()


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


#: (zone, when they are made, hours per step, steps, {what: (definition, the instants in UTC at which it must run)})
DAYS = [
    ("Europe/Berlin", "2027-03-27T23:20", 0.5, 10, {  # 02:00 becomes 03:00 at 01:00 UTC
        "02:30": ({"cron": "30 2 * * *"}, ["2027-03-28T01:00"]),
        "02:30 skipped": ({"cron": "30 2 * * *", "dst_gap": "skip"}, []),
        "hourly": ({"cron": "0 * * * *"}, [f"2027-03-28T0{n}:00" for n in range(5)]),
        "03:00": ({"cron": "0 3 * * *"}, ["2027-03-28T01:00"]),
    }),
    ("Europe/Berlin", "2027-10-30T23:20", 0.5, 10, {  # 03:00 becomes 02:00 at 01:00 UTC
        "02:30": ({"cron": "30 2 * * *"}, ["2027-10-31T00:30"]),
        "02:30 twice": ({"cron": "30 2 * * *", "dst_overlap": "twice"}, ["2027-10-31T00:30", "2027-10-31T01:30"]),
        "hourly": ({"cron": "0 * * * *"}, [f"2027-10-31T0{n}:00" for n in range(5)]),
        "03:00": ({"cron": "0 3 * * *"}, ["2027-10-31T02:00"]),
    }),
    ("UTC", "2028-02-28T23:50", 6, 9, {  # a leap year
        "29 February": ({"cron": "0 12 29 2 *"}, ["2028-02-29T12:00"]),
        "last day": ({"cron": "30 0 L 2 *"}, ["2028-02-29T00:30"]),
        "first day": ({"cron": "0 0 1 * *"}, ["2028-03-01T00:00"]),
        "daily": ({"kind": "every", "every": timedelta(days=1), "start_at": at("2028-02-01T06:00")},
                  ["2028-02-29T06:00", "2028-03-01T06:00"][:2]),
    }),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "made", "hours", "steps", "wanted"), DAYS, ids=lambda value: str(value)[:16])
def test_f17_on_odd_days_every_point_runs_once_and_when_it_must(broker, time, report, zone, made, hours, steps, wanted):
    time.set(at(made))
    for name, (values, _) in wanted.items():
        values = {"kind": "cron", "timezone": zone, **values}
        Schedule.objects.create(name=name, task="tests.app.tasks.noop", **values)
    histories = histories_of(Schedule.objects.all())
    for step in range(steps):
        time.set(at(made) + 10 * MINUTE + step * hours * HOUR)
        run_burst()
    report(f"F17 {zone} {made[:10]}", histories, until=time.now(), traced=False, seconds=0)
    for name, (_, instants) in wanted.items():
        runs = Run.objects.filter(schedule_name=name).order_by("due_at")
        assert [run.due_at for run in runs] == [at(text) for text in instants], name
        assert {run.status for run in runs} <= {"succeeded"}


def decided_points():
    """Return (schedule, due point in ms) of every outcome."""
    return {(pk, to_ms(due)) for pk, due in Run.objects.finished().values_list("schedule_id", "due_at")}


def test_f17_a_server_whose_clock_steps_by_an_hour_loses_and_doubles_nothing(
    broker, time, dense, trace, tmp_path, report
):
    """Forth: what was passed over is explained. Back: what was decided is not due again. Both while tasks run."""
    histories = schedules(8, trace, every=SECOND / 2) + schedules(4, trace, every=SECOND / 2, seconds=0.4, name="slow")
    one, two = (stepping_worker(tmp_path) for _ in range(2))
    with together(one, two):
        more_runs(24)
        step_while_tasks_run(time, trace, HOUR)
        more_runs(48)
        ahead = time.now()
        report("F17 server's clock +1 h", histories, until=ahead)
        step_while_tasks_run(time, trace, -HOUR)
        wait_until(lambda: all(item.ended for item in trace.executions()), 10, "the ends of what ran")
        points = {item.point for item in trace.executions()}
        wait_until(lambda: points <= decided_points(), 10, "their outcomes")
        members = [(f"s{history.pk}", "default") for history in histories]
        wait_until(lambda: not any(view.leased for view in broker.read_views(members)), what="what leaves no trace")
        known = Run.objects.count()
        again = max(ahead - HOUR, from_ms(broker.read_now_ms())) + 2 * SECOND
        wait_until(lambda: broker.read_now_ms() > to_ms(again), 10, "what the clock comes by again")
        verdict = check(histories, ahead, trace)
        assert verdict.clean, verdict.complaints()
        assert Run.objects.count() == known, "nothing that was decided is due again"
        assert one.alive and two.alive
    assert "Traceback" not in one.log() + two.log()
    assert Run.objects.filter(status="skipped", reason="missed", points__gt=6000).count() == 12


def test_f17_a_server_whose_clock_is_set_forward_keeps_no_idle_worker_waiting(
    broker, time, dense, trace, tmp_path, report
):
    """It was an hour behind: the worker sleeps until a point that is an hour away, and has to learn that it is not."""
    histories = schedules(4, trace, every=SECOND / 2)
    with stepping_worker(tmp_path).ready() as worker:
        more_runs(8)
        time.step_server(-HOUR)
        began = broker.read_now_ms()
        wait_until(lambda: broker.read_now_ms() > began + 1500, 10, "the worker to look and find nothing due")
        time.step_server(HOUR)
        more_runs(8)
        report("F17 server's clock -1 h, +1 h", histories)
        assert "Traceback" not in worker.log()


def stepping_worker(folder):
    patch = patches("clock_off_by=0", "asks_who_lives=0.5")
    return WorkerProcess("--threads", "16", folder=folder, environment=patch, LEASE_SECONDS=2, IDLE_CAP_SECONDS=0.2)


def more_runs(number):
    count = Run.objects.filter(status="succeeded").count()
    wait_until(lambda: Run.objects.filter(status="succeeded").count() >= count + number, 30, "runs")


def step_while_tasks_run(time, trace, step):
    wait_until(lambda: any(item.ended is None for item in trace.executions()), 10, "a running task")
    time.step_server(step)


def test_f17_workers_whose_clocks_differ_by_ten_minutes_agree(broker, time, dense, trace, tmp_path, report):
    retrying = {"task": "tests.faults.tasks.fail_first", "max_attempts": 2, "backoff": SECOND / 5}
    histories = schedules(10, trace, every=SECOND / 2) + schedules(5, trace, name="retrying", **retrying)
    with ExitStack() as stack:
        workers = []
        for off in (600, -600, 0):  # each is killed once the next one is there
            environment = patches(f"clock_off_by={off}")
            worker = WorkerProcess(folder=tmp_path, environment=environment, LEASE_SECONDS=1)
            workers.append(stack.enter_context(worker).ready())
            if len(workers) > 1:
                workers[-2].kill()
            wait_until(lambda: any(item.pid == workers[-1].pid for item in trace.executions()), 30, "its runs")
        more_runs(30)
        report("F17 workers' clocks +-10 min", histories)
        assert workers[-1].alive
        assert "Traceback" not in "".join(worker.log() for worker in workers)
    assert not Run.objects.filter(claimed_at__lt=F("due_at")).exists(), "the server's clock says when a point is due"


@pytest.mark.parametrize("off", [10 * MINUTE, -10 * MINUTE], ids=["ahead", "behind"])
def test_f17_edits_by_a_web_process_whose_clock_is_off_leave_no_gap(broker, time, report, off):
    """An edit begins when the editor's clock says so; what the old definition leaves until then is explained."""
    begin = at("2027-05-05T12:00:30")
    time.set(begin)
    row = Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="every", every=MINUTE)
    history = History.of(row)
    for minute in range(40):
        time.set(begin + minute * MINUTE)
        run_burst()
        if minute in (5, 20):
            time.wall += off
            row.every = MINUTE * (2 if minute == 5 else 1)
            row.save()
            history.versions.append(Version(max(time.now(), row.effective_from), row.recurrence))
    report(f"F17 editor's clock {off // MINUTE:+d} min", [history], until=time.now(), traced=False, seconds=0)
    assert Run.objects.filter(status="succeeded").count() > 15


@pytest.mark.parametrize("off", [10 * MINUTE, -10 * MINUTE], ids=["ahead", "behind"])
def test_f17_a_run_that_is_ordered_now_by_a_web_process_whose_clock_is_off_runs_now(broker, time, off):
    row = Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron="0 0 1 1 *")
    time.wall += off
    run = actions.run_now(row)
    run_burst()
    run.refresh_from_db()
    assert run.status == "succeeded"
