"""An index of another number of shards or of another release: who waits for whom, who refuses; nothing is lost."""

import json

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from django_delayq import actions, conf, sync
from django_delayq.index import Broker, EntryDefinition, Shard
from django_delayq.models import Run
from django_delayq.sync import layout, sweep
from django_delayq.sync.layout import OtherLayout, OutdatedRelease, PendingMigrations
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.integration.mirroring import absent, mirrored, schedule, stored
from tests.integration.probing import beat
from tests.support import hold_upkeep, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
FORMER = {"layout": conf.LAYOUT, "shards": {"default": 1, "mail": 1}}
AFTER = 4


@pytest.fixture
def rows(noted):
    """Schedules, mirrored in one shard."""
    made = [schedule(f"s{n}") for n in range(12)]
    assert all(mirrored(noted, row) for row in made)
    return made


@pytest.fixture
def changed(rows, settings):
    """A broker by whose settings there are other shards."""
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": AFTER}
    made = Broker(timeout_seconds=5, worker="new")
    yield made
    made.close()


def refused(broker):
    """Say for what a worker waits, and that it has changed nothing."""
    before = broker.read_layout(), broker.read_stats([Shard("default", 0)])[0].members
    with pytest.raises(OtherLayout) as caught:
        sync.take_layout(broker)
    assert (broker.read_layout(), broker.read_stats([Shard("default", 0)])[0].members) == before
    return str(caught.value)


@pytest.mark.parametrize("after", [3, 1])
def test_without_other_workers_the_index_is_built_anew_and_nothing_is_left_of_the_former_one(rows, settings, after):
    order = actions.run_now(rows[0])
    for count in (2, after):
        settings.DELAYQ = {**settings.DELAYQ, "SHARDS": count}
        built = Broker(timeout_seconds=5)
        sync.take_layout(built)
        assert sweep.read_last(built) is None, "a full sweep is due"
        assert sync.rebuild(built, built.list_shards())
        assert all(mirrored(built, row) for row in rows)
        assert (
            sum(stats.members for stats in built.read_stats([Shard("default", n) for n in range(4)])) == len(rows) + 1
        )
        assert sync.sweep_fully(built).lines == []
    run_burst()
    assert Run.objects.get(pk=order.pk).status == "succeeded"


@pytest.mark.parametrize(
    "details",
    [FORMER, {**FORMER, "layout": conf.LAYOUT + 1, "shards": {}}, {"queues": ["default"]}, "garbage", "[]"],
)
def test_a_live_worker_of_another_layout_is_waited_for_by_its_name(broker, changed, details):
    beat(broker, details)
    text = refused(changed)
    assert "'default' has 1 shards in Redis but 4" in text and "have ended: test. Restart" in text
    broker.remove_heartbeat()
    sync.take_layout(changed)


@pytest.mark.parametrize(
    ("details", "ago_seconds"),
    [
        (FORMER, 91),
        ({**FORMER, "shards": {"default": AFTER, "mail": AFTER}}, 0),
        ({**FORMER, "shards": {"bulk": 1}}, 0),
    ],
)
def test_the_dead_and_who_works_alike_or_on_other_queues_are_not_waited_for(broker, changed, details, ago_seconds):
    beat(broker, details, ago_seconds)
    sync.take_layout(changed)
    assert stored(changed)["shards"]["default"] == AFTER


def test_leases_of_a_killed_worker_are_waited_for_so_that_no_point_is_run_beside_its_holder(broker, changed, rows):
    make_due(broker, rows[0])
    (entry,) = broker.claim(Shard("default", 0), limit=1, lease_ms=60_000, request=1).entries
    assert "leases of workers that are gone have ended, 1 of them" in refused(changed)
    broker.client.zadd(broker._build_keys(Shard("default", 0))["due"], {entry.member: broker.read_now_ms() - 1})
    sync.take_layout(changed)
    run_burst()
    assert rows[0].runs.get().status == "succeeded"


def test_a_worker_that_begins_in_the_moment_of_the_switch_is_seen(broker, changed, rows, monkeypatch):
    """It says that it lives, and looks at the layout then: before it was written that somebody switches."""
    write = changed.write_note

    def begins(name, value):
        beat(broker, FORMER)
        write(name, value)

    monkeypatch.setattr(changed, "write_note", begins)
    assert "have ended: test." in refused(changed)
    sync.check_layout(broker)
    assert all(mirrored(broker, row) for row in rows)


def test_a_worker_before_whose_first_heartbeat_the_index_was_switched_does_not_begin(
    broker, changed, settings, monkeypatch
):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 1}
    heartbeat = Broker.write_heartbeat

    def late(self, *args):
        sync.take_layout(changed)
        heartbeat(self, *args)

    monkeypatch.setattr(Broker, "write_heartbeat", late)
    with pytest.raises(OtherLayout):
        run_burst()
    assert broker.read_workers() == {}


