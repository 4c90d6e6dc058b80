"""How often the database is asked does not grow with the rows: in sweeps, rebuild, syncs, ledger and admin."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_delayq import ledger, sync
from django_delayq.index import web
from django_delayq.ledger import Outcome, Won
from django_delayq.models import Run, Schedule, ScheduleState, Tombstone
from django_delayq.recurrence.point import utcnow
from django_delayq.sources import declared
from django_delayq.sync import after_commit
from tests.app import tasks
from tests.integration.admin_pages import LIST, RUNS, make_job
from tests.support import OTHER_DAILY_CRON, YEARLY_CRON

pytestmark = pytest.mark.django_db(transaction=True)
FEW, MANY = 10, 300
#: How many statements more are well, where one for each row were MANY: two for another page, and SQLite takes a
#: statement's values in parts, of some 40 rows.
ALLOWED = 2 + {"sqlite": 3 * MANY // 20}.get(connection.vendor, 0)


def make(count):
    """Bring the number of schedules up to this, with all of them mirrored; return the new ones."""
    names = [f"s{number}" for number in range(Schedule.objects.count(), count)]
    task = {"task": "tests.app.tasks.noop", "kind": "cron", "cron": YEARLY_CRON}
    rows = Schedule.objects.bulk_create([Schedule(name=name, **task) for name in names])
    while web.ask(sync.sweep_delta):
        pass
    return rows


def more(prepare, work, many=MANY):
    """Return how many statements more the work takes for many rows than for FEW."""
    counts = []
    for number in (FEW, many):
        prepare(number)
        with CaptureQueriesContext(connection) as captured:
            work()
        counts.append(len(captured))
    assert counts[0], "nothing was asked: nothing was tested"
    print(f"{counts} statements, at last:", *(query["sql"][:300] for query in captured.captured_queries[-9:]), sep="\n")
    return counts[1] - counts[0]


EDITS = [
    ("in bulk", sync.sweep_delta, lambda _: Schedule.objects.update(cron=OTHER_DAILY_CRON)),
    # no two at one moment
    ("one by one", sync.sweep_delta, lambda _: Schedule._base_manager.update(generation=F("generation") + F("pk"))),
    ("by SQL", sync.sweep_fully, lambda count: Schedule._base_manager.update(jitter=timedelta(seconds=count))),
]


@pytest.mark.parametrize(("sweep", "edit"), [row[1:] for row in EDITS], ids=[row[0] for row in EDITS])
def test_the_sweep_after_edits(built, monkeypatch, sweep, edit):
    monkeypatch.setattr(after_commit, "MOST_AT_ONCE", 0)  # what is edited at once is more than the edit itself sees to

    def prepare(count):
        make(count)
        edit(count)

    assert more(prepare, lambda: sweep(built)) <= ALLOWED
    assert not Schedule.objects.unmirrored().exists()


def test_a_bulk_deletion(built):
    """SQLite writes its tombstones, too, in parts."""
    assert more(make, lambda: Schedule.objects.all().delete()) <= ALLOWED
    assert not Tombstone.objects.exists()


@pytest.mark.parametrize("lost", ["nothing", "states", "next points"])
def test_a_rebuild(built, lost):
    def flush(count):
        make(count)
        if lost == "states":
            ScheduleState.objects.all().delete()
        elif lost == "next points":
            ScheduleState.objects.update(next_due_at=None)
        built.purge()
        sync.check_layout(built)

    assert more(flush, lambda: sync.rebuild(built, built.list_shards())) <= ALLOWED
    assert built.read_stats(built.list_shards()[:1])[0].members == MANY


def test_a_full_sweep_where_nothing_differs(built):
    assert more(make, lambda: sync.sweep_fully(built)) <= 0


def test_a_sync_of_declared_schedules_where_nothing_differs(built, code):
    def declare(count):
        code.says("".join(f"periodic('0 0 1 1 *', name='d{number}')(noop)\n" for number in range(count)))
        declared.sync()

    assert more(declare, declared.sync, many=100) <= 0  # each is inserted by itself


@pytest.mark.parametrize("stand", ["new", "begun"])
def test_the_recording_of_points(built, stand):
    outcomes = []

    def prepare(count):
        make(count)
        now = utcnow()
        values = {"claimed_at": now, "started_at": now}
        outcomes[:] = [
            Outcome(Run.build_for(row, now, status="running", **values), row) for row in Schedule.objects.order_by("pk")
        ]
        if stand == "begun":
            ledger.start(outcomes)
            for outcome in outcomes:
                outcome.seen = ledger.get_version(outcome.run)
        for outcome in outcomes:
            outcome.run.status = "succeeded"

    def record():
        assert ledger.record(outcomes) == [Won.YES] * len(outcomes)

    assert more(prepare, record) <= ALLOWED
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}


@pytest.mark.parametrize("page", [LIST, RUNS, f"{RUNS}?origin__exact=job", f"{RUNS}failures/"])
def test_a_page_of_the_admin(built, boss, page):
    def fill(count):
        now = utcnow()
        values = {"status": "failed", "claimed_at": now, "started_at": now, "finished_at": now}
        new = make(count)
        reasons = ("x" * (number % 30) for number in range(MANY))  # as many groups of failures
        Run.objects.bulk_create([Run.build_for(row, now, reason=next(reasons), **values) for row in new])
        for _ in new[:100]:
            make_job()
        tasks.add.using(run_after=timedelta(hours=1)).enqueue_many([((1,), {})] * len(new[:100]))

    def look():
        assert boss.get(page).status_code == 200

    assert more(fill, look) <= 0
