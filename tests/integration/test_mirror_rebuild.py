"""The rebuild of flushed shards: what comes back, by which way, and what a flush in its middle leaves."""

import sys
from datetime import timedelta

import pytest
from django.db.models import F

from django_delayq import sync
from django_delayq.models import Condition, Origin, Run, Schedule, ScheduleState, Status, Tombstone
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.recurrence.point import utcnow
from django_delayq.sync import compare, pages
from tests.integration.mirroring import absent, flush_at, mirrored, schedule, view
from tests.support import YEARLY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
rebuilding = sys.modules["django_delayq.sync.rebuild"]


@pytest.fixture
def worked_out(monkeypatch):
    """The keys of the schedules that a rebuild works out, instead of putting them back as they were."""
    real, pks = rebuilding.compare, []

    def noting(broker, queues):
        pks.extend(queues)
        return real(broker, queues)

    monkeypatch.setattr(rebuilding, "compare", noting)
    return pks


def test_a_flushed_shard_is_rebuilt_once(built, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    built.purge()
    assert sync.rebuild(built, built.list_shards())
    assert all(mirrored(built, row) for row in rows)
    epochs = built.read_epochs(built.list_shards())
    assert all(epoch and not epoch.startswith("building:") for epoch in epochs)
    assert not sync.rebuild(built, built.list_shards())
    assert built.read_epochs(built.list_shards()) == epochs


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [(rebuilding, "write_wanted", 1), (rebuilding, "write_wanted", 2), (compare, "write_wanted", 1)],
)
def test_a_flush_in_the_middle_of_a_rebuild_leaves_no_shard_marked_as_built(built, monkeypatch, module, name, call):
    monkeypatch.setattr(pages, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    write_raw(rows[1], synced_generation=0)
    built.purge()
    count = flush_at(monkeypatch, module, built, name, call)
    assert not sync.rebuild(built, built.list_shards())
    assert count == [call], "a rebuild that was overtaken stops"
    assert built.read_epochs(built.list_shards()) == [None, None]
    assert sync.rebuild(built, built.list_shards())
    assert all(mirrored(built, row) for row in rows)


def test_what_is_due_first_goes_back_first_and_everything_once(built, monkeypatch):
    monkeypatch.setattr(rebuilding, "FIRST", 2)
    monkeypatch.setattr(pages, "PAGE", 2)
    start = utcnow() + timedelta(hours=1)
    rows = [
        schedule(f"s{n}", kind="every", cron="", every=timedelta(hours=1), start_at=start - timedelta(minutes=n))
        for n in range(5)
    ]
    real, written = rebuilding.write_wanted, []
    monkeypatch.setattr(
        rebuilding, "write_wanted", lambda b, wanted: written.append([item.pk for item in wanted]) or real(b, wanted)
    )
    built.purge()
    assert sync.rebuild(built, built.list_shards())
    assert written == [sorted(row.pk for row in rows[3:]), [row.pk for row in rows[:2]], [rows[2].pk]]
    assert all(mirrored(built, row) for row in rows)


def test_a_rebuild_whose_worker_died_is_begun_anew_when_its_mark_has_ended(built, monkeypatch):
    rows = [schedule(f"s{n}") for n in range(3)]
    built.purge()
    died = iter([True])
    with pytest.raises(StopIteration):
        sync.rebuild(built, built.list_shards(), go_on=died.__next__)
    assert not sync.rebuild(built, built.list_shards()), "its mark still stands"
    assert sync.find_unbuilt(built) == built.list_shards()
    epochs = [f"{{{built.config.prefix}:{shard}}}:epoch" for shard in built.list_shards()]
    assert all(0 < built.client.pttl(epoch) <= rebuilding.TTL_MS for epoch in epochs)
    for epoch in epochs:  # its time is over
        built.client.delete(epoch)
    assert sync.rebuild(built, built.list_shards())
    assert all(mirrored(built, row) for row in rows)
    assert sync.find_unbuilt(built) == []


# -- Note [Stored points are not recomputed]

YEARLY = {"cron": YEARLY_CRON}
KINDS = [
    ("cron", YEARLY),
    ("interval", {"kind": "every", "cron": "", "every": timedelta(hours=7)}),
    ("single point", {"kind": "once", "cron": "", "at": utcnow() + timedelta(days=3)}),
    ("with jitter", {**YEARLY, "jitter": timedelta(minutes=30)}),
    ("in another queue", {**YEARLY, "queue": "mail", "jitter": timedelta(minutes=30)}),
]


@pytest.mark.parametrize("values", [row[1] for row in KINDS], ids=[row[0] for row in KINDS])
@pytest.mark.parametrize("has_run", [False, True])
def test_what_was_mirrored_goes_back_as_it_was(built, worked_out, values, has_run):
    row = schedule(**values)
    if has_run and row.kind != "once":
        make_due(built, row)
        run_burst()
        assert ScheduleState.objects.get(pk=row.pk).last_due_at, "a point is decided"
    before = view(built, row)
    assert before.point_ms > to_ms(utcnow())
    built.purge()
    assert sync.rebuild(built, built.list_shards())
    assert worked_out == []
    assert view(built, row) == before
    assert sync.sweep_fully(built).lines == []


def write_raw(row, **values):
    Schedule._base_manager.filter(pk=row.pk).update(**values)


def state_of(row):
    return ScheduleState.objects.filter(pk=row.pk)


def begin(row, point, status):
    Run.objects.create(schedule=row, due_at=point, generation=1, origin=Origin.DUE, status=status)


def owe(row):
    point = row.effective_from - timedelta(milliseconds=5)
    write_raw(row, created_at=point - timedelta(days=1))
    state_of(row).update(next_due_at=from_ms(to_ms(point)))


def broken(row):
    write_raw(row, cron="no cron")
    sync.read_wanted([row.pk])


FIXED_DELAY = {"kind": "every", "cron": "", "every": timedelta(days=9), "every_from": "finish", "overlap": "allow"}
STATES = [
    ("an edit is not mirrored", lambda row: write_raw(row, synced_generation=0)),
    ("no state", lambda row: state_of(row).delete()),
    ("begun", lambda row: begin(row, state_of(row).get().next_due_at, Status.RUNNING)),
    ("an earlier one begun", lambda row: begin(row, row.effective_from + timedelta(milliseconds=1), Status.RETRYING)),
    ("a point of before the last edit", owe),
    ("restored in parts", lambda row: state_of(row).update(last_due_at=F("next_due_at"))),
    ("broken", broken),
    ("broken and mended by hand since", lambda row: state_of(row).update(condition=Condition.BROKEN)),
    ("moved", lambda row: write_raw(row, queue="mail")),
    ("renamed", lambda row: write_raw(row, name="other")),
    ("moved by the end of a run, which is not written where the next point is",
     lambda row: write_raw(row, **FIXED_DELAY)),
    ("disabled", lambda row: write_raw(row, enabled=False)),
]  # fmt: skip


@pytest.mark.parametrize("change", [row[1] for row in STATES], ids=[row[0] for row in STATES])
def test_whatever_else_is_worked_out_and_is_then_as_a_sweep_wants_it(built, worked_out, change):
    other = schedule("beside it", **YEARLY)
    row = schedule(**YEARLY, jitter=timedelta(minutes=30))
    change(row)
    built.purge()
    assert sync.rebuild(built, built.list_shards())
    assert worked_out == [row.pk]
    assert mirrored(built, other)
    assert sync.sweep_fully(built).lines == []


def test_what_sql_has_moved_waits_in_one_place_only(built):
    row = schedule(**YEARLY)
    write_raw(row, queue="mail")
    place = built.get_shard(f"s{row.pk}", "mail")
    built.drop([place])
    assert sync.rebuild(built, [place])  # only that shard was lost; the entry still stands where it was
    standing = [queue for queue in ("default", "mail") if not absent(built, row, queue)]
    assert standing == ["mail"]
    assert not Tombstone.objects.exists()


def test_another_time_by_sql_is_found_by_the_next_sweep_as_without_a_flush(built):
    row = schedule(**YEARLY)
    write_raw(row, cron=f"0 1 {YEARLY_CRON[4:]}")
    built.purge()
    assert sync.rebuild(built, built.list_shards())
    (line,) = sync.sweep_fully(built).lines
    assert "SQL had edited it" in line
    assert mirrored(built, row)


def test_a_row_that_was_deleted_and_brought_back_by_sql_stays_after_a_rebuild(built):
    row = schedule(**YEARLY)
    Tombstone.add([(row.pk, row.queue, row.generation)], using="default")
    built.purge()
    assert sync.rebuild(built, built.list_shards())
    sync.sweep_delta(built)
    assert not Tombstone.objects.exists()
    assert mirrored(built, row)