def test_an_interrupted_switch_keeps_all_out_until_the_next_one_ends_it(broker, changed, rows, monkeypatch):
    monkeypatch.setattr(changed, "drop", lambda shards: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sync.take_layout(changed)
    for each in (broker, changed):
        with pytest.raises(OtherLayout, match="rebuilding the index in Redis with another layout"):
            sync.check_layout(each)
    monkeypatch.undo()
    sync.take_layout(changed)
    sync.rebuild(changed, changed.list_shards())
    assert all(mirrored(changed, row) for row in rows)


def test_one_of_two_that_wait_switches_and_the_other_finds_it_done(broker, changed, monkeypatch):
    hold_upkeep(broker)
    assert "another process has ended its upkeep, or its switch" in refused(changed)
    broker.client.delete(f"{broker.config.prefix}:upkeep")
    take = changed.take_upkeep

    def faster():
        monkeypatch.undo()
        sync.take_layout(changed)
        sync.rebuild(changed, changed.list_shards())
        monkeypatch.setattr(changed, "write_note", None)  # no worker sees it change once more
        return take()

    monkeypatch.setattr(changed, "take_upkeep", faster)
    sync.take_layout(changed)
    assert None not in changed.read_epochs(changed.list_shards()), "the index of the other one stands"


# -- who only mirrors, or did not hear of it


def test_what_a_web_process_of_another_number_saves_is_left_to_the_next_delta_sweep(broker, rows, settings, caplog):
    former = settings.DELAYQ
    settings.DELAYQ = {**former, "SHARDS": AFTER}
    before = broker.read_layout()
    late = schedule("late")
    rows[0].cron = "30 4 * * *"
    rows[0].save()
    rows[1].delete()
    settings.DELAYQ = former
    assert not any(record.levelname in ("WARNING", "ERROR") for record in caplog.records)
    assert broker.read_layout() == before
    assert absent(broker, late) and not mirrored(broker, rows[0])
    sync.sweep_delta(broker)
    assert mirrored(broker, late) and mirrored(broker, rows[0]) and absent(broker, rows[1])


def test_what_such_a_process_writes_in_the_moment_of_the_switch_is_dropped_and_runs_once(broker, changed, rows):
    row = next(row for row in rows if changed.get_shard(f"s{row.pk}", "default").number)
    sync.take_layout(changed)
    make_due(changed, row)
    sync.sweep_now(changed)  # none is due that would remove it
    broker.upsert(Shard("default", 0), [EntryDefinition(f"s{row.pk}", 1, 1, 1)])  # it counts one shard
    run_burst()
    assert row.runs.get().status == "succeeded"
    assert absent(broker, row)


def test_a_worker_that_finds_an_index_of_another_number_drains(broker, changed, rows, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 1}
    worker = Worker(WorkerOptions(queues=("default",)))
    sync.take_layout(changed)
    sync.rebuild(changed, changed.list_shards())
    make_due(changed, next(row for row in rows if not changed.get_shard(f"s{row.pk}", "default").number))
    assert not worker.claims.claim(Shard("default", 0), 1)
    assert isinstance(worker.failure, OtherLayout) and worker.stopping
    assert changed.count_leases(changed.list_shards()) == 0, "what it had claimed is handed back"


def test_a_sweep_of_another_number_removes_nothing_of_the_new_index(broker, changed, rows):
    """A command that began before the switch, and is slow."""

    def meanwhile(checked):
        sync.take_layout(changed)
        return sync.rebuild(changed, changed.list_shards())

    with pytest.raises(OtherLayout):
        sync.sweep_fully(broker, go_on=meanwhile)
    assert all(mirrored(changed, row) for row in rows)


# -- releases


@pytest.fixture
def applied():
    """Call it to note a migration as run; taken back at the end."""
    recorder, names = MigrationRecorder(connection), []

    def note(name):
        names.append(name)
        recorder.record_applied("django_delayq", name)

    yield note
    for name in names:
        recorder.record_unapplied("django_delayq", name)


def test_the_layout_is_the_highest_that_a_migration_of_this_release_names():
    raised = [int(found[1]) for name in layout._list_shipped() if (found := layout.RAISES.search(name))]
    assert max(raised, default=1) == conf.LAYOUT


def test_a_release_of_a_lower_layout_than_the_database_is_refused_and_makes_running_workers_drain(
    broker, rows, applied
):
    worker = Worker(WorkerOptions(queues=("default",)))
    assert worker.upkeep.run_round()
    applied("9998_layout_2")
    applied("9999_another_of_the_same_layout")
    worker.upkeep._due["beat"] = 0.0
    assert not worker.upkeep.run_round()
    assert isinstance(worker.failure, OutdatedRelease) and worker.stopping
    with pytest.raises(OutdatedRelease, match="has the layout 2 of a later release, but this release has the layout 1"):
        sync.take_layout(broker)
    broker.purge()
    with pytest.raises(OutdatedRelease):
        sync.check_layout(broker)
    assert broker.read_layout() is None, "after a flush it takes no prefix"


def test_a_release_of_a_higher_layout_waits_for_migrate_then_for_the_others_then_builds_the_index(
    broker, rows, applied, monkeypatch
):
    beat(broker, FORMER)
    monkeypatch.setattr(conf, "LAYOUT", 2)
    new = Broker(timeout_seconds=5, worker="new")
    with pytest.raises(PendingMigrations, match=r"layout is 2, .*layout is 1\. Run: manage.py migrate"):
        sync.take_layout(new)
    applied("9998_layout_2")
    assert "has the layout 1, but this release has the layout 2. Waiting until these" in refused(new)
    broker.remove_heartbeat()
    sync.take_layout(new)
    assert new.read_epochs(new.list_shards()) == [None, None], "also with the same shards"
    assert stored(new)["version"] == 2


def test_migrations_of_the_same_layout_are_waited_for_too(broker, monkeypatch):
    monkeypatch.setattr(layout, "_list_shipped", lambda: frozenset({"9999_a_column"}))
    with pytest.raises(PendingMigrations):
        sync.take_layout(broker)


def test_the_layout_of_a_later_release_is_known_whatever_else_stands_there(broker, rows):
    later = {"database": sync.read_fingerprint(), "version": conf.LAYOUT + 1, "shards": "in another form"}
    broker.write_note("layout", json.dumps(later))
    late = schedule("late")
    assert absent(broker, late), "of its form nothing is known"
    sync.take_layout(broker)
    assert stored(broker)["version"] == conf.LAYOUT, "for the database was migrated back"
