"""A full sweep: when it is due, what is noted of it, what a worker does beside it. Which one: test_upkeep_lease.py."""

import json
import time

import pytest

from django_delayq import sync
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.models import Schedule
from django_delayq.sync import pages, sweep
from django_delayq.worker import upkeep
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import wait_until
from tests.integration.mirroring import lose, mirrored, schedule
from tests.support import hold_upkeep

pytestmark = pytest.mark.django_db(transaction=True)


def change_note(broker, **values):
    broker.write_note("swept", json.dumps(sweep.read_last(broker)._replace(**values)))


def test_a_sweep_is_noted_and_none_is_due_for_a_while(broker, monkeypatch):
    sync.check_layout(broker)
    began = broker.read_now_ms()
    assert sync.sweep_if_due(broker).done
    row = schedule()
    lose(broker, row)
    assert sync.sweep_if_due(broker) is None
    last = sweep.read_last(broker)
    assert began <= last.at_ms <= broker.read_now_ms()
    wait_until(lambda: broker.read_now_ms() > last.at_ms + 5)
    monkeypatch.setattr(sweep, "FULL_SECONDS", 0.005)
    assert sync.sweep_if_due(broker).lines
    assert sweep.read_last(broker).at_ms > last.at_ms


DUE = [
    ("never swept or flushed", lambda b: b.forget_sweep()),
    ("ten minutes ago", lambda b: change_note(b, at_ms=b.read_now_ms() - 600_000)),
    ("the server's clock stepped back", lambda b: change_note(b, at_ms=b.read_now_ms() + 60_000)),
    ("another server, or one that was restarted", lambda b: change_note(b, run_ids="0" * 40)),
    ("another database", lambda b: change_note(b, database="another")),
    ("half a note", lambda b: b.write_note("swept", json.dumps([b.read_now_ms()]))),
    *((f"garbage {text!r}", lambda b, text=text: b.write_note("swept", text)) for text in ("", "x", "[]", "null", "5")),
    ("a garbage time", lambda b: change_note(b, at_ms=10**30)),
    ("a text for a time", lambda b: change_note(b, at_ms="x")),
]


@pytest.mark.parametrize("change", [row[1] for row in DUE], ids=[row[0] for row in DUE])
def test_a_sweep_is_due(noted, change):
    row = schedule()
    lose(noted, row)
    change(noted)
    assert sync.sweep_if_due(noted).done
    assert mirrored(noted, row)
    assert sync.sweep_if_due(noted) is None


@pytest.mark.parametrize("call", [sync.sweep_now, sync.adopt])
def test_a_sweep_that_a_person_orders_is_made_whoever_is_at_it_and_noted(noted, call):
    row = schedule()
    lose(noted, row)
    hold_upkeep(noted)
    change_note(noted, at_ms=5)
    assert call(noted).done
    assert mirrored(noted, row)
    assert sweep.read_last(noted).at_ms > 5


# -- beside a sweep, by a worker


@pytest.fixture
def own(broker):
    """The upkeep of a worker, whose rounds are played by hand."""
    return Worker(WorkerOptions(queues=("default", "mail"), threads=1)).upkeep


def test_small_chores_do_not_wait_for_a_long_sweep(broker, own, monkeypatch):
    sync.check_layout(broker)
    monkeypatch.setattr(pages, "PAGE", 1)
    monkeypatch.setattr(upkeep, "DELTA_SECONDS", 0.02)
    rows = [schedule(f"s{n}") for n in range(12)]
    compare, seen = sweep.compare, []

    def slow(own, homes, **kwargs):
        if homes:
            (pk,) = homes
            time.sleep(0.05)  # a page that takes long: a delta sweep falls due
            if pk == rows[1].pk:  # an edit of what the sweep has behind it
                Schedule._base_manager.filter(pk=rows[0].pk).update(synced_generation=0)
            seen.append((pk, Schedule.objects.get(pk=rows[0].pk).synced_generation))
        return compare(own, homes, **kwargs)

    monkeypatch.setattr(sweep, "compare", slow)
    assert own.run_round()
    assert sweep.read_last(broker)
    synced = [generation for pk, generation in seen if pk > rows[1].pk]
    assert len(synced) >= 10
    assert synced[-1] == rows[0].generation, "the edit was mirrored before the sweep ended"


def test_what_is_left_to_the_delta_sweep_comes_page_after_page(noted, own, monkeypatch):
    """A bulk creation of many thousands must not take two seconds for each page."""
    monkeypatch.setattr(upkeep, "DELTA_SECONDS", 3600)
    for module in (sync, sweep):
        monkeypatch.setattr(module, "PAGE", 2)
    assert own.run_round()
    rows = [schedule(f"s{n}") for n in range(7)]
    for row in rows:
        lose(noted, row)
    Schedule._base_manager.update(synced_generation=0)
    own._due["delta"] = 0.0
    while own._due["delta"] <= time.monotonic():
        assert own.run_round()
    assert all(mirrored(noted, row) for row in rows)


def test_a_sweep_that_failed_is_tried_again_before_the_next_look(noted, own, monkeypatch):
    row = schedule()
    lose(noted, row)
    change_note(noted, run_ids="of the old server")
    compare, failures = sweep.compare, []

    def failing(*args, **kwargs):
        if len(failures) < 2:
            failures.append(1)
            raise BrokerUnavailable("not now")
        return compare(*args, **kwargs)

    monkeypatch.setattr(sweep, "compare", failing)
    for _ in range(3):
        assert own.run_round()
    assert len(failures) == 2
    assert sweep.read_last(noted).run_ids != "of the old server"
    assert mirrored(noted, row)


def test_after_a_flush_a_worker_is_back_on_the_list_with_what_it_runs(noted, own):
    last = noted.read_note("swept")
    assert own.run_round()
    before = noted.read_workers()
    assert (noted.read_note("swept"), len(before)) == (last, 1), "no sweep so soon after one"
    noted.purge()
    own.rebuild_soon()
    assert own.run_round()
    assert None not in noted.read_epochs(noted.list_shards())
    ((name, (_, details)),) = noted.read_workers().items()
    kept = [{part: json.loads(text)[part] for part in ("queues", "started")} for text in (before[name][1], details)]
    assert kept[0] == kept[1] and kept[0]["queues"] == ["default", "mail"]
