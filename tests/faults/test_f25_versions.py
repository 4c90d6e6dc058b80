"""F25: a task that only some workers have; tables and values that are not as the code has them.

What a worker cannot run it hands back with a growing delay and says so; it fails nothing, and does not spin.
"""

import re
from datetime import timedelta

import pytest
from django.db import connection

from django_delayq import sync
from django_delayq.models import Run, Schedule, ScheduleState
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until
from tests.faults.harness.load import schedules
from tests.faults.harness.oracle import histories_of
from tests.faults.harness.workers import WorkerProcess
from tests.faults.live import together
from tests.faults.patched.apps import patches
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

TRACE = "tests.faults.tasks.trace"
RELEASED = re.compile(r"(\S+) is released")
FIRST_MS = 200
HOUR = timedelta(hours=1)


def view(broker, row):
    return broker.read_views([(f"s{row.pk}", row.queue)])[0]


def old_worker(folder):
    """A worker whose code does not have the task."""
    return WorkerProcess(folder=folder, environment=patches(f"lacks={TRACE}", f"first_release_ms={FIRST_MS}"))


def test_f25_workers_with_and_without_a_task_run_all_its_points_together(server, trace, tmp_path, report):
    """Two lack it, one has it: whoever wakes first for what was handed back must not keep it from the others."""
    schedules(5, trace, every=HOUR)
    with server.broker() as broker, together(old_worker(tmp_path), old_worker(tmp_path)):
        points = [make_due(broker, row) for row in Schedule.objects.all()]
        histories = histories_of(Schedule.objects.all())
        with WorkerProcess(folder=tmp_path).ready():
            took = wait_until(lambda: Run.objects.finished().count() == 5, 15, "runs of all")
        report("F25 task unknown to two of three", histories, recovery=took)
    assert set(Run.objects.values_list("due_at", "status")) == {(point, "succeeded") for point in points}


def test_f25_a_task_that_no_worker_knows_waits_for_one_that_does(server, trace, tmp_path, report):
    schedules(5, trace, every=HOUR)
    with server.broker() as broker:
        points = [make_due(broker, row) for row in Schedule.objects.all()]
        histories = histories_of(Schedule.objects.all())
        began = broker.read_now_ms()
        with together(old_worker(tmp_path), old_worker(tmp_path)):
            logs = []

            def releases():
                logs[:] = [path.read_text() for path in tmp_path.glob("worker-*.log")]
                return sum(len(RELEASED.findall(log)) for log in logs)

            wait_until(lambda: releases() >= 5 * 3, what="that each hands back again and again")
            wait_until(lambda: broker.read_now_ms() > began + 15 * FIRST_MS, 10, "1 + 2 + 4 + 8 delays to pass")
            released, took = releases(), broker.read_now_ms() - began
            assert released <= 5 * 2 * (1 + most_releases(took)), "each hands back more and more rarely"
            assert TRACE in logs[0] + logs[1]
            assert not Run.objects.exists(), "nobody has failed"
        with WorkerProcess(folder=tmp_path).ready():  # the deploy goes on
            wait_until(lambda: Run.objects.finished().count() == 5, 30, "runs of all")
        report("F25 task unknown to all", histories, note=f"{released} releases before")
    found = set(Run.objects.values_list("due_at", "status", "attempt"))
    assert found == {(point, "succeeded", 1) for point in points}


def most_releases(ms):
    """Return how often what comes back after delays that double, up to eight times the first, comes in so many ms."""
    delays = [FIRST_MS, 2 * FIRST_MS, 4 * FIRST_MS]
    few = sum(ms >= sum(delays[: n + 1]) for n in range(3))
    return few + max(0, ms - sum(delays)) // (8 * FIRST_MS)


def test_f25_the_delay_doubles_from_a_second_to_ten_minutes_and_counts_no_attempt(broker, caplog):
    row = Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron=DAILY_CRON)
    make_due(broker, row)
    Schedule._base_manager.update(task="tests.app.tasks.to_come")
    worker = Worker(WorkerOptions(queues=("default",), burst=True))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    due = f"{{{broker.config.prefix}:default:0}}:due"
    for seconds in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600):
        before = broker.read_now_ms()
        broker.client.zadd(due, {f"s{row.pk}": before})
        worker.timers.note_due(broker.list_shards()[0], 0)
        worker.tick()
        score = view(broker, row).score_ms
        assert score - broker.read_now_ms() <= 1000 * seconds <= score - before
    worker.broker.close()
    assert not Run.objects.exists()
    assert broker.client.hlen(f"{{{broker.config.prefix}:default:0}}:attempts") == 0
    assert caplog.text.count("tests.app.tasks.to_come") == 12
    Schedule._base_manager.update(task="tests.app.tasks.noop")
    broker.client.zadd(due, {f"s{row.pk}": broker.read_now_ms()})
    run_burst()
    assert Run.objects.get().status == "succeeded"


