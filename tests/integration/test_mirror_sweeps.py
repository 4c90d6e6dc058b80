"""The sweeps: whatever happened to Redis or behind Django's back, both sides agree afterwards; the report says why."""

from datetime import timedelta

import pytest

from django_delayq import actions, sync
from django_delayq.index import EntryDefinition
from django_delayq.models import Run, Schedule, ScheduleState, Status
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.recurrence.point import utcnow
from django_delayq.sync import compare, pages, sweep
from tests.integration.mirroring import absent, flush_at, lose, mirrored, schedule, set_due, view
from tests.support import YEARLY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def test_one_row_that_cannot_be_mirrored_does_not_hold_up_the_others(built):
    first, last = schedule("a"), schedule("b")
    Schedule._base_manager.filter(pk=first.pk).update(jitter=timedelta(days=365 * 100_000))
    Schedule._base_manager.update(synced_generation=0)
    lose(built, last)
    sync.sweep_fully(built)
    assert mirrored(built, last)


def test_a_point_that_waits_for_its_claimer_or_its_retry_is_no_difference(built):
    due, retrying, edited, leased, stepped = (
        schedule(name, max_attempts=3) for name in ("due", "retrying", "edited", "leased", "stepped")
    )
    for row in (due, retrying, edited, leased):
        make_due(built, row)
    place = built.list_shards()[0]
    for row in (retrying, stepped):  # for the second one the server's clock stepped back: its point is to come again
        point = from_ms(view(built, row).point_ms)
        Run.build_for(row, point, status=Status.RETRYING, attempt=1, fence="f", worker="w").save()
        set_due(built, row, "attempts", "1")
        set_due(built, row, "due", built.read_now_ms() + 3_600_000)
    edited.refresh_from_db()
    edited.cron = YEARLY_CRON
    edited.save()
    before = {row.name: view(built, row) for row in (due, retrying, edited, stepped)}
    set_due(built, leased, "lease", "f")
    set_due(built, leased, "due", built.read_now_ms() + 30_000)
    assert sync.sweep_fully(built).lines == []
    assert {row.name: view(built, row) for row in (due, retrying, edited, stepped)} == before
    assert built.read_stats([place])[0].leased == 1


def test_what_its_holder_is_about_to_drop_is_no_difference(built):
    """Recorded, then switched off, and not settled yet."""
    row = schedule()
    point = make_due(built, row)
    place = built.get_shard(f"s{row.pk}", "default")
    assert len(built.claim(place, limit=1, lease_ms=30_000, request=1).entries) == 1
    ScheduleState.objects.update(last_due_at=point)
    Schedule.objects.update(enabled=False)
    assert sync.sweep_fully(built).lines == []
    assert view(built, row).leased


@pytest.mark.parametrize("manager", ["objects", "_base_manager"])
def test_a_move_of_what_runs_waits_for_its_end_also_one_past_django(built, manager):
    row = schedule()
    make_due(built, row)
    place = built.get_shard(f"s{row.pk}", "default")
    assert len(built.claim(place, limit=1, lease_ms=30_000, request=1).entries) == 1
    getattr(Schedule, manager).update(queue="mail")
    assert sync.sweep_delta(built) == 0, "asking at once again would not end"
    assert absent(built, row, "mail")
    for _ in range(2):
        sync.sweep_fully(built)
        assert absent(built, row, "mail")
    assert Schedule.objects.unmirrored().exists()
    built.client.delete(f"{{{built.config.prefix}:{place}}}:lease")
    built.client.zadd(f"{{{built.config.prefix}:{place}}}:due", {f"s{row.pk}": 5})
    sync.sweep_delta(built)
    assert absent(built, row, "default")
    assert view(built, row, "mail").point_ms


def test_a_page_costs_a_fixed_number_of_queries(built, django_assert_num_queries):
    """Fields that are not read with the others would each be read row by row."""
    kinds = [{}, {"kind": "every", "cron": "", "every": timedelta(hours=1), "every_from": "finish", "max_runs": 9},
             {"kind": "once", "cron": "", "at": utcnow() + timedelta(days=1), "jitter": timedelta(minutes=1)},
             {"start_at": utcnow(), "overlap": "allow", "missed": "all", "grace": timedelta(minutes=1)}]  # fmt: skip
    for n in range(12):
        schedule(f"s{n}", **kinds[n % 4])
    sync.sweep_fully(built)
    with django_assert_num_queries(3):  # keys, definitions with their states, open rows
        assert next(sweep.sweep_pages(built)) == (12, [])


