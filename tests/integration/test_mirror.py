"""The fast path of the mirror: however a definition is written, Redis follows after the commit, or the save does not
care. What it missed is the sweeps' business.
"""

import time
from contextlib import contextmanager

import pytest
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.test import override_settings

from django_delayq import actions, sync
from django_delayq.index import web
from django_delayq.models import Schedule, Status, Tombstone
from django_delayq.sync import after_commit
from tests.integration.mirroring import absent, attempts, blackhole, mirrored, schedule, view, visitors
from tests.support import count_keys

pytestmark = pytest.mark.django_db(transaction=True)


def test_more_rows_than_a_request_may_wait_for_are_left_to_the_sweep(broker, monkeypatch):
    monkeypatch.setattr(after_commit, "MOST_AT_ONCE", 2)
    new = [Schedule(name=f"s{n}", task="tests.app.tasks.noop", kind="cron", cron="0 * * * *") for n in range(5)]
    assert all(mirrored(broker, row) for row in Schedule.objects.bulk_create(new[:2]))
    rows = Schedule.objects.bulk_create(new[2:])
    assert all(absent(broker, row) for row in rows)
    assert sync.sweep_delta(broker) == 3
    assert all(mirrored(broker, row) for row in rows)


def test_a_rollback_mirrors_nothing(broker):
    row = schedule()
    before = view(broker, row)
    with pytest.raises(RuntimeError), transaction.atomic():
        row.cron = "5 * * * *"
        row.save()
        schedule("other")
        Schedule.objects.update(cron="6 * * * *")
        row.delete()
        Schedule.objects.all().delete()
        raise RuntimeError("rolled back")
    assert view(broker, Schedule.objects.get()) == before
    assert not Tombstone.objects.exists()
    assert broker.read_stats(broker.list_shards()[:1])[0].members == 1


def test_a_move_to_another_queue_leaves_the_old_place(broker):
    row = schedule()
    row.queue = "mail"
    row.save()
    sync.sweep_delta(broker)
    assert mirrored(broker, row)
    assert absent(broker, row, "default")
    assert not Tombstone.objects.exists()


STAYS = [
    ("save", lambda row: row.save()),
    ("update", lambda row: Schedule.objects.filter(pk=row.pk).update(queue="default", description="x")),
    ("update by an expression", lambda row: Schedule.objects.update(queue=F("queue"))),
    ("bulk_update", lambda row: Schedule.objects.bulk_update([row], ["queue", "description"])),
]


@pytest.mark.parametrize("write", [row[1] for row in STAYS], ids=[row[0] for row in STAYS])
def test_writing_the_queue_it_is_in_already_keeps_it_there(broker, write):
    row = schedule()
    write(row)
    assert not Tombstone.objects.exists()
    sync.sweep_delta(broker)
    assert mirrored(broker, row)


def test_mirror_false_touches_no_redis(broker):
    config = {**settings.DELAYQ, "MIRROR": False}
    caches = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    with override_settings(DELAYQ=config, CACHES=caches):
        row = schedule()
        row.pause()
        Schedule.objects.update(cron="5 * * * *")
        run = actions.run_now(row)
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
        assert "An edit is not mirrored yet; a worker will do it within seconds." in caplog.text
        row.pause()
        row.resume()
        schedule("other").delete()
        assert kind == "stopped" or visitors(server) == 0, "the circuit breaker is open: nobody waits again"
    server.close()
    sync.sweep_delta(broker)
    assert mirrored(broker, row)
    assert not Schedule.objects.unmirrored().exists()


def test_the_circuit_breaker_closes_by_itself(broker, monkeypatch):
    server, url = blackhole()
    server.close()
    with redis_at(url):
        schedule()
        monkeypatch.setattr(web, "_broker", broker)
        schedule("too early")
        assert broker.read_stats(broker.list_shards()[:1])[0].members == 0
        monkeypatch.setattr(web, "_broken_until", time.monotonic() - 0.01)
        assert mirrored(broker, schedule("later"))
