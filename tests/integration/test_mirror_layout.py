"""Whose prefix it is, and what `manage.py delayq_sync` says and does."""

import json

import pytest
from django.core.management import CommandError

from django_delayq import conf, sync
from django_delayq.index import Broker, EntryDefinition
from django_delayq.models import Schedule, ScheduleState
from django_delayq.sync.layout import ForeignLayout, OtherLayout
from tests.integration.mirroring import absent, lose, mirrored, schedule, set_due, stored
from tests.support import count_keys, said

pytestmark = pytest.mark.django_db(transaction=True)


def run_sync(*options):
    return said("delayq_sync", *options).splitlines()


@pytest.fixture
def foreign(broker):
    """A prefix that belongs to another database, with a member of its own."""
    broker.write_note("layout", json.dumps({"database": "another", "version": 1, "shards": {"default": 1, "mail": 1}}))
    broker.upsert(broker.list_shards()[0], [EntryDefinition("s999999", 1, 1, 1)])
    return broker


# -- the guard


def test_the_first_to_come_takes_the_prefix_and_the_same_may_come_again(broker):
    sync.check_layout(broker)
    shards = {"default": 1, "mail": 1}
    own = {"database": sync.read_fingerprint(), "version": conf.LAYOUT, "shards": shards}
    assert stored(broker) == {**own, "switching": False}
    before = broker.read_layout()
    sync.check_layout(broker)
    assert broker.read_layout() == before


def test_another_database_is_refused_with_the_way_out_and_nothing_changes(foreign):
    before = (foreign.read_layout(), foreign.read_stats(foreign.list_shards()[:1])[0].members)
    with pytest.raises(ForeignLayout) as caught:
        sync.check_layout(foreign)
    for part in (foreign.config.prefix, "another database", "DELAYQ['PREFIX']", "delayq_sync --adopt"):
        assert part in str(caught.value)
    assert (foreign.read_layout(), foreign.read_stats(foreign.list_shards()[:1])[0].members) == before


def test_a_save_under_a_foreign_prefix_succeeds_and_touches_nothing(foreign, caplog):
    row = schedule()
    assert absent(foreign, row)
    assert "another database" in caplog.text
    row.refresh_from_db()
    assert row.synced_generation != row.generation
    row.delete()
    assert foreign.read_stats(foreign.list_shards()[:1])[0].members == 1


def test_another_number_of_shards_is_refused_with_the_way_out(broker, settings):
    sync.check_layout(broker)
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 3}
    changed = Broker(timeout_seconds=5)
    before = changed.read_layout()
    with pytest.raises(OtherLayout) as caught:
        sync.check_layout(changed)
    for part in ("'default'", "1 shards", "3 in DELAYQ['SHARDS']", "restart all"):
        assert part in str(caught.value)
    assert changed.read_layout() == before


def test_a_new_queue_joins_and_a_process_with_fewer_queues_is_no_stranger(broker, settings):
    sync.check_layout(broker)
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": ["default", "bulk"], "SHARDS": {"bulk": 4}}
    sync.check_layout(Broker(timeout_seconds=5))
    assert stored(broker)["shards"] == {"default": 1, "mail": 1, "bulk": 4}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": ["mail"], "SHARDS": 1}
    sync.check_layout(Broker(timeout_seconds=5))
    assert stored(broker)["shards"] == {"default": 1, "mail": 1, "bulk": 4}


GARBAGE = [
    "", "garbage", "null", "[]", "5", "{}", '{"database": "x", "shards": {}}',
    '{"database": 5, "version": 1, "shards": {}}',
    '{"database": "x", "version": "1", "shards": {}}', '{"database": "x", "version": 1, "shards": []}',
    r'{"database": "x", "version": 1, "shards": {"\ud800": 1}}',
    # whoever switches to another number looks at each of them
    *(f'{{"database": "x", "version": 1, "shards": {{"default": {number}}}}}'
      for number in (conf.MAX_SHARDS + 1, 10**12, "true", 1.0)),
]  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE)
def test_a_garbage_layout_is_written_anew(broker, text):
    broker.write_note("layout", text)
    sync.check_layout(broker)
    assert stored(broker)["database"] == sync.read_fingerprint()


def test_a_dry_run_compares_without_taking_the_prefix(broker):
    sync.check_layout(broker, claim=False)
    assert broker.read_layout() is None
    broker.write_note("layout", "garbage")
    sync.check_layout(broker, claim=False)
    assert broker.read_layout() == "garbage"


# -- the command


def test_sync_says_what_it_changed_and_then_that_nothing_is_left(broker):
    rows = [schedule(name) for name in ("a", "b", "c")]
    run_sync()
    lose(broker, rows[0])
    set_due(broker, rows[1], "gen", 5)
    lines = run_sync()
    assert lines[0].startswith("a: added, next due ")
    assert lines[1] == "b: updated, an edit was not mirrored"
    assert lines[2:] == ["3 schedules checked, 2 changed."]
    assert all(mirrored(broker, row) for row in rows)
    assert run_sync() == ["3 schedules checked, 0 changed."]


def test_sync_sums_up_what_nobody_would_read_and_lists_it_where_asked_to(broker):
    rows = [schedule(f"s{n:02}") for n in range(25)]
    added = [f"{row}: added, next due {row.state.next_due_at:%Y-%m-%d %H:%M:%S} UTC" for row in rows]
    broker.purge()
    ScheduleState.objects.all().delete()
    Schedule._base_manager.update(synced_generation=0)
    before = list(Schedule.objects.values())
    dry = run_sync("--dry-run")
    assert (count_keys(broker), ScheduleState.objects.count(), list(Schedule.objects.values())) == (0, 0, before)
    assert dry == [*added[:20], "… and 5 more; -v 2 lists all.", "25 schedules checked, 25 would be changed."]
    assert run_sync("-v", "2") == [*added, "25 schedules checked, 25 changed."]
    assert all(mirrored(broker, row) for row in rows)
    assert None not in broker.read_epochs(broker.list_shards())


def test_purge_removes_what_is_ours_and_says_how_much(broker):
    schedule()
    run_sync()
    count = count_keys(broker)
    assert count > 3
    assert run_sync("--purge") == [f"Removed {count} keys under the prefix {broker.config.prefix!r}."]
    assert (count_keys(broker), Schedule.objects.count()) == (0, 1)


def test_purge_lets_a_new_number_of_shards_in(broker, settings):
    row = schedule()
    run_sync()
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 5}
    with pytest.raises(CommandError, match="SHARDS"):
        run_sync()
    run_sync("--purge")
    run_sync()
    assert mirrored(Broker(timeout_seconds=5), row)


def test_sync_of_a_foreign_prefix_is_one_line_that_says_what_to_do_and_adopt_does_it(foreign):
    with pytest.raises(CommandError, match="--adopt"):
        run_sync()
    with pytest.raises(CommandError, match="--adopt"):
        run_sync("--dry-run")
    assert foreign.read_stats(foreign.list_shards()[:1])[0].members == 1
    row = schedule()
    run_sync("--adopt")
    assert mirrored(foreign, row)
    assert None not in foreign.read_epochs(foreign.list_shards())


def test_sync_without_redis_fails_with_one_line(dead_redis):
    with pytest.raises(CommandError) as caught:
        run_sync()
    assert "Redis" in str(caught.value) and "\n" not in str(caught.value)
