"""The mirror, fast path and sweeps: whatever happens to the database or to Redis, they agree again."""

import json
import os
import socket
import time
from datetime import timedelta

import pytest
from django.core import serializers
from django.db import connection, transaction
from django.utils import timezone

from django_delayq import mirror
from django_delayq.mirror import fast, sweep
from django_delayq.models import Run, Schedule, ScheduleState, Status, Tombstone
from django_delayq.timing import from_ms, to_ms
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)


def schedule(name="s", **values):
    values = {"task": "tests.app.tasks.noop", "kind": "cron", "cron": "0 * * * *", **values}
    return Schedule.objects.create(name=name, **values)


def view(broker, row, queue=None):
    return broker.views([(f"s{row.pk}", queue or row.queue)])[0]


def mirrored(broker, row):
    """Say whether Redis holds exactly what the database wants of a schedule that is not due."""
    row = Schedule.objects.get(pk=row.pk)
    seen = view(broker, row)
    rule_point = row.recurrence.next_after(row.effective_from)
    return (seen.point_ms, seen.generation, seen.leased) == (to_ms(rule_point), row.generation, False)


def absent(broker, row, queue=None):
    return view(broker, row, queue) == type(view(broker, row))(None, None, None, False)


def set_due(broker, row, part, value):
    place = broker.place_of(f"s{row.pk}", row.queue)
    name = f"{{{broker.config.prefix}:{place}}}:{part}"
    if part == "due":
        broker.client.zadd(name, {f"s{row.pk}": value})
    else:
        broker.client.hset(name, f"s{row.pk}", value)


@pytest.fixture
def built(broker):
    """A prefix that was built once, as in any running project."""
    mirror.check_layout(broker)
    for place in broker.places():
        broker.swap_epoch(place, None, "built")
    return broker


# -- the fast path


def test_saves_are_mirrored_after_the_commit(broker):
    row = schedule()
    assert mirrored(broker, row)
    row.cron = "30 * * * *"
    row.save()
    assert mirrored(broker, row)
    row.refresh_from_db()
    assert row.synced_generation == row.generation


WRITES = [
    ("save", lambda row: (setattr(row, "cron", "5 * * * *"), row.save())),
    ("save update_fields", lambda row: (setattr(row, "cron", "5 * * * *"), row.save(update_fields=["cron"]))),
    ("update", lambda row: Schedule.objects.filter(pk=row.pk).update(cron="5 * * * *")),
    ("bulk_update", lambda row: (setattr(row, "cron", "5 * * * *"), Schedule.objects.bulk_update([row], ["cron"]))),
    ("update_or_create", lambda row: Schedule.objects.update_or_create(name="s", defaults={"cron": "5 * * * *"})),
]


@pytest.mark.parametrize("write", [row[1] for row in WRITES], ids=[row[0] for row in WRITES])
def test_every_way_to_write_moves_the_point_and_the_generation(broker, write):
    row = schedule()
    before = (row.generation, row.effective_from)
    write(row)
    row = Schedule.objects.get(pk=row.pk)
    assert row.generation > before[0]
    assert row.effective_from > before[1]
    assert mirrored(broker, row)
    assert from_ms(view(broker, row).point_ms).minute == 5


def test_bulk_create_is_mirrored(broker):
    new = [Schedule(name=f"s{n}", task="tests.app.tasks.noop", kind="cron", cron="0 * * * *") for n in range(3)]
    rows = Schedule.objects.bulk_create(new)
    assert all(mirrored(broker, row) for row in rows)


def test_more_rows_than_a_request_may_wait_for_are_left_to_the_sweep(broker, monkeypatch):
    monkeypatch.setattr(fast, "MOST_AT_ONCE", 2)
    new = [Schedule(name=f"s{n}", task="tests.app.tasks.noop", kind="cron", cron="0 * * * *") for n in range(3)]
    rows = Schedule.objects.bulk_create(new)
    assert all(absent(broker, row) for row in rows)
    assert mirror.delta_sweep(broker) == 3
    assert all(mirrored(broker, row) for row in rows)


@pytest.mark.parametrize("delete", [lambda row: row.delete(), lambda row: Schedule.objects.filter(pk=row.pk).delete()])
def test_deletions_are_mirrored(broker, delete):
    row = schedule()
    pk = row.pk
    delete(row)
    row.pk = pk
    assert absent(broker, row)
    assert not Tombstone.objects.exists()


def test_loaddata_begins_a_new_version_that_is_mirrored(broker):
    row = schedule()
    dump = serializers.serialize("json", [row])
    old = row.generation
    time.sleep(0.002)  # generations are ms
    for item in serializers.deserialize("json", dump):
        item.save()
    row.refresh_from_db()
    assert row.generation > old
    assert mirrored(broker, row)
    row.delete()
    for item in serializers.deserialize("json", dump):
        item.save()
    assert mirrored(broker, Schedule.objects.get())


