"""The sweeps: whatever happened to Redis or behind Django's back, both sides agree afterwards; the report says why."""

from datetime import timedelta

import pytest
from django.db import connection

from django_delayq import mirror
from django_delayq.fields import utcnow
from django_delayq.mirror import sweep
from django_delayq.models import Run, Schedule, ScheduleState, Status
from django_delayq.timing import to_ms
from tests.integration.mirroring import absent, mirrored, schedule, set_due, view
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def built(broker):
    """A prefix that was built once, as in any running project."""
    mirror.check_layout(broker)
    for place in broker.places():
        broker.swap_epoch(place, None, "built")
    return broker


def test_a_row_inserted_past_django_is_found_by_the_delta_sweep(built):
    row = schedule()
    names = [field.column for field in Schedule._meta.concrete_fields if field.column != "id"]
    picks = ["'raw'" if name == "name" else "0" if name == "synced_generation" else name for name in names]
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {Schedule._meta.db_table} ({', '.join(names)}) SELECT {', '.join(picks)} "  # noqa: S608
                       f"FROM {Schedule._meta.db_table}")  # fmt: skip
    raw = Schedule.objects.get(name="raw")
    assert absent(built, raw)
    assert mirror.delta_sweep(built) == 1
    assert mirrored(built, raw)
    assert mirrored(built, row)
    assert mirror.delta_sweep(built) == 0


def test_one_row_that_cannot_be_mirrored_does_not_hold_up_the_others(built):
    first, last = schedule("a"), schedule("b")
    Schedule._base_manager.filter(pk=first.pk).update(jitter=timedelta(days=365 * 100_000))
    Schedule._base_manager.update(synced_generation=0)
    built.remove(built.places()[0], [(f"s{last.pk}", 10**15, "")])
    mirror.full_sweep(built)
    assert mirrored(built, last)


DAMAGES = [
    ("nothing", lambda b, row: None, ""),
    ("entry lost", lambda b, row: b.remove(b.places()[0], [(f"s{row.pk}", 10**15, "")]), "added"),
    ("point is garbage", lambda b, row: set_due(b, row, "point", "garbage"), "repaired"),
    ("generation is garbage", lambda b, row: set_due(b, row, "gen", "garbage"), "repaired"),
    ("generation is endless", lambda b, row: set_due(b, row, "gen", "inf"), "repaired"),
    ("generation ahead", lambda b, row: set_due(b, row, "gen", row.generation + 10**9), "set back"),
    ("generation behind", lambda b, row: set_due(b, row, "gen", 5), "updated"),
    ("point ahead", lambda b, row: set_due(b, row, "point", to_ms(utcnow()) + 10**9), "rewound"),
    ("score far ahead", lambda b, row: set_due(b, row, "due", 9 * 10**15), ""),
    ("score endless", lambda b, row: set_due(b, row, "due", float("inf")), ""),
    ("score lost", lambda b, row: b.client.zrem(f"{{{b.config.prefix}:default:0}}:due", f"s{row.pk}"), "repaired"),
]


