"""The fast path of the mirror: however a definition is written, Redis follows after the commit, or the save does not
care. What it missed is the sweeps' business.
"""

import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.conf import settings
from django.core import serializers
from django.db import transaction
from django.test import override_settings

from django_delayq import mirror, orders
from django_delayq.broker import web
from django_delayq.mirror import fast
from django_delayq.models import Schedule, Status, Tombstone
from django_delayq.timing import from_ms
from tests.integration.mirroring import absent, attempts, blackhole, mirrored, schedule, view, visitors
from tests.support import count_keys, make_due

pytestmark = pytest.mark.django_db(transaction=True)


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
    assert broker.stats(broker.shards()[:1])[0].members == 1


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


def test_a_move_during_a_run_does_not_start_the_point_a_second_time(broker):
    """Claimed in one queue, edited to another: the first holder still runs."""
    row = schedule()
    make_due(broker, row)
    place = broker.shard_of(f"s{row.pk}", "default")
    assert len(broker.claim(place, limit=1, lease_ms=30_000, request=1).entries) == 1
    Schedule.objects.update(queue="mail")
    mirror.delta_sweep(broker)
    target = broker.shard_of(f"s{row.pk}", "mail")
    assert broker.claim(target, limit=1, lease_ms=30_000, request=1).entries == ()


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


def test_mirror_false_touches_no_redis(broker):
    config = {**settings.DELAYQ, "MIRROR": False}
    caches = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    with override_settings(DELAYQ=config, CACHES=caches):
        row = schedule()
        row.pause()
        Schedule.objects.update(cron="5 * * * *")
        run = orders.run_now(row)
        row.delete()
    assert run.status == Status.QUEUED
    assert not Tombstone.objects.exists()
    assert count_keys(broker) == 0


# -- what the fast path may not do: fail, or wait


@contextmanager
def redis_at(url):
    cache = {"BACKEND": settings.CACHES["default"]["BACKEND"], "LOCATION": url}  # one server, whatever the suite has
    with override_settings(CACHES={**settings.CACHES, "default": cache}):
        yield


@pytest.mark.parametrize("kind", ["stopped", "blackholed"])
def test_a_save_succeeds_at_once_without_redis_and_is_made_up_for(broker, kind, web_timeout, caplog, monkeypatch):
    monkeypatch.setattr(web, "BREAKER_SECONDS", 600)  # however long the machine takes for what follows
    monkeypatch.setattr(web, "TIMEOUT_SECONDS", web_timeout)
    server, url = blackhole()
    if kind == "stopped":
        server.close()
    with redis_at(url):
        tried = attempts(monkeypatch)
        row = schedule()
        assert tried == [(web.TIMEOUT_SECONDS, web.TIMEOUT_SECONDS)]
        assert web.TIMEOUT_SECONDS <= 0.5
        assert kind == "stopped" or visitors(server) > 0
        row.refresh_from_db()
        assert row.generation != row.synced_generation
        assert list(Schedule.objects.unmirrored()) == [row]
        assert "mirrored" in caplog.text
        row.pause()
        row.resume()
        schedule("other").delete()
        assert kind == "stopped" or visitors(server) == 0, "the circuit breaker is open: nobody waits again"
    server.close()
    mirror.delta_sweep(broker)
    assert mirrored(broker, row)
    assert not Schedule.objects.unmirrored().exists()


def test_the_circuit_breaker_closes_by_itself(broker, monkeypatch):
    server, url = blackhole()
    server.close()
    with redis_at(url):
        schedule()
        monkeypatch.setattr(web, "_broker", broker)
        schedule("too early")
        assert broker.stats(broker.shards()[:1])[0].members == 0
        monkeypatch.setattr(web, "_broken_until", time.monotonic() - 0.01)
        assert mirrored(broker, schedule("later"))
