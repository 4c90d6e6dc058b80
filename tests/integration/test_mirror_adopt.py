"""A database that replaces another, or comes back from a backup; and workers of the other one that still run."""

from datetime import timedelta

import pytest
from django.core.management import call_command

from django_delayq import ledger, sync
from django_delayq.index import Broker, Settlement
from django_delayq.models import Run, Schedule, ScheduleState, Tombstone
from django_delayq.recurrence import to_ms
from django_delayq.recurrence.point import utcnow
from django_delayq.sync import layout, pages, sweep, write
from django_delayq.sync.layout import ForeignLayout
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.integration.mirroring import absent, mirrored, schedule, view
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = (Schedule, ScheduleState, Run, Tombstone)


def become_a_copy(monkeypatch):
    """From here on this process works on a copy of the database in another place, as far as anybody can tell."""
    (key,) = layout._known
    monkeypatch.setitem(layout._known, key, "another place")


def adopt_elsewhere(built, monkeypatch):
    """Let a copy of the database take the prefix over."""
    with monkeypatch.context() as elsewhere:
        become_a_copy(elsewhere)
        sync.adopt(built)


def dump():
    return {model: list(model._base_manager.values()) for model in TABLES}


def restore(rows):
    """Put the tables back as they were, past Django's signals."""
    for model in reversed(TABLES):
        model._base_manager.all()._raw_delete(ledger.get_database())
    for model, values in rows.items():
        model._base_manager.bulk_create([model(**value) for value in values])


# -- a backup in its old place


@pytest.fixture
def restored(built):
    """Edits, runs, creations and deletions that the restored database knows nothing of."""
    schedule("kept")
    edited, moved, ran, switched, deleted = (
        schedule(name) for name in ("edited", "moved", "ran", "switched", "deleted")
    )
    point = make_due(built, ran)
    rows = dump()
    Schedule.objects.filter(pk=edited.pk).update(cron="30 1 * * *")
    Schedule.objects.filter(pk=moved.pk).update(queue="mail")
    Schedule.objects.filter(pk=switched.pk).update(enabled=False)
    Schedule.objects.get(pk=deleted.pk).delete()
    schedule("later")
    run_burst()
    assert Run.objects.get().due_at == point
    restore(rows)
    return {name: Schedule.objects.get(name=name) for name in ("kept", "edited", "moved", "switched", "deleted")} | {
        "ran": Schedule.objects.get(name="ran"), "point": point,
    }  # fmt: skip


@pytest.mark.parametrize("command", [("--adopt",), ()], ids=["adopted", "synchronised"])
def test_a_restored_backup_is_what_redis_follows(built, restored, command):
    call_command("delayq_sync", *command, verbosity=0)
    for name in ("kept", "edited", "moved", "switched", "deleted"):
        assert mirrored(built, restored[name]), name
    assert view(built, restored["ran"]).point_ms == to_ms(restored["point"]), "rewound to what has no outcome any more"
    assert absent(built, restored["moved"], "mail")
    names = set().union(*(page for place in built.list_shards() for page in built.scan(place)))
    assert names == {f"s{row.pk}" for row in Schedule.objects.all()}
    assert sync.sweep_fully(built).lines == []
    assert sync.count_differences(built).total == 0


def test_an_edit_of_a_restored_row_is_mirrored_by_the_delta_sweep(built):
    """Redis knows a newer edit: the script refuses, nothing is marked as mirrored, and the sweep finds out why."""
    row = schedule()
    ahead = row.generation + 10**10
    built.client.hset(f"{{{built.config.prefix}:default:0}}:gen", f"s{row.pk}", ahead)
    row.cron = "30 * * * *"
    row.save()
    row.refresh_from_db()
    assert row.synced_generation != row.generation
    assert view(built, row).generation == ahead
    sync.sweep_delta(built)
    assert mirrored(built, row)
    row.refresh_from_db()
    assert row.synced_generation == row.generation
    assert sync.sweep_delta(built) == 0