@pytest.fixture
def more_columns():
    """The tables have columns that this code does not know."""
    tables = [model._meta.db_table for model in (Schedule, ScheduleState, Run)]
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ADD COLUMN more varchar(9) NOT NULL DEFAULT 'x'")
    yield
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DROP COLUMN more")


def test_f25_further_columns_do_not_disturb_a_worker(more_columns, broker, trace, report):
    """Each kind of write: first rows, retries, take-overs, states, edits."""
    histories = schedules(3, trace, every=HOUR)
    histories += schedules(1, trace, every=HOUR, name="retry", task="tests.faults.tasks.fail_first",
                           max_attempts=2, backoff=timedelta(0))  # fmt: skip
    for row in Schedule.objects.all():
        make_due(broker, row)
    histories = histories_of(Schedule.objects.all())
    broker.claim(broker.list_shards()[0], limit=1, lease_ms=0, request=1)  # a worker that died
    run_burst()
    Schedule.objects.first().pause()
    Schedule.objects.last().delete()
    report("F25 further columns", histories)
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}


@pytest.fixture
def mandatory_column():
    """The ledger has a column that has to be filled in, which this code does not."""
    table = Run._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD COLUMN more integer CHECK (more IS NOT NULL)")

    def drop():
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} DROP COLUMN more")

    yield drop
    with connection.cursor() as cursor:
        columns = [column.name for column in connection.introspection.get_table_description(cursor, table)]
    if "more" in columns:
        drop()


def test_f25_a_row_that_the_tables_refuse_is_told_as_what_it_is_and_its_point_is_not_lost(
    mandatory_column, broker, settings, trace, caplog, report
):
    settings.DELAYQ = {**settings.DELAYQ, "LEASE_SECONDS": 1}
    schedules(2, trace, every=HOUR)
    points = [make_due(broker, row) for row in Schedule.objects.all()]
    histories = histories_of(Schedule.objects.all())
    run_burst()
    assert not Run.objects.exists()
    assert caplog.text.count("is refused: ") == 1, "once for all"
    assert "decided by another worker" not in caplog.text
    began = broker.read_now_ms()
    wait_until(lambda: broker.read_now_ms() > began + 1100, 10, "the end of the leases")
    run_burst()
    assert len(trace.executions()) == 2, "nothing is executed again that cannot be recorded"
    mandatory_column()
    began = broker.read_now_ms()
    wait_until(lambda: broker.read_now_ms() > began + 1100, 10, "the end of the leases")
    run_burst()
    assert set(Run.objects.values_list("due_at", "status")) == {(point, "succeeded") for point in points}
    report("F25 mandatory column", histories, traced=False)


@pytest.mark.parametrize("values", [{"overlap": "twice"}, {"missed": "most"}], ids=str)
def test_f25_a_value_that_sql_wrote_is_not_guessed_at_and_loses_no_point(broker, report, values):
    """A worker runs it by no rule of its own and says why it cannot; once it is put right, the point runs."""
    common = {"task": "tests.app.tasks.noop", "kind": "every", "every": HOUR}
    row = Schedule.objects.create(name="strange", **common)
    other = Schedule.objects.create(name="known", **common)
    point = make_due(broker, row)
    make_due(broker, other)
    histories = histories_of([row, other])
    ((field, value),) = values.items()
    right = getattr(row, field)
    Schedule._base_manager.filter(pk=row.pk).update(**values)
    run_burst()
    run_burst()
    assert [run.schedule_name for run in Run.objects.all()] == ["known"]
    row.refresh_from_db()
    assert row.state.condition == "broken"
    assert repr(value) in row.state.condition_reason
    Schedule._base_manager.filter(pk=row.pk).update(**{field: right})
    sync.sweep_fully(broker)
    run_burst()
    assert (row.runs.get().due_at, row.runs.get().status) == (point, "succeeded")
    report(f"F25 {field} {value}", histories, until=point, traced=False)
