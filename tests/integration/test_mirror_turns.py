"""Full sweeps by one worker at a time: when one is due, who makes it, and what becomes of a sweeper that dies."""

import json
import threading

import pytest
from django.db import connections

from django_delayq import mirror
from django_delayq.broker import Broker
from django_delayq.mirror import pages, turn
from django_delayq.timing import from_ms
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.integration.mirroring import absent, mirrored, schedule

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def noted(broker):
    """A prefix that has just been swept."""
    mirror.check_layout(broker)
    assert mirror.sweep_in_turn(broker).done
    return broker


def change_note(broker, **values):
    broker.note_sweep(json.dumps({**json.loads(broker.last_sweep()), **values}))


def lose(broker, row):
    """Take an entry away, which only a full sweep finds."""
    broker.remove(broker.shard_of(f"s{row.pk}", row.queue), [(f"s{row.pk}", 10**15, "")])
    assert absent(broker, row)


# -- when one is due


def test_a_sweep_is_noted_and_none_is_due_for_a_while(broker):
    mirror.check_layout(broker)
    began = from_ms(broker.now_ms())
    assert mirror.sweep_in_turn(broker).done
    row = schedule()
    lose(broker, row)
    assert mirror.sweep_in_turn(broker) is None
    last = turn.read_last(broker)
    assert (last.checked, last.mended) == (0, 0)
    assert began <= last.at <= from_ms(broker.now_ms())
    assert not turn.is_due(broker)
    wait_until(lambda: broker.now_ms() > last.at_ms + 5)
    assert mirror.sweep_in_turn(broker, every_seconds=0.005).lines
    assert (turn.read_last(broker).checked, turn.read_last(broker).mended) == (1, 1)


def test_a_note_of_a_duration_that_is_none_is_no_note(noted):
    assert turn.read_last(noted).seconds > 0
    for garbage in ("x", float("inf"), []):
        change_note(noted, seconds=garbage)
        assert turn.read_last(noted) is None


DUE = [
    ("never swept or flushed", lambda b: b.note_sweep(None)),
    ("ten minutes ago", lambda b: change_note(b, at_ms=b.now_ms() - 600_000)),
    ("the server's clock stepped back", lambda b: change_note(b, at_ms=b.now_ms() + 60_000)),
    ("another server, or one that was restarted", lambda b: change_note(b, run_id="0" * 40)),
    ("another database", lambda b: change_note(b, database="another")),
    ("half a note", lambda b: b.note_sweep(json.dumps({"at_ms": b.now_ms()}))),
    *((f"garbage {text!r}", lambda b, text=text: b.note_sweep(text)) for text in ("", "x", "[]", "null", "5")),
    ("a garbage time", lambda b: change_note(b, at_ms=10**30)),
]


@pytest.mark.parametrize("change", [row[1] for row in DUE], ids=[row[0] for row in DUE])
def test_a_sweep_is_due(noted, change):
    row = schedule()
    lose(noted, row)
    change(noted)
    assert mirror.sweep_in_turn(noted).done
    assert mirrored(noted, row)
    assert mirror.sweep_in_turn(noted) is None


@pytest.mark.parametrize("call", [mirror.sweep_now, mirror.adopt])
def test_a_sweep_that_a_person_orders_is_made_whoever_is_at_it_and_noted(noted, call):
    row = schedule()
    lose(noted, row)
    noted.begin_sweep("somebody", ttl_ms=60_000)
    change_note(noted, at_ms=5)
    assert call(noted).done
    assert mirrored(noted, row)
    assert turn.read_last(noted).at_ms > 5


def test_a_dry_run_is_no_sweep(broker):
    mirror.check_layout(broker)
    mirror.full_sweep(broker, dry_run=True)
    assert turn.is_due(broker)


# -- whose turn it is