def test_a_late_write_is_not_marked_as_mirrored(built, monkeypatch):
    """Another process edits and mirrors between our read and our script."""
    row = schedule()
    Schedule._base_manager.update(synced_generation=0)
    read = write.read_wanted

    def overtaken(pks):
        found = read(pks)
        monkeypatch.undo()
        Schedule.objects.update(cron="30 * * * *")
        return found

    monkeypatch.setattr(write, "read_wanted", overtaken)
    assert sync.sync(built, [row.pk]) == [row.pk]
    row.refresh_from_db()
    assert row.synced_generation == row.generation, "as the other one noted it"
    assert mirrored(built, row)


# -- a copy in a new place


def test_a_copy_takes_the_prefix_over_and_what_the_other_holds_is_void(built, monkeypatch):
    row = schedule()
    point = make_due(built, row)
    place = built.get_shard(f"s{row.pk}", "default")
    claim = built.claim(place, limit=1, lease_ms=30_000, request=1)
    become_a_copy(monkeypatch)
    with pytest.raises(ForeignLayout):
        sync.check_layout(built)
    before = built.read_epochs(built.list_shards())
    assert sync.adopt(built).done
    assert all(new != old for new, old in zip(built.read_epochs(built.list_shards()), before, strict=True))
    settlement = Settlement(
        f"s{row.pk}", claim.holder, "next", 10**13, row.generation, to_ms(utcnow() + timedelta(days=9))
    )
    assert built.settle(place, [settlement]).replies == [0]
    assert built.renew(place, [(f"s{row.pk}", claim.holder)], lease_ms=1000) == {f"s{row.pk}"}
    assert view(built, row).point_ms == to_ms(point)
    sync.check_layout(built)


def test_the_sweeps_of_the_other_database_change_nothing_any_more(built, monkeypatch):
    row, ghost = schedule("a"), schedule("b")
    adopt_elsewhere(built, monkeypatch)
    Tombstone.add([(ghost.pk, "default", ghost.generation)], using="default")
    Schedule._base_manager.filter(pk=row.pk).update(synced_generation=0, generation=to_ms(utcnow()) + 10**6)
    before = [view(built, row), view(built, ghost)]
    for call in (sync.sweep_delta, sync.sweep_if_due):
        with pytest.raises(ForeignLayout):
            call(built)
    assert [view(built, row), view(built, ghost)] == before


def test_a_sweep_of_the_other_database_that_is_under_way_ends(built, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    for n in range(4):
        schedule(f"s{n}")
    built.forget_sweep()

    def meanwhile(checked):
        adopt_elsewhere(built, monkeypatch)
        return built.keep_upkeep()

    assert built.take_upkeep() == 0
    report = sync.sweep_if_due(built, go_on=meanwhile)
    assert (report.checked, report.done) == (1, False)
    assert sweep.read_last(built).database == "another place"


def test_a_worker_of_the_other_database_does_not_trust_a_shard_from_which_it_never_claimed(built, monkeypatch):
    row = schedule()
    point = make_due(built, row)
    own = Worker(WorkerOptions(queues=("default", "mail"), threads=1))
    adopt_elsewhere(built, monkeypatch)
    assert not own.claims.claim(built.get_shard(f"s{row.pk}", "default"), 1)
    assert isinstance(own.failure, ForeignLayout)
    seen = view(built, row)
    assert (seen.point_ms, seen.leased) == (to_ms(point), False)
    own.broker.close()


def test_a_worker_of_the_other_database_that_has_nothing_to_do_ends_when_it_would_renew_its_lease(built, monkeypatch):
    own = Worker(WorkerOptions(queues=("default", "mail"), threads=1))
    assert own.upkeep.run_round() and own.upkeep.holds
    adopt_elsewhere(built, monkeypatch)
    own.upkeep._due["lease"] = 0.0
    assert own.upkeep.run_round() and not own.upkeep.holds
    assert not own.upkeep.run_round(), "it looks before it would take it anew"
    assert isinstance(own.failure, ForeignLayout) and own.stopping
    own.broker.close()


# -- who may claim a prefix


def test_a_web_process_never_claims_a_prefix_that_nobody_has(broker):
    """After a flush it could be the first, of whatever database; then the workers would refuse to go on."""
    row = schedule()
    assert mirrored(broker, row)
    row.delete()
    assert broker.read_layout() is None
    sync.check_layout(Broker(timeout_seconds=5))
    assert broker.read_layout() is not None
