"""`manage.py delayq_worker` as an operator meets it: options, refusals with instructions, and what it heals."""

import io
import json
import signal
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from django_delayq import orders
from django_delayq.broker import Definition, keys
from django_delayq.embedded import EmbeddedServer
from django_delayq.models import Run, Schedule
from django_delayq.timing import from_ms
from tests.acceptance.processes import first_look, settled
from tests.acceptance.support import PATIENCE_SECONDS, lines, output_of, wait_until, worker
from tests.acceptance.test_processes import note, own_server
from tests.support import DAILY_CRON, count_keys, make_due

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["own_server"]

FOREIGN = json.dumps({"database": "another", "version": 1, "shards": {"default": 1, "mail": 1}})


def noop(name="s", **values):
    values = {"kind": "cron", "cron": DAILY_CRON, **values}
    return Schedule.objects.create(name=name, task="tests.app.tasks.noop", **values)


def taken_over(broker):
    """Flush the prefix and make it another database's, in one step, so that no worker rebuilds it in between."""
    prefix = broker.config.prefix
    flush = broker.client.pipeline()
    flush.delete(*broker.client.scan_iter(match=f"*{prefix}*"))
    flush.set(keys.prefix_key(prefix, "layout"), FOREIGN)
    for place in broker.shards():
        flush.set(keys.shard_keys(prefix, place)[keys.PARTS.index("epoch")], "theirs")
    flush.execute()


def test_burst_runs_what_is_due_and_exits_with_readable_or_json_lines(broker):
    make_due(broker, noop("first"))
    with worker("--burst") as process:
        assert process.wait(PATIENCE_SECONDS) == 0
        assert "succeeded first  due " in output_of(process)
    make_due(broker, noop("second"))
    with worker("--burst", "--json-logs") as process:
        assert process.wait(PATIENCE_SECONDS) == 0
        events = [json.loads(line) for line in output_of(process).splitlines()]
    (event,) = [event for event in events if event.get("schedule") == "second"]
    assert event["event"] == "succeeded"
    assert event["lag_ms"] >= 0
    assert event["duration_ms"] >= 0


def test_an_idle_worker_is_woken_by_an_order(broker):
    row = noop()
    with worker(IDLE_CAP_SECONDS=60) as process:
        wait_until(lambda: broker.workers())
        look = first_look(broker, process.pid)
        settled(broker)
        run = orders.run_now(row)
        wait_until(lambda: Run.objects.get(pk=run.pk).status == "succeeded")
    run.refresh_from_db()
    assert run.claimed_at < look + timedelta(seconds=60), "the order woke nobody; a regular look found it"


def test_an_idle_worker_starts_a_new_one_off_on_time(broker):
    with worker(IDLE_CAP_SECONDS=60) as process:
        wait_until(lambda: broker.workers())
        look = first_look(broker, process.pid)
        settled(broker)
        at = from_ms(broker.now_ms()) + timedelta(seconds=1.5)
        noop(kind="once", cron="", at=at)
        wait_until(lambda: Run.objects.finished().exists())
    run = Run.objects.get()
    assert run.due_at <= run.claimed_at < look + timedelta(seconds=60), "not before it is due, nor by a regular look"


def test_unknown_queues_and_numbers_are_refused():
    for arguments, words in (
        (["--queues", "default,nope"], "'nope'"),
        (["--threads", "0"], "--threads"),
        (["--max-runs", "0"], "--max-runs must be at least 1, not 0"),
        (["--processes", "0"], "--processes must be from 1 to 200, not 0"),
        (["--processes", "201"], "--processes must be from 1 to 200, not 201"),
    ):
        with pytest.raises(CommandError, match=words):
            call_command("delayq_worker", *arguments, stdout=io.StringIO())


