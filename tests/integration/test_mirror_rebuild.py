"""The rebuild of flushed shards: what comes back, by which way, and what a flush in its middle leaves."""

import sys
from datetime import timedelta

import pytest
from django.db import connection

from django_delayq import mirror
from django_delayq.fields import utcnow
from django_delayq.mirror import compare, pages
from django_delayq.models import Condition, Origin, Run, Schedule, ScheduleState, Status, Tombstone
from django_delayq.timing import from_ms, to_ms
from tests.integration.mirroring import absent, flush_at, mirrored, schedule, view
from tests.support import YEARLY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
rebuilding = sys.modules["django_delayq.mirror.rebuild"]


@pytest.fixture
def worked_out(monkeypatch):
    """The keys of the schedules that a rebuild works out, instead of putting them back as they were."""
    real, pks = rebuilding.compare, []

    def noting(broker, homes, *, flushed=False, **kwargs):
        pks.extend(homes if flushed else ())
        return real(broker, homes, flushed=flushed, **kwargs)

    monkeypatch.setattr(rebuilding, "compare", noting)
    return pks


def test_a_flushed_shard_is_rebuilt_once(built, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    built.purge()
    assert mirror.rebuild(built, built.shards())
    assert all(mirrored(built, row) for row in rows)
    epochs = built.epochs(built.shards())
    assert all(epoch and not epoch.startswith("building:") for epoch in epochs)
    assert not mirror.rebuild(built, built.shards())
    assert built.epochs(built.shards()) == epochs


def test_a_rebuild_restarts_at_the_first_missing_point(built):
    row = schedule()
    point = make_due(built, row)
    built.purge()
    mirror.rebuild(built, built.shards())
    assert view(built, row).point_ms == to_ms(point)


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [(rebuilding, "write_wanted", 1), (rebuilding, "write_wanted", 2), (compare, "write_wanted", 1)],
)
def test_a_flush_in_the_middle_of_a_rebuild_leaves_no_shard_marked_as_built(built, monkeypatch, module, name, call):
    monkeypatch.setattr(pages, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    Schedule._base_manager.filter(pk=rows[1].pk).update(synced_generation=0)
    built.purge()
    count = flush_at(monkeypatch, module, built, name, call)
    assert not mirror.rebuild(built, built.shards())
    assert count == [call], "a rebuild that was overtaken stops"
    assert built.epochs(built.shards()) == [None, None]
    assert mirror.rebuild(built, built.shards())
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
    assert mirror.rebuild(built, built.shards())
    assert written == [sorted(row.pk for row in rows[3:]), [row.pk for row in rows[:2]], [rows[2].pk]]
    assert all(mirrored(built, row) for row in rows)


def test_a_rebuild_whose_worker_died_is_begun_anew_when_its_mark_has_ended(built, monkeypatch):
    rows = [schedule(f"s{n}") for n in range(3)]
    built.purge()
    asked = []
    with pytest.raises(KeyboardInterrupt):
        mirror.rebuild(built, built.shards(), go_on=lambda: asked.append(1) or len(asked) < 2 or die())
    assert not mirror.rebuild(built, built.shards()), "its mark still stands"
    assert mirror.unbuilt(built) == built.shards()
    epochs = [f"{{{built.config.prefix}:{shard}}}:epoch" for shard in built.shards()]
    assert all(0 < built.client.pttl(epoch) <= rebuilding.TTL_MS for epoch in epochs)
    for epoch in epochs:  # its time is over
        built.client.delete(epoch)
    assert mirror.rebuild(built, built.shards())
    assert all(mirrored(built, row) for row in rows)
    assert mirror.unbuilt(built) == []


def die():
    raise KeyboardInterrupt


# -- Note [What was mirrored goes back as it was]

YEARLY = {"cron": YEARLY_CRON}
KINDS = [
    ("cron", YEARLY),
    ("cron in a zone", {"cron": "30 2 * * *", "timezone": "Europe/Riga"}),
    ("interval", {"kind": "every", "cron": "", "every": timedelta(hours=7)}),
    ("single point", {"kind": "once", "cron": "", "at": utcnow() + timedelta(days=3)}),
    ("with jitter", {**YEARLY, "jitter": timedelta(minutes=30)}),
    ("in another queue", {**YEARLY, "queue": "mail", "jitter": timedelta(minutes=30)}),
    ("with an end", {**YEARLY, "max_runs": 3}),
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
    assert mirror.rebuild(built, built.shards())
    assert worked_out == []
    assert view(built, row) == before
    assert mirror.full_sweep(built).lines == []


def by_sql(table, column, value, **where):
    ((name, key),) = where.items()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {name} = %s", [value, key])  # noqa: S608


def unsynced(row):
    by_sql(Schedule._meta.db_table, "synced_generation", 0, id=row.pk)


def stateless(row):
    ScheduleState.objects.filter(pk=row.pk).delete()


def begun(row):
    point = ScheduleState.objects.get(pk=row.pk).next_due_at
    Run.objects.create(schedule=row, due_at=point, generation=1, origin=Origin.DUE, status=Status.RUNNING)


def begun_before(row):
    point = row.effective_from + timedelta(milliseconds=1)
    Run.objects.create(schedule=row, due_at=point, generation=1, origin=Origin.DUE, status=Status.RETRYING)


def owed(row):
    """A point of before the last edit."""
    point = row.effective_from - timedelta(milliseconds=5)
    Schedule._base_manager.filter(pk=row.pk).update(created_at=point - timedelta(days=1))
    ScheduleState.objects.filter(pk=row.pk).update(next_due_at=from_ms(to_ms(point)))


def decided(row):
    """A state that contradicts itself: restored in parts, say."""
    state = ScheduleState.objects.get(pk=row.pk)
    ScheduleState.objects.filter(pk=row.pk).update(last_due_at=state.next_due_at)


def parked(row):
    by_sql(Schedule._meta.db_table, "cron", "no cron", id=row.pk)
    mirror.note_parked([row.pk])


def once_parked(row):
    """Its definition was mended by hand since, say."""
    ScheduleState.objects.filter(pk=row.pk).update(condition=Condition.PARKED)


def moved(row):
    by_sql(Schedule._meta.db_table, "queue", "mail", id=row.pk)


def renamed(row):
    by_sql(Schedule._meta.db_table, "name", "other", id=row.pk)


def apart_from_its_chain(row):
    """The end of a run moves the next point, and is not written where the next point is."""
    Schedule._base_manager.filter(pk=row.pk).update(
        kind="every", cron="", every=timedelta(days=9), every_from="finish", overlap="allow"
    )


def disabled(row):
    Schedule._base_manager.filter(pk=row.pk).update(enabled=False)


STATES = (
    unsynced,
    stateless,
    begun,
    begun_before,
    owed,
    decided,
    parked,
    once_parked,
    moved,
    renamed,
    apart_from_its_chain,
    disabled,
)


@pytest.mark.parametrize("change", STATES)
def test_whatever_else_is_worked_out_and_is_then_as_a_sweep_wants_it(built, worked_out, change):
    other = schedule("beside it", **YEARLY)
    row = schedule(**YEARLY, jitter=timedelta(minutes=30))
    change(row)
    built.purge()
    assert mirror.rebuild(built, built.shards())
    assert worked_out == [row.pk]
    assert mirrored(built, other)
    assert mirror.full_sweep(built).lines == []


def test_a_schedule_without_a_point_is_not_put_back(built, worked_out):
    rows = [schedule(change.__name__, **YEARLY) for change in (parked, disabled)]
    parked(rows[0])
    disabled(rows[1])
    assert ScheduleState.objects.get(pk=rows[0].pk).condition == Condition.PARKED
    built.purge()
    assert mirror.rebuild(built, built.shards())
    assert all(absent(built, row) for row in rows)


def test_what_sql_has_moved_waits_in_one_place_only(built):
    row = schedule(**YEARLY)
    moved(row)
    place = built.shard_of(f"s{row.pk}", "mail")
    built.drop([place])
    assert mirror.rebuild(built, [place])  # only that shard was lost; the entry still stands where it was
    standing = [queue for queue in ("default", "mail") if not absent(built, row, queue)]
    assert standing == ["mail"]
    assert not Tombstone.objects.exists()


def test_another_time_by_sql_is_found_by_the_next_sweep_as_without_a_flush(built):
    row = schedule(**YEARLY)
    by_sql(Schedule._meta.db_table, "cron", f"0 1 {YEARLY_CRON[4:]}", id=row.pk)
    built.purge()
    assert mirror.rebuild(built, built.shards())
    (line,) = mirror.full_sweep(built).lines
    assert "edited past Django" in line
    assert mirrored(built, row)


def test_a_row_that_was_deleted_and_brought_back_by_sql_stays_after_a_rebuild(built):
    row = schedule(**YEARLY)
    Tombstone.add([(row.pk, row.queue, row.generation)], using="default")
    built.purge()
    assert mirror.rebuild(built, built.shards())
    mirror.delta_sweep(built)
    assert not Tombstone.objects.exists()
    assert mirrored(built, row)
