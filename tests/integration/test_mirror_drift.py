"""Differences as a number: each fault of the mirror counts once, a sound mirror counts nothing; counting is cheap."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq import actions, ledger, sync
from django_delayq.index import EXACT, EntryDefinition, Shard
from django_delayq.models import Run, Schedule, ScheduleState, Tombstone
from django_delayq.recurrence import from_ms
from django_delayq.recurrence.point import utcnow
from tests.integration.mirroring import lose, schedule, set_due
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def built(noted):
    """A prefix that has just been swept, with entries of several kinds."""
    for n in range(3):
        schedule(f"s{n}")
    schedule("elsewhere", queue="mail")
    schedule("paused").pause()
    schedule("finished", max_runs=0)
    actions.run_now(Schedule.objects.get(name="s0"))
    return noted


def parts(differences):
    """Return what is not zero."""
    names = ("unmirrored", "tombstones", "missing", "ghosts", "torn", "unbuilt")
    return {name: value for name in names if (value := getattr(differences, name))}


def test_a_sound_mirror_has_no_differences_also_while_runs_come_and_go(built):
    assert parts(sync.count_differences(built)) == {}
    row = Schedule.objects.get(name="s1")
    make_due(built, row)
    assert sync.count_differences(built).total == 0
    run_burst()
    assert Run.objects.count() == 2
    assert sync.count_differences(built).total == 0


def add_ghost(broker, row):
    later = broker.read_now_ms() + 10**6
    broker.upsert(broker.list_shards()[0], [EntryDefinition("s999999", later, later, 0)])


FAULTS = [
    ("an entry is lost", lose, {"missing": 1}),
    ("a member without a row", add_ghost, {"ghosts": 1}),
    ("an edit is not mirrored, its entry missing",
     lambda b, r: (Schedule._base_manager.filter(pk=r.pk).update(synced_generation=0), lose(b, r)), {"unmirrored": 1}),
    ("a deletion is not mirrored",
     lambda b, r: (Tombstone.add([(999_999, "default", 1)], using="default"), add_ghost(b, r)), {"tombstones": 1}),
    ("an order is lost",
     lambda b, r: b.remove(b.list_shards()[0], [(f"r{Run.objects.get().pk}", EXACT, "")], gone=True), {"missing": 1}),
    ("a point is lost", lambda b, r: b.client.hdel(f"{{{b.config.prefix}:default:0}}:point", f"s{r.pk}"), {"torn": 1}),
    ("a generation is lost", lambda b, r: b.client.hdel(f"{{{b.config.prefix}:default:0}}:gen", f"s{r.pk}"),
     {"torn": 1}),
    ("a point without a member", lambda b, r: set_due(b, Schedule(pk=10**6, queue="default"), "point", 5), {"torn": 1}),
    ("a shard is empty and not built", lambda b, r: b.drop([Shard("mail", 0)]), {"missing": 1, "unbuilt": 1}),
    ("everything is flushed", lambda b, r: b.purge(), {"missing": 5, "unbuilt": 2}),
    ("a shard is being built",
     lambda b, r: b.client.set(f"{{{b.config.prefix}:mail:0}}:epoch", "building:x", px=60_000), {"unbuilt": 1}),
]  # fmt: skip


def test_what_is_too_much_to_count_is_not_called_missing(built):
    expected = sync.count_differences(built)
    assert sync.count_differences(built, most=expected.total + 5) == expected and not expected.capped
    built.purge()
    differences = sync.count_differences(built, most=1)
    assert (differences.missing, differences.ghosts, differences.capped) == (0, 0, True)


@pytest.mark.parametrize(("fault", "expected"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_each_fault_counts_once_and_a_sweep_ends_it(built, fault, expected):
    fault(built, Schedule.objects.get(name="s0"))
    differences = sync.count_differences(built)
    assert parts(differences) == expected
    assert differences.total == sum(expected.values())
    built.client.delete(f"{{{built.config.prefix}:mail:0}}:epoch")  # as a mark of a rebuild goes by itself
    sync.sweep_fully(built)
    assert sync.count_differences(built).total == 0


def test_it_tells_when_the_last_full_sweep_was(built):
    began = from_ms(built.read_now_ms())
    sync.sweep_now(built)
    differences = sync.count_differences(built)
    assert began <= differences.swept_at <= from_ms(built.read_now_ms())
    built.write_note("swept", json.dumps(["garbage", "", ""]))
    assert sync.count_differences(built).swept_at is None


def test_the_number_of_queries_and_commands_does_not_grow_with_the_schedules(built, django_assert_num_queries):
    sync.count_differences(built)
    few = commands(built)
    for n in range(30):
        schedule(f"more {n}")
    with django_assert_num_queries(2):
        sync.count_differences(built)
    assert commands(built) == few


def commands(broker):
    """Return how many commands a look costs, those inside scripts included.

    Sentinels and replicas ask the same server of their own accord, which only ever adds: so the least of some looks.
    """
    told = []
    for _ in range(5):
        before = broker.read_info("stats")[0]["total_commands_processed"]
        sync.count_differences(broker)
        told.append(broker.read_info("stats")[0]["total_commands_processed"] - before)
    return min(told)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="asks SQLite for its plan")
def test_the_counts_are_made_on_indexes(built):
    plans = [
        Schedule.objects.unmirrored().order_by().explain(),
        ScheduleState.objects.filter(next_due_at__gte=utcnow()).explain(),
    ]
    for plan, index in zip(plans, ("delayq_schedule_unmirrored", "delayq_state_next_due"), strict=True):
        assert index in plan
    with CaptureQueriesContext(connection) as asked:
        ledger.count_open_separate(10)
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {asked[0]['sql']}")
        plan = [row[3] for row in cursor.fetchall() if "django_delayq_run" in row[3]]
    assert len(plan) == 4 and all("COVERING INDEX delayq_run_status" in step for step in plan[:3])
    assert "INDEX delayq_run_open" in plan[3]


def test_orders_and_jobs_are_counted_beside_runs_of_chains(built):
    row = Schedule.objects.get(name="s0")
    for number, status in enumerate(("queued", "running", "retrying", "failed", "succeeded")):
        due_at = utcnow() + timedelta(seconds=number)
        Run.build_for(row, due_at, status=status, separate=True, origin="backfill").save()
        Run.build_for(row, due_at, status=status, separate=True, origin="job", queue="mail").save()
        if status != "queued":
            Run.build_for(row, due_at, status=status).save()
    before = Run.objects.filter(separate=True, status="queued").count() - 2
    assert ledger.count_open_separate(100) == (before + 6, False)
    assert ledger.count_open_separate(1)[1]


def test_more_open_rows_of_chains_than_are_counted_are_said_to_be_more(built):
    row = Schedule.objects.get(name="s0")
    for number, status in enumerate(("running", "retrying") * 2):
        Run.build_for(row, utcnow() + timedelta(seconds=number), status=status).save()
    assert ledger.count_open_separate(2)[1]
    assert ledger.count_open_separate(5) == (1, False), "the order that was there before"