@pytest.mark.parametrize(("damage", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_a_full_sweep_mends_what_differs_says_so_and_finds_nothing_the_next_time(built, damage, word):
    row, other = schedule("a"), schedule("b")
    score = view(built, row).score_ms
    damage(built, row)
    damaged = view(built, row)
    dry = mirror.full_sweep(built, dry_run=True)
    assert view(built, row) == damaged, "a dry run changes nothing"
    report = mirror.full_sweep(built)
    assert report.lines == dry.lines
    assert report.checked == 2
    if word:
        assert len(report.lines) == 1
        assert report.lines[0].startswith(f"a: {word}")
    assert mirrored(built, row)
    assert mirrored(built, other)
    assert view(built, row).score_ms == score
    assert mirror.full_sweep(built).lines == []


def test_a_dry_run_writes_to_neither_side(broker):
    schedule()
    ScheduleState.objects.all().delete()
    Schedule._base_manager.update(synced_generation=0)
    broker.purge()
    before = list(Schedule.objects.values())
    report = mirror.full_sweep(broker, dry_run=True)
    assert len(report.lines) == 1
    assert broker.count_keys() == 0
    assert list(Schedule.objects.values()) == before
    assert not ScheduleState.objects.exists()


def test_ghosts_are_removed(built):
    kept = schedule()
    place, later = built.places()[0], built.now_ms() + 10**6
    ghosts = ["s999", "r999", "litter", f"s{kept.pk}x", f"S{kept.pk}"]
    built.enqueue(place, [(name, later, later, "") for name in ghosts])
    built.enqueue(place, [("jABC", later, later, "{}")])
    dry = mirror.full_sweep(built, dry_run=True)
    report = mirror.full_sweep(built)
    assert report.lines == dry.lines
    assert len(report.lines) == 5
    assert set().union(*built.scan(place)) == {f"s{kept.pk}", "jABC"}
    assert mirrored(built, kept)


def test_a_member_in_a_place_that_is_not_its_own_is_removed_there(built):
    row, later = schedule(), built.now_ms() + 10**6
    built.enqueue(built.place_of(f"s{row.pk}", "mail"), [(f"s{row.pk}", later, later, "")])
    assert mirror.full_sweep(built)
    assert absent(built, row, "mail")
    assert mirrored(built, row)


def test_a_queued_run_is_put_back(built):
    run = mirror.run_now(schedule())
    place = built.place_of(f"r{run.pk}", "default")
    built.client.zrem(f"{{{built.config.prefix}:{place}}}:due", f"r{run.pk}")
    Run.objects.update(created_at=utcnow() - timedelta(hours=1))
    assert mirror.full_sweep(built)
    assert built.views([(f"r{run.pk}", "default")])[0].point_ms == to_ms(run.due_at)
    assert not mirror.full_sweep(built)


def test_an_order_that_missed_the_fast_path_comes_with_the_delta_sweep(built):
    run = mirror.run_now(schedule())
    built.purge()
    mirror.delta_sweep(built)
    assert built.views([(f"r{run.pk}", "default")])[0].score_ms is None, "still on the fast path"
    Run.objects.update(created_at=utcnow() - timedelta(seconds=5))
    mirror.delta_sweep(built)
    assert built.views([(f"r{run.pk}", "default")])[0].score_ms == to_ms(run.due_at)


@pytest.mark.parametrize("end", ["disabled", "deleted"])
def test_an_open_row_that_nobody_can_finish_any_more_is_closed(built, end):
    """A point waited for its retry, Redis was flushed, and the schedule ended before it came back."""
    row = schedule(max_attempts=3)
    run = Run.objects.create(
        schedule_id=row.pk, schedule_name=row.name, task=row.task, queue=row.queue, generation=row.generation,
        due_at=make_due(built, row), status=Status.RETRYING, attempt=1, fence="f", worker="w",
    )  # fmt: skip
    built.purge()
    if end == "disabled":
        Schedule.objects.update(enabled=False)
    else:
        row.delete()
    mirror.full_sweep(built)
    run.refresh_from_db()
    assert run.status in (Status.FAILED, Status.LOST)


# -- a flush


def test_a_flushed_shard_is_rebuilt_once(built, monkeypatch):
    monkeypatch.setattr(sweep, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    built.purge()
    assert mirror.rebuild(built, built.places())
    assert all(mirrored(built, row) for row in rows)
    epochs = built.epochs(built.places())
    assert all(epoch and not epoch.startswith("building:") for epoch in epochs)
    assert not mirror.rebuild(built, built.places())
    assert built.epochs(built.places()) == epochs


def test_a_rebuild_restarts_at_the_first_missing_point(built):
    row = schedule()
    point = make_due(built, row)
    built.purge()
    mirror.rebuild(built, built.places())
    assert view(built, row).point_ms == to_ms(point)


def flush_at(monkeypatch, broker, name, call):
    """Flush when `name` of the sweep is called for the n-th time, before it does its work."""
    real, count = getattr(sweep, name), [0]

    def flushing(*args, **kwargs):
        count[0] += 1
        if count[0] == call:
            broker.purge()
        return real(*args, **kwargs)

    monkeypatch.setattr(sweep, name, flushing)
    return count


@pytest.mark.parametrize(("name", "call"), [("write_wanted", 1), ("write_wanted", 2), ("_open_runs", 1)])
def test_a_flush_in_the_middle_of_a_rebuild_leaves_no_shard_marked_as_built(built, monkeypatch, name, call):
    monkeypatch.setattr(sweep, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    built.purge()
    count = flush_at(monkeypatch, built, name, call)
    assert not mirror.rebuild(built, built.places())
    assert count == [call], "a rebuild that was overtaken stops"
    assert built.epochs(built.places()) == [None, None]
    assert mirror.rebuild(built, built.places())
    assert all(mirrored(built, row) for row in rows)


@pytest.mark.parametrize(("name", "call"), [("write_wanted", 2), ("_remove_ghosts", 1), ("_open_runs", 1)])
def test_a_flush_in_the_middle_of_a_sweep_leaves_no_shard_marked_as_built(built, monkeypatch, name, call):
    monkeypatch.setattr(sweep, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    for row in rows:
        set_due(built, row, "gen", 5)
    flush_at(monkeypatch, built, name, call)
    mirror.full_sweep(built)
    marked = [epoch is not None and not epoch.startswith("building:") for epoch in built.epochs(built.places())]
    assert marked == [False, False] or all(mirrored(built, row) for row in rows)
