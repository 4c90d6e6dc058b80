"""What a worker's sweeping thread does for the mirror, and when."""

import json
import sys
import threading
import time

import pytest
from django.db import connections

from django_delayq import mirror
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.mirror import pages, sweep, swept
from django_delayq.models import Schedule
from django_delayq.worker import upkeep
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.integration.mirroring import absent, mirrored, schedule

pytestmark = pytest.mark.django_db(transaction=True)
rebuilding = sys.modules["django_delayq.mirror.rebuild"]


@pytest.fixture
def noted(broker):
    """A prefix that has just been swept."""
    mirror.check_layout(broker)
    assert mirror.sweep_if_due(broker).done
    return broker


def lose(broker, row):
    """Take an entry away, which only a full sweep finds."""
    broker.remove(broker.shard_of(f"s{row.pk}", row.queue), [(f"s{row.pk}", 10**15, "")])
    assert absent(broker, row)


@pytest.fixture
def running(monkeypatch):
    """Start workers in threads, whose sweeping threads look often; stop them at the end."""
    monkeypatch.setattr(upkeep, "HEARTBEAT_SECONDS", 0.2)
    workers = []

    def work(worker):
        try:
            worker.run()
        finally:
            connections.close_all()

    def start(**options):
        worker = Worker(WorkerOptions(queues=("default", "mail"), threads=1, **options))
        thread = threading.Thread(target=work, args=(worker,), daemon=True)
        thread.start()
        workers.append((worker, thread))
        return worker

    yield start
    for worker, thread in workers:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_a_worker_sweeps_at_its_start_where_nobody_has_for_long(broker, running):
    row = schedule()
    lose(broker, row)
    running()
    wait_until(lambda: mirrored(broker, row))
    wait_until(lambda: swept.read_last(broker) is not None)


def test_a_worker_that_starts_soon_after_a_sweep_makes_none(noted, running):
    row = schedule()
    lose(noted, row)
    before = noted.last_sweep()
    worker = running()
    wait_until(lambda: worker.options.name in noted.workers())
    beat = noted.workers()[worker.options.name][0]
    wait_until(lambda: noted.workers()[worker.options.name][0] > beat + 500)  # some looks later
    assert noted.last_sweep() == before
    assert absent(noted, row)


def test_a_server_that_was_replaced_is_noticed_although_no_command_failed(noted, running):
    row = schedule()
    running()
    wait_until(noted.workers)
    lose(noted, row)
    noted.note_sweep(json.dumps({**json.loads(noted.last_sweep()), "run_id": "of the old server"}))
    wait_until(lambda: swept.read_last(noted).run_id != "of the old server")
    assert mirrored(noted, row)


def test_small_chores_do_not_wait_for_a_long_sweep(broker, running, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    monkeypatch.setattr(upkeep, "DELTA_SECONDS", 0.02)
    rows = [schedule(f"s{n}") for n in range(12)]
    compare, seen = rebuilding.compare, []

    def slow(own, homes, **kwargs):
        if homes:
            (pk,) = homes
            time.sleep(0.05)  # a page that takes long: a delta sweep falls due
            if pk == rows[1].pk:  # an edit of what the sweep has behind it
                Schedule._base_manager.filter(pk=rows[0].pk).update(synced_generation=0)
            seen.append((pk, Schedule.objects.get(pk=rows[0].pk).synced_generation))
        return compare(own, homes, **kwargs)

    monkeypatch.setattr(rebuilding, "compare", slow)
    running()
    wait_until(lambda: swept.read_last(broker))
    synced = [generation for pk, generation in seen if pk > rows[1].pk]
    assert len(synced) >= 10
    assert synced[-1] == rows[0].generation, "the edit was mirrored before the sweep ended"


def test_what_is_left_to_the_delta_sweep_comes_page_after_page(noted, running, monkeypatch):
    """A bulk creation of many thousands must not take two seconds for each page."""
    monkeypatch.setattr(upkeep, "DELTA_SECONDS", 3600)
    for module in (mirror, sweep):
        monkeypatch.setattr(module, "PAGE", 2)
    worker = running()
    wait_until(lambda: worker.upkeep._due["delta"] > time.monotonic())
    rows = [schedule(f"s{n}") for n in range(7)]
    for row in rows:
        lose(noted, row)
    Schedule._base_manager.update(synced_generation=0)
    worker.upkeep._due["delta"] = 0.0
    worker.upkeep._nudge.set()
    wait_until(lambda: all(mirrored(noted, row) for row in rows))


def test_a_sweep_that_failed_is_tried_again_before_the_next_look(noted, running, monkeypatch):
    monkeypatch.setattr(upkeep, "HEARTBEAT_SECONDS", 3600)
    row = schedule()
    lose(noted, row)
    noted.note_sweep(None)
    compare, failures = rebuilding.compare, []

    def failing(*args, **kwargs):
        if len(failures) < 2:
            failures.append(1)
            raise BrokerUnavailable("not now")
        return compare(*args, **kwargs)

    monkeypatch.setattr(rebuilding, "compare", failing)
    running()
    wait_until(lambda: swept.read_last(noted))
    assert len(failures) == 2
    assert mirrored(noted, row)


def test_after_a_flush_a_worker_is_back_on_the_list_with_what_it_runs(noted, running, settings, monkeypatch):
    settings.DELAYQ = {**settings.DELAYQ, "IDLE_CAP_SECONDS": 0.5}
    monkeypatch.setattr(upkeep, "HEARTBEAT_SECONDS", 3600)
    # A full sweep that is due as the flush comes would build the shards before a claim can miss them.
    monkeypatch.setattr(upkeep.mirror, "sweep_if_due", lambda *args, **options: None)
    # A purge takes its time: what it has yet to delete must not have been written again.
    flushed, rebuild_soon = threading.Event(), upkeep.Upkeep.rebuild_soon
    monkeypatch.setattr(
        upkeep.Upkeep, "rebuild_soon", lambda self: flushed.wait(PATIENCE_SECONDS) and rebuild_soon(self)
    )
    running()
    wait_until(noted.workers)
    ((name, (_, before)),) = noted.workers().items()
    noted.purge()
    flushed.set()
    wait_until(lambda: noted.workers().get(name, (0, ""))[1])
    details = json.loads(noted.workers()[name][1])  # its memory may be another by now
    assert (details["queues"], details["started"]) == (["default", "mail"], json.loads(before)["started"])
    wait_until(lambda: None not in noted.epochs(noted.shards()))
