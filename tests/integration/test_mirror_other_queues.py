"""Queues that only the settings of other processes name: their guard stays, and nobody mirrors them wrongly."""

import json
import re

import pytest
from django.core.management import CommandError, call_command

from django_delayq import sync
from django_delayq.index import Broker, Shard
from django_delayq.models import Origin, Run
from django_delayq.sync.layout import ForeignLayout
from tests.integration.mirroring import mirrored, schedule, stored

pytestmark = pytest.mark.django_db(transaction=True)
BULK = 4


@pytest.fixture
def use(settings):
    """Let this process have these queues and shards; return its broker."""
    own, made = settings.DELAYQ, []

    def change(queues, shards):
        settings.DELAYQ = {**own, "QUEUES": queues, "SHARDS": shards}
        made.append(Broker(timeout_seconds=5, worker="test"))
        return made[-1]

    yield change
    for broker in made:
        broker.close()


@pytest.fixture
def known(use):
    """A prefix where another process has brought in the queue `bulk`."""
    broker = use(["default", "bulk"], {"default": 1, "bulk": BULK})
    sync.check_layout(broker)
    sync.sweep_now(broker)
    return broker


def members(broker):
    return [stats.members for stats in broker.read_stats([Shard("bulk", shard) for shard in range(BULK)])]


def refused(call, *args):
    with pytest.raises((ForeignLayout, CommandError)) as caught:
        call(*args)
    return str(caught.value)


def test_the_number_of_their_shards_outlives_another_number_for_other_queues(known, use):
    few = use(["default"], {"default": 3})
    sync.take_layout(few)
    assert stored(few)["shards"] == {"default": 3, "bulk": BULK}
    assert few.read_epochs([Shard("bulk", 0), Shard("default", 0)])[0], "what has its number is left as it is"
    other = use(["default", "bulk"], {"default": 3, "bulk": BULK + 2})
    assert f"'bulk' has {BULK} shards in Redis but {BULK + 2}" in refused(sync.check_layout, other)


def test_of_another_database_nothing_stays(known, use):
    known.write_note("layout", json.dumps({**stored(known), "database": "another"}))
    sync.adopt(use(["default"], 1))
    assert stored(known)["shards"] == {"default": 1}


@pytest.mark.parametrize("kind", ["schedule", "run"])
def test_who_would_count_their_shards_otherwise_is_refused_once_they_are_in_use(known, use, kind):
    few = use(["default"], {"default": 1})
    sync.check_layout(few)
    use(["default", "bulk"], {"default": 1, "bulk": BULK})
    if kind == "schedule":
        schedule(queue="bulk")
    else:
        run = {"schedule_name": "s", "task": "tests.app.tasks.noop", "queue": "bulk", "generation": 1, "separate": True}
        Run.objects.create(schedule_id=1, origin=Origin.MANUAL, due_at="2026-01-01T00:00Z", status="queued", **run)
    before = (known.read_layout(), members(known))
    said = [refused(sync.check_layout, few), refused(sync.take_layout, use(["default"], {"default": 3}))]
    use(["default"], {"default": 1})
    said += [refused(call_command, "delayq_sync", *order) for order in ((), ("--dry-run",))]
    for text in said:
        assert re.search(rf"'bulk' has {BULK} shards in Redis.*as if it had 1\..*Name it in DELAYQ\['QUEUES'\]", text)
    assert (known.read_layout(), members(known)) == before


def test_who_would_count_them_alike_may_mirror_them(use):
    every = use(["default", "bulk"], BULK)
    sync.check_layout(every)
    sync.sweep_now(every)
    rows = [schedule(f"s{n}", queue="bulk") for n in range(8)]
    few = use(["default"], BULK)
    sync.check_layout(few)
    assert sync.sweep_now(few).lines == []
    assert sum(members(few)) == len(rows)
    assert all(mirrored(few, row) for row in rows)