def test_ghosts_are_removed(built):
    kept = schedule()
    place, later = built.list_shards()[0], built.read_now_ms() + 10**6
    ghosts = ["s999", "r999", "litter", f"s{kept.pk}x", f"S{kept.pk}"]
    built.upsert(place, [EntryDefinition(name, 1, later, later) for name in ghosts])
    built.upsert(built.get_shard(f"s{kept.pk}", "mail"), [EntryDefinition(f"s{kept.pk}", 1, later, later)])
    dry = sync.sweep_fully(built, dry_run=True)
    report = sync.sweep_fully(built)
    assert report.lines == dry.lines
    assert len(report.lines) == 6
    assert set().union(*built.scan(place)) == {f"s{kept.pk}"}
    assert absent(built, kept, "mail")
    assert mirrored(built, kept)


def test_an_order_that_missed_the_fast_path_comes_however_many_wait_in_redis_before_it(built, monkeypatch):
    for module in (sweep, pages):
        monkeypatch.setattr(module, "PAGE", 2)
    row = schedule()
    made = [actions.run_now(row, now=utcnow() - timedelta(seconds=n)) for n in range(5)]
    last = f"r{made[-1].pk}"
    built.remove(built.get_shard(last, row.queue), [(last, 10**15, "")], gone=True)
    Run.objects.update(created_at=utcnow() - timedelta(seconds=5))
    sync.sweep_delta(built)
    assert built.read_views([(last, row.queue)])[0].point_ms == to_ms(made[-1].due_at)


@pytest.mark.parametrize("end", ["disabled", "deleted"])
def test_an_open_row_that_nobody_can_finish_any_more_is_closed(built, end):
    """A point waited for its retry, Redis was flushed, and the schedule ended before it came back."""
    row = schedule(max_attempts=3)
    run = Run.build_for(row, make_due(built, row), status=Status.RETRYING, attempt=1, fence="f", worker="w")
    run.save()
    built.purge()
    if end == "disabled":
        Schedule.objects.update(enabled=False)
    else:
        row.delete()
    sync.sweep_fully(built)
    run.refresh_from_db()
    assert run.status in (Status.FAILED, Status.LOST)


# -- a flush


ENDS = [
    ("paused", {"enabled": False}, ("skipped", "paused")),
    ("ended by its number of runs", {"max_runs": 0}, ("succeeded", "")),
    ("ended by its end", {"end_at": utcnow() - timedelta(days=3)}, ("succeeded", "")),
]


@pytest.mark.parametrize(("edit", "outcome"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_a_point_that_was_due_when_its_schedule_ended_is_not_lost_by_a_flush(built, edit, outcome):
    row = schedule()
    point = make_due(built, row)
    Schedule.objects.update(**edit)
    built.purge()
    run_burst()
    run = Run.objects.get(due_at=point)
    assert (run.status, run.reason) == outcome
    assert absent(built, row)
    assert sync.sweep_fully(built).lines == []
    assert sync.count_differences(built).total == 0


@pytest.mark.parametrize(("name", "call"), [("write_wanted", 2), ("remove_ghosts", 1), ("close_abandoned", 1)])
def test_a_flush_in_the_middle_of_a_sweep_leaves_no_shard_marked_as_built(built, monkeypatch, name, call):
    monkeypatch.setattr(pages, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    for row in rows:
        set_due(built, row, "gen", 5)
    calls = flush_at(monkeypatch, compare if name == "write_wanted" else sweep, built, name, call)
    sync.sweep_fully(built)
    assert calls[0] >= call
    marked = [
        epoch is not None and not epoch.startswith("building:") for epoch in built.read_epochs(built.list_shards())
    ]
    assert marked == [False, False] or all(mirrored(built, row) for row in rows)
