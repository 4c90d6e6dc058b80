"""Full sweeps: when one is due, and what is noted of it. Which worker makes it: test_upkeep_lease.py."""

import json

import pytest

from django_delayq import mirror
from django_delayq.mirror import pages, swept
from django_delayq.timing import from_ms
from tests.acceptance.support import wait_until
from tests.integration.mirroring import absent, mirrored, schedule

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def noted(broker):
    """A prefix that has just been swept."""
    mirror.check_layout(broker)
    assert mirror.sweep_if_due(broker).done
    return broker


def change_note(broker, **values):
    broker.note_sweep(json.dumps({**json.loads(broker.last_sweep()), **values}))


def lose(broker, row):
    """Take an entry away, which only a full sweep finds."""
    broker.remove(broker.shard_of(f"s{row.pk}", row.queue), [(f"s{row.pk}", 10**15, "")])
    assert absent(broker, row)


def test_a_sweep_is_noted_and_none_is_due_for_a_while(broker):
    mirror.check_layout(broker)
    began = from_ms(broker.now_ms())
    assert mirror.sweep_if_due(broker).done
    row = schedule()
    lose(broker, row)
    assert mirror.sweep_if_due(broker) is None
    last = swept.read_last(broker)
    assert (last.checked, last.mended) == (0, 0)
    assert began <= last.at <= from_ms(broker.now_ms())
    assert not swept.is_due(broker)
    wait_until(lambda: broker.now_ms() > last.at_ms + 5)
    assert mirror.sweep_if_due(broker, every_seconds=0.005).lines
    assert (swept.read_last(broker).checked, swept.read_last(broker).mended) == (1, 1)


DUE = [
    ("never swept or flushed", lambda b: b.note_sweep(None)),
    ("ten minutes ago", lambda b: change_note(b, at_ms=b.now_ms() - 600_000)),
    ("the server's clock stepped back", lambda b: change_note(b, at_ms=b.now_ms() + 60_000)),
    ("another server, or one that was restarted", lambda b: change_note(b, run_id="0" * 40)),
    ("another database", lambda b: change_note(b, database="another")),
    ("half a note", lambda b: b.note_sweep(json.dumps({"at_ms": b.now_ms()}))),
    *((f"garbage {text!r}", lambda b, text=text: b.note_sweep(text)) for text in ("", "x", "[]", "null", "5")),
    ("a garbage time", lambda b: change_note(b, at_ms=10**30)),
    ("a garbage duration", lambda b: change_note(b, seconds=float("inf"))),
]


@pytest.mark.parametrize("change", [row[1] for row in DUE], ids=[row[0] for row in DUE])
def test_a_sweep_is_due(noted, change):
    row = schedule()
    lose(noted, row)
    change(noted)
    assert mirror.sweep_if_due(noted).done
    assert mirrored(noted, row)
    assert mirror.sweep_if_due(noted) is None


@pytest.mark.parametrize("call", [mirror.sweep_now, mirror.adopt])
def test_a_sweep_that_a_person_orders_is_made_whoever_is_at_it_and_noted(noted, call):
    row = schedule()
    lose(noted, row)
    noted.seize_upkeep("somebody")
    change_note(noted, at_ms=5)
    assert call(noted).done
    assert mirrored(noted, row)
    assert swept.read_last(noted).at_ms > 5


def test_a_dry_run_is_no_sweep(broker):
    mirror.check_layout(broker)
    mirror.full_sweep(broker, dry_run=True)
    assert swept.is_due(broker)


def test_a_sweep_that_must_not_go_on_ends_after_the_page_and_is_not_noted(broker, monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 1)
    mirror.check_layout(broker)
    for n in range(5):
        schedule(f"s{n}")
    report = mirror.sweep_if_due(broker, go_on=lambda checked: False)
    assert not report.done
    assert report.checked == 1
    assert swept.read_last(broker) is None
    assert mirror.sweep_if_due(broker).checked == 5
