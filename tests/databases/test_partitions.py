"""The recipe in docs/size.md for a ledger in partitions: applied as it stands there, and taken back with the test."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection

from django_delayq import ledger, mirror, orders
from django_delayq.exceptions import InvalidBackfill
from django_delayq.ledger import Outcome, Won
from django_delayq.ledger.recording import insert_run
from django_delayq.models import Run, Schedule, ScheduleState
from django_delayq.rows import RunRow
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="partitions are PostgreSQL's"),
]
CHAPTER = Path("docs/size.md").read_text("utf-8").split("\n## A ledger in partitions\n")[1]
RECIPES = re.findall(r"```sql\nBEGIN;\n(.*?)COMMIT;\n```", CHAPTER, re.DOTALL)
DECEMBER = datetime(2026, 12, 10, tzinfo=UTC)


def play(recipe):
    with connection.cursor() as cursor:
        cursor.execute(recipe.replace("%", "%%"))


@pytest.fixture
def owner():
    """A schedule that was made before the months of the recipe."""
    row = Schedule(name="s", kind="every", every=timedelta(days=1), task="tests.app.tasks.noop")
    row.created_at = row.effective_from = DECEMBER - timedelta(days=100)
    Schedule._base_manager.bulk_create([row])
    return Schedule._base_manager.get(name="s")


def outcome(owner, due_at):
    schedule = ledger.load_schedules([owner.pk])[owner.pk]
    run = RunRow.of(schedule, due_at, status="succeeded", fence="1.x", worker="w", finished_at=due_at)
    return Outcome(run, schedule)


def partition_of(run):
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM django_delayq_run WHERE id = %s", [run.pk])
        return cursor.fetchone()[0]


def test_the_unique_key_goes_on_deciding_outcomes_across_partitions(owner):
    before, within = outcome(owner, DECEMBER - timedelta(days=40)), outcome(owner, DECEMBER)
    assert ledger.record([before]) == [Won.YES]
    play(RECIPES[0])
    assert ledger.record([within]) == [Won.YES]
    late = [outcome(owner, item.run.due_at) for item in (before, within)]
    for item in late:
        item.run.worker = item.run.fence = "other"
    assert ledger.record(late) == [Won.LOST, Won.LOST]
    assert [partition_of(run) for run in Run.objects.order_by("due_at")] == [
        "django_delayq_run_rest", "django_delayq_run_2026_12",
    ]  # fmt: skip
    begun = ledger.load_runs([before.run.pk])[before.run.pk]
    assert begun.status == "succeeded"


def test_a_worker_works_on_partitions_and_retention_prunes_them(owner, broker, settings):
    play(RECIPES[0])
    mirror.sync(broker, [owner.pk])
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))  # its run() would close this connection
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    worker.slots.start()
    wait_until(lambda: worker.round() >= 0 and Run.objects.filter(status="succeeded").exists(), what="an outcome")
    worker.slots.stop(1)
    newest = Run.objects.get(status="succeeded")
    assert partition_of(newest) in ("django_delayq_run_rest", "django_delayq_run_2026_12")
    ScheduleState.objects.filter(pk=owner.pk).update(last_due_at=newest.due_at)
    old = outcome(owner, newest.due_at - timedelta(days=60))
    insert_run(old.run, "default")
    settings.DELAYQ = {**settings.DELAYQ, "HISTORY_DAYS": 30}
    gone = [row.pk for batch in ledger.find_prunable(datetime.now(UTC)) for row in ledger.prune(batch.rows).rows]
    assert old.run.pk in gone
    assert newest.pk not in gone


def test_what_was_dropped_with_its_month_is_not_run_again(owner):
    play(RECIPES[0])
    due_at = DECEMBER
    assert ledger.record([outcome(owner, due_at), outcome(owner, due_at + timedelta(days=40))]) == [Won.YES, Won.YES]
    play(RECIPES[1])
    assert [run.due_at for run in Run.objects.all()] == [due_at + timedelta(days=40)]
    assert ledger.record([outcome(owner, due_at)]) == [Won.LOST]
    with pytest.raises(InvalidBackfill, match="pruned up to 2027-01-01"):
        orders.plan_backfill(owner, due_at - timedelta(days=1), due_at)