def test_of_many_workers_one_sweeps(broker):
    mirror.check_layout(broker)
    schedule()
    brokers = [Broker(timeout_seconds=5, worker=f"w{n}") for n in range(6)]
    reports = []
    barrier = threading.Barrier(len(brokers))

    def take_part(own):
        barrier.wait()
        try:
            reports.append(mirror.sweep_in_turn(own))
        finally:
            own.close()
            connections.close_all()

    for _ in range(3):
        reports.clear()
        broker.note_sweep(None)
        threads = [threading.Thread(target=take_part, args=(own,)) for own in brokers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert [report is not None and report.done for report in reports].count(True) == 1
        assert len(reports) == len(brokers)


def test_nobody_begins_while_another_one_sweeps_nor_right_after_it(broker, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    mirror.check_layout(broker)
    for n in range(3):
        schedule(f"s{n}")
    other = Broker(timeout_seconds=5, worker="other")
    met = []

    def meanwhile(checked):
        met.append(mirror.sweep_in_turn(other))
        return True

    assert mirror.sweep_in_turn(broker, go_on=meanwhile).done
    assert met
    assert set(met) == {None}
    assert mirror.sweep_in_turn(other) is None
    other.close()


def test_who_comes_second_looks_again_before_it_begins(broker, monkeypatch):
    """It saw that a sweep was due; then the other one made it from beginning to end."""
    mirror.check_layout(broker)
    other = Broker(timeout_seconds=5, worker="other")
    begin = broker.begin_sweep

    def late(*args, **kwargs):
        assert mirror.sweep_in_turn(other).done
        return begin(*args, **kwargs)

    monkeypatch.setattr(broker, "begin_sweep", late)
    assert mirror.sweep_in_turn(broker) is None
    assert not broker.client.exists(f"{broker.config.prefix}:sweep")
    other.close()


def test_a_sweeper_that_dies_holds_up_the_others_only_for_a_while(broker, monkeypatch):
    mirror.check_layout(broker)
    row = schedule()
    lose(broker, row)
    assert broker.begin_sweep("dead", ttl_ms=turn.TTL_MS)
    assert mirror.sweep_in_turn(broker) is None
    key = f"{broker.config.prefix}:sweep"
    assert 0 < broker.client.pttl(key) <= turn.TTL_MS
    broker.client.pexpire(key, 1)  # half a minute later
    reports = []
    wait_until(lambda: reports.append(mirror.sweep_in_turn(broker)) or reports[-1])
    assert reports[-1].done
    assert mirrored(broker, row)


def test_the_mark_is_renewed_page_by_page(broker, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    mirror.check_layout(broker)
    for n in range(4):
        schedule(f"s{n}")
    key = f"{broker.config.prefix}:sweep"
    left = []

    def shorten(checked):
        left.append(broker.client.pttl(key))
        broker.client.pexpire(key, 10_000)
        return True

    assert mirror.sweep_in_turn(broker, go_on=shorten).done
    assert len(left) >= 4
    assert min(left) > 10_000
    assert not broker.client.exists(key)


STOPS = [
    ("its worker stops", lambda b: False),
    ("its mark is another's", lambda b: b.client.set(f"{b.config.prefix}:sweep", "other", px=60_000)),
    ("Redis was flushed", lambda b: b.purge() or True),
]


@pytest.mark.parametrize("stop", [row[1] for row in STOPS], ids=[row[0] for row in STOPS])
def test_a_sweep_that_must_not_go_on_ends_after_the_page_and_is_not_noted(broker, monkeypatch, stop):
    monkeypatch.setattr(pages, "PAGE", 1)
    mirror.check_layout(broker)
    for n in range(5):
        schedule(f"s{n}")
    report = mirror.sweep_in_turn(broker, go_on=lambda checked: stop(broker))
    assert not report.done
    assert report.checked == 1
    assert turn.read_last(broker) is None
    broker.client.delete(f"{broker.config.prefix}:sweep")
    assert mirror.sweep_in_turn(broker).checked == 5


def test_a_sweep_that_fails_leaves_no_mark(broker, monkeypatch):
    mirror.check_layout(broker)
    monkeypatch.setattr(turn, "full_sweep", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mirror.sweep_in_turn(broker)
    monkeypatch.undo()
    assert mirror.sweep_in_turn(broker).done