def test_a_rollback_mirrors_nothing(broker):
    row = schedule()
    before = view(broker, row)
    with pytest.raises(RuntimeError), transaction.atomic():
        row.cron = "5 * * * *"
        row.save()
        schedule("other")
        Schedule.objects.update(cron="6 * * * *")
        row.delete()
        raise RuntimeError("rolled back")
    assert view(broker, Schedule.objects.get()) == before
    assert not Tombstone.objects.exists()
    assert broker.stats(broker.places()[0]).members == 1


def test_only_the_outermost_commit_mirrors(broker):
    row = schedule()
    before = view(broker, row)
    with transaction.atomic():
        with transaction.atomic():
            Schedule.objects.update(cron="5 * * * *")
        with pytest.raises(RuntimeError), transaction.atomic():
            Schedule.objects.update(cron="6 * * * *")
            raise RuntimeError("only this savepoint")
        assert view(broker, row) == before
    assert mirrored(broker, row)
    assert Schedule.objects.get().cron == "5 * * * *"


MOVES = [
    ("save", lambda row: (setattr(row, "queue", "mail"), row.save())),
    ("update", lambda row: Schedule.objects.filter(pk=row.pk).update(queue="mail")),
    ("bulk_update", lambda row: (setattr(row, "queue", "mail"), Schedule.objects.bulk_update([row], ["queue"]))),
]


@pytest.mark.parametrize("move", [row[1] for row in MOVES], ids=[row[0] for row in MOVES])
def test_a_move_to_another_queue_leaves_the_old_place(broker, move):
    row = schedule()
    move(row)
    mirror.delta_sweep(broker)
    assert mirrored(broker, row)
    assert absent(broker, row, "default")
    assert not Tombstone.objects.exists()
    Schedule.objects.update(queue="default")
    mirror.delta_sweep(broker)
    assert mirrored(broker, row)
    assert absent(broker, row, "mail")


STAYS = [
    ("save", lambda row: row.save()),
    ("update", lambda row: Schedule.objects.filter(pk=row.pk).update(queue="default", description="x")),
    ("bulk_update", lambda row: Schedule.objects.bulk_update([row], ["queue", "description"])),
]


@pytest.mark.parametrize("write", [row[1] for row in STAYS], ids=[row[0] for row in STAYS])
def test_writing_the_queue_it_is_in_already_keeps_it_there(broker, write):
    row = schedule()
    write(row)
    mirror.delta_sweep(broker)
    assert mirrored(broker, row)


def test_a_move_during_a_run_does_not_start_the_point_a_second_time(built):
    """Claimed in one queue, edited to another: the first holder still runs."""
    row = schedule()
    make_due(built, row)
    place = built.place_of(f"s{row.pk}", "default")
    assert len(built.claim(place, limit=1, lease_ms=30_000, request=1).entries) == 1
    Schedule.objects.update(queue="mail")
    mirror.delta_sweep(built)
    target = built.place_of(f"s{row.pk}", "mail")
    assert built.claim(target, limit=1, lease_ms=30_000, request=1).entries == ()


def test_pause_and_resume_leave_and_return_after_now(broker):
    row = schedule(kind="every", cron="", every=timedelta(seconds=30))
    row.pause("holidays")
    assert absent(broker, row)
    row.refresh_from_db()
    assert (row.enabled, row.pause_reason, row.synced_generation) == (False, "holidays", row.generation)
    row.resume()
    assert mirrored(broker, row)
    assert view(broker, row).point_ms > broker.now_ms() - 1000
    assert (Schedule.objects.get().enabled, Schedule.objects.get().pause_reason) == (True, "")