def test_a_mirror_that_is_switched_off_is_refused(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    with pytest.raises(CommandError, match="MIRROR"):
        call_command("delayq_worker", stdout=io.StringIO())


def test_another_databases_prefix_is_refused_with_instructions(broker):
    noop()
    broker.write_layout(FOREIGN)
    with worker() as process:
        assert process.wait(PATIENCE_SECONDS) == 1
        text = output_of(process)
    assert "belongs to another database" in text
    assert "--adopt" in text and "PREFIX" in text
    assert "Traceback" not in text


def test_a_prefix_taken_over_by_another_database_after_a_flush_stops_the_worker(broker):
    noop()
    place = broker.shards()[0]
    with worker(IDLE_CAP_SECONDS=5) as process:
        wait_until(lambda: broker.workers())
        settled(broker)  # the sweeps at its start
        taken_over(broker)
        broker.upsert(place, [Definition("s424242", 1, 1, 1)], mode="new")
        assert process.wait(PATIENCE_SECONDS) == 1
        assert "belongs to another database" in output_of(process)
    assert broker.views([("s424242", "default")])[0].score_ms is not None


def test_an_evicting_server_is_refused(own_server):
    own_server.broker.client.config_set("maxmemory-policy", "allkeys-lru")
    with worker() as process:
        assert process.wait(PATIENCE_SECONDS) == 1
        assert "noeviction" in output_of(process)


def test_a_server_that_is_not_there_yet_is_waited_for(own_server):
    noop(kind="every", cron="", every=timedelta(seconds=1))
    home = own_server.socket.parent
    own_server.stop()
    with worker() as process:
        wait_until(lambda: "Waiting for it" in output_of(process))
        with EmbeddedServer(home=home):
            wait_until(lambda: Run.objects.finished().exists(), 15)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("part", keys.PARTS)
def test_keys_of_a_foreign_type_are_deleted_and_rebuilt(broker, part):
    make_due(broker, noop())
    place = broker.shard_of("s1", "default")
    names = dict(zip(keys.PARTS, keys.shard_keys(broker.config.prefix, place, "me"), strict=True))
    broker.client.delete(names[part])
    broker.client.sadd(names[part], "garbage")
    from tests.support import run_burst

    run_burst(name="me")
    if not Run.objects.exists():  # found only by the claim of this worker: the next one has it
        run_burst(name="me")
    assert Run.objects.get().status == "succeeded"


def test_garbage_written_while_it_runs_does_not_end_the_worker(broker):
    noop(kind="every", cron="", every=timedelta(seconds=1))
    place = broker.shards()[0]
    names = dict(zip(keys.PARTS, keys.shard_keys(broker.config.prefix, place), strict=True))
    with worker(LEASE_SECONDS=2) as process:  # what is settled at that very moment comes back when its lease has ended
        wait_until(lambda: Run.objects.finished().exists(), 15)
        for part in ("due", "point", "lease", "epoch"):
            broker.client.pipeline().delete(names[part]).rpush(names[part], "garbage").execute()
            count = Run.objects.count()
            wait_until(lambda count=count: Run.objects.count() > count + 1, 20, part)
        assert process.poll() is None


def test_a_slow_tasks_lease_is_renewed(broker, tmp_path):
    path, gate, lease = tmp_path / "f", tmp_path / "gate", 6
    row = note("slow", path, gate=gate)
    make_due(broker, row)
    with worker(LEASE_SECONDS=lease), worker(LEASE_SECONDS=lease):
        wait_until(lambda: lines(path))
        end = lease_end(broker, row)
        wait_until(lambda: lease_end(broker, row) > end, what="the first renewal")
        wait_until(lambda: broker.now_ms() > end, what="the end of the first lease")
        gate.touch()
        wait_until(lambda: Run.objects.finished().exists())
    run = Run.objects.get()
    assert (run.status, run.reclaims) == ("succeeded", 0)
    assert path.read_text().count("start") == 1


def lease_end(broker, row):
    """Return the ms at which the entry of a schedule that runs comes due again."""
    return broker.views([(f"s{row.pk}", row.queue)])[0].score_ms


def test_options_that_exclude_each_other_are_refused_and_no_queue_is_no_queue():
    for arguments, words in (
        (["--burst", "--reload"], "--reload"),
        (["--processes", "2", "--reload"], "use it without --processes"),
        (["--processes", "2"], "not call_command"),
    ):
        with pytest.raises(CommandError, match=words):
            call_command("delayq_worker", *arguments, stdout=io.StringIO())
    with pytest.raises(CommandError, match="''"):
        call_command("delayq_worker", "--queues", "", stdout=io.StringIO())


def test_sync_touches_no_redis_where_the_mirror_is_off(settings, broker):
    noop()
    count = count_keys(broker)
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    for arguments in ([], ["--purge"]):
        with pytest.raises(CommandError, match="MIRROR"):
            call_command("delayq_sync", *arguments, stdout=io.StringIO())
    assert count_keys(broker) == count > 0


def test_missing_tables_are_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr("django_delayq.models.Schedule._meta.db_table", "not_migrated")
    for command in ("delayq_worker", "delayq_sync"):
        with pytest.raises(CommandError, match="migrate"):
            call_command(command, stdout=io.StringIO())