def test_mirror_false_touches_no_redis(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    settings.CACHES = {**settings.CACHES, "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    row = schedule()
    row.pause()
    Schedule.objects.update(cron="5 * * * *")
    run = mirror.run_now(row)
    row.delete()
    assert run.status == Status.QUEUED
    assert not Tombstone.objects.exists()
    assert broker.count_keys() == 0


# -- what the fast path may not do: fail, or wait


@pytest.fixture
def unmirrored_save(settings):
    """Save under another Redis URL; return the seconds it took and the row."""

    def save(url):
        settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": url}}
        began = time.monotonic()
        row = schedule()
        return time.monotonic() - began, Schedule.objects.get(pk=row.pk)

    return save


def blackhole():
    server = socket.create_server(("127.0.0.1", 0))
    return server, f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.parametrize("kind", ["stopped", "blackholed"])
def test_a_save_succeeds_at_once_without_redis_and_is_made_up_for(broker, unmirrored_save, settings, kind, caplog):
    server, url = blackhole()
    if kind == "stopped":
        server.close()
    seconds, row = unmirrored_save(url)
    assert seconds < 1
    assert row.generation != row.synced_generation
    assert list(Schedule.objects.unmirrored()) == [row]
    assert "Not yet mirrored" in caplog.text
    began = time.monotonic()
    row.pause()
    row.resume()
    schedule("other").delete()
    assert time.monotonic() - began < 0.3, "the circuit breaker is open: nobody waits again"
    server.close()
    url = os.environ["DELAYQ_REDIS_URL"]
    settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": url}}
    mirror.delta_sweep(broker)
    assert mirrored(broker, row)
    assert not Schedule.objects.unmirrored().exists()


def test_the_circuit_breaker_closes_by_itself(broker, unmirrored_save, settings, monkeypatch):
    server, url = blackhole()
    server.close()
    unmirrored_save(url)
    monkeypatch.setattr(fast, "_broker", broker)
    schedule("too early")
    assert broker.stats(broker.places()[0]).members == 0
    monkeypatch.setattr(fast, "_broken_until", time.monotonic() - 0.01)
    row = schedule("later")
    assert mirrored(broker, row)


# -- sweeps


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
    ("point ahead", lambda b, row: set_due(b, row, "point", to_ms(timezone.now()) + 10**9), "rewound"),
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
    ghosts = ["s999", "r999", "junk", f"s{kept.pk}x", f"S{kept.pk}"]
    built.enqueue(place, [(name, later, later, "") for name in ghosts])
    built.enqueue(built.place_of(f"s{kept.pk}", "mail"), [(f"s{kept.pk}", later, later, "")])
    built.enqueue(place, [("jABC", later, later, "{}")])
    dry = mirror.full_sweep(built, dry_run=True)
    report = mirror.full_sweep(built)
    assert report.lines == dry.lines
    assert len(report.lines) == 6
    assert set().union(*built.scan(place)) == {f"s{kept.pk}", "jABC"}
    assert absent(built, kept, "mail")


def test_a_queued_run_is_put_back(built):
    run = mirror.run_now(schedule())
    place = built.place_of(f"r{run.pk}", "default")
    built.client.delete(f"{{{built.config.prefix}:{place}}}:due")
    Run.objects.update(created_at=timezone.now() - timedelta(hours=1))
    assert mirror.full_sweep(built)
    assert built.views([(f"r{run.pk}", "default")])[0].point_ms == to_ms(run.due_at)
    assert not mirror.full_sweep(built)


def test_an_order_that_missed_the_fast_path_comes_with_the_delta_sweep(built):
    run = mirror.run_now(schedule())
    built.purge()
    mirror.delta_sweep(built)
    assert built.views([(f"r{run.pk}", "default")])[0].score_ms is None, "still on the fast path"
    Run.objects.update(created_at=timezone.now() - timedelta(seconds=5))
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


@pytest.mark.parametrize(("name", "call"), [("write_wanted", 1), ("write_wanted", 2), ("_put_back_runs", 1)])
def test_a_flush_in_the_middle_of_a_rebuild_leaves_no_shard_marked_as_built(built, monkeypatch, name, call):
    monkeypatch.setattr(sweep, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    built.purge()
    flush_at(monkeypatch, built, name, call)
    assert not mirror.rebuild(built, built.places())
    assert built.epochs(built.places()) == [None, None]
    assert mirror.rebuild(built, built.places())
    assert all(mirrored(built, row) for row in rows)


@pytest.mark.parametrize(("name", "call"), [("write_wanted", 2), ("_remove_ghosts", 1), ("_put_back_runs", 1)])
def test_a_flush_in_the_middle_of_a_sweep_leaves_no_shard_marked_as_built(built, monkeypatch, name, call):
    monkeypatch.setattr(sweep, "PAGE", 2)
    rows = [schedule(f"s{n}") for n in range(5)]
    for row in rows:
        set_due(built, row, "gen", 5)
    flush_at(monkeypatch, built, name, call)
    mirror.full_sweep(built)
    marked = [epoch is not None and not epoch.startswith("building:") for epoch in built.epochs(built.places())]
    assert marked == [False, False] or all(mirrored(built, row) for row in rows)


def test_the_report_of_a_run_tells_json(built):
    """The layout is JSON that names the database and the shards."""
    stored = json.loads(built.layout())
    assert stored["shards"] == {"default": 1, "mail": 1}
    assert stored["database"] == mirror.fingerprint()
