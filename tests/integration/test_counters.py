"""What became of due points and jobs is counted: by workers, in Redis, and in the table."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq import ledger
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import MinuteCounts, keys
from django_delayq.index.connection import DamagedKeys
from django_delayq.index.counters import LATENCY, RAN, Counts, select_outcomes, sum_by_queue
from django_delayq.ledger import rollups
from django_delayq.models import Rollup
from django_delayq.monitoring import minutes
from django_delayq.recurrence import to_ms
from django_delayq.worker import recorder
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.app import tasks
from tests.integration.mirroring import schedule
from tests.integration.probing import ask
from tests.support import count_keys, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

KEY, OTHER = ("points", "default", "app.one"), ("jobs", "default", "app.two")
NOW = datetime(2026, 11, 24, 12, 30, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def number(at):
    return to_ms(at) // 60_000


def name(broker, what):
    return keys.build_counts_key(broker.config.prefix, broker.list_shards(["default"])[0], what)


def put(broker, at, tally, key=KEY):
    MinuteCounts(broker).add(key[1], number(at), [(key, tally)])


def roll_up(broker, now=NOW):
    """Move what is old enough."""
    return minutes.roll_up(broker, to_ms(now))


def rows():
    return list(Rollup.objects.order_by("seconds", "at", "task").values_list("seconds", "at", "kind", "task", "counts"))


def counted(broker, since=None):
    return minutes.sum_rows(minutes.read_rows(since or datetime.now(UTC) - timedelta(hours=1), broker=broker))


@pytest.fixture
def worker(broker):
    made = Worker(WorkerOptions(queues=("default", "mail"), threads=1))
    made.timers.note_due(made.shards[0], None, broker.read_now_ms(), known=True)
    yield made
    made.broker.close()


# -- by workers


def test_points_and_jobs_of_a_burst_are_counted_exactly(broker):
    for n in range(3):
        make_due(broker, schedule(f"adds {n}", task="tests.app.tasks.add", args=[n]))
    make_due(broker, schedule("fails", task="tests.app.tasks.fail"))
    make_due(broker, schedule("tries", task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(hours=1)))
    make_due(broker, schedule("late", missed="skip", grace=timedelta(seconds=1), queue="mail"), timedelta(days=1))
    for n in range(2):
        tasks.add.enqueue(n)
    tasks.fail.using(queue_name="mail").enqueue()
    tasks.add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(7)
    run_burst()
    found = counted(broker)
    skipped = found.pop(("points", "mail", "tests.app.tasks.noop"))
    assert select_outcomes(skipped)["skipped:missed"] >= 1 and select_outcomes(skipped) == skipped, (
        "it neither waited nor ran"
    )
    assert {key: select_outcomes(tally) for key, tally in found.items()} == {
        ("points", "default", "tests.app.tasks.add"): {"succeeded": 3},
        ("points", "default", "tests.app.tasks.fail"): {"failed": 1, "retried": 1},
        ("jobs", "default", "tests.app.tasks.add"): {"succeeded": 2},
        ("jobs", "mail", "tests.app.tasks.fail"): {"failed": 1},
    }
    for tally in found.values():
        ended = sum(select_outcomes(tally).values())
        for buckets in (LATENCY, RAN):
            assert sum(tally.get(bucket, 0) for bucket in buckets) == ended
    run_burst()
    found[("points", "mail", "tests.app.tasks.noop")] = skipped
    assert counted(broker) == found, "nothing happened in between"


def test_at_most_one_write_a_second_and_none_while_nothing_happened(worker, monkeypatch):
    written = []
    monkeypatch.setattr(MinuteCounts, "add", lambda self, *args: written.append(args))
    now = [100.0]
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now[0])
    worker._write()
    assert written == []
    for seconds, expected in ((0, 1), (0.5, 1), (1.0, 2)):
        now[0] = 100.0 + seconds
        worker.trip.counted.add(KEY, "succeeded")
        worker._write()
        assert len(written) == expected
    assert [tallies for _, _, tallies in written] == [[(KEY, {"succeeded": 1})], [(KEY, {"succeeded": 2})]]
    assert not worker.trip.counted


def test_the_loop_wakes_for_what_is_still_to_be_brought(worker, monkeypatch):
    worker.tick()
    monkeypatch.setattr(worker.timers, "get_seconds_left", lambda now: 60.0)
    assert worker._get_seconds_left(recorder.time.monotonic(), 1) == 60.0
    for _ in range(2):  # the second time it is too early to write
        worker.trip.counted.add(KEY, "succeeded")
        worker._write()
    assert 0 < worker._get_seconds_left(recorder.time.monotonic(), 1) <= recorder.EVERY_SECONDS


def test_what_redis_does_not_take_is_brought_later(worker, broker, monkeypatch):
    counts = worker.trip.counted
    counts.add(KEY, "succeeded")
    counts.add(OTHER, "failed")
    with monkeypatch.context() as patch:
        patch.setattr(MinuteCounts, "add", lambda *args: (_ for _ in ()).throw(BrokerUnavailable("away")))
        worker.counting.write()
        assert counts == {KEY: {"succeeded": 1}, OTHER: {"failed": 1}}
        assert recorder.time.monotonic() < worker.counting.again < recorder.time.monotonic() + 60
    counts.add(KEY, "succeeded")
    worker.counting.write()
    assert counted(broker) == {KEY: {"succeeded": 2}, OTHER: {"failed": 1}}
    assert counts == {}


# -- in Redis


def test_a_minute_adds_up_tasks_and_goes_after_two_days(broker):
    for task in "ab":
        put(broker, NOW, {"succeeded": 2, "latency:1": 1}, ("points", "default", task))
        put(broker, NOW, {"failed": 1}, ("points", "default", "a"))
    assert MinuteCounts(broker).read("default", number(NOW)) == {
        ("points", "default", "a"): {"succeeded": 2, "latency:1": 1, "failed": 2},
        ("points", "default", "b"): {"succeeded": 2, "latency:1": 1},
    }
    for what in (number(NOW), "minutes"):
        assert 47 * 3_600_000 < broker.client.pttl(name(broker, what)) <= 48 * 3_600_000


@pytest.mark.parametrize("what", [number(NOW), "minutes"], ids=["the hash", "the index"])
def test_a_key_of_a_foreign_type_hinders_nobody_and_is_replaced(broker, what):
    broker.client.set(name(broker, what), "foreign")
    assert counted(broker, NOW - MINUTE) == {}
    assert roll_up(broker) == 0
    with pytest.raises(DamagedKeys):
        put(broker, NOW, {"failed": 1})
    put(broker, NOW, {"failed": 1})
    assert counted(broker, NOW - MINUTE) == {KEY: {"failed": 1}}


def test_purging_takes_the_counts_too(broker):
    put(broker, NOW, {"failed": 1})
    broker.purge()
    assert (count_keys(broker), broker.client.exists(name(broker, number(NOW)), name(broker, "minutes"))) == (0, 0)


def test_what_somebody_else_wrote_there_hinders_no_move(broker):
    at = NOW - 9 * MINUTE
    put(broker, at, {"failed": 1})
    hostile = {b"points x \x00": 1, b"points x \xff": 1, b"jobs \x00 a": 1, b"jobs \xed\xa0\x80 a": 2, "": ""}
    broker.client.hset(name(broker, number(at)), mapping=hostile)
    broker.client.zadd(
        name(broker, "minutes"), {"99999999999999": number(at), "x": 6, "-1": 7, "7.0": 8, b"\xff": number(at)}
    )
    assert counted(broker, NOW - timedelta(hours=1)) == {KEY: {"failed": 1}}
    roll_up(broker)
    assert [row[2:] for row in rows()] == [("points", "app.one", {"failed": 1})]
    assert counted(broker, NOW - timedelta(hours=1)) == {KEY: {"failed": 1}}


# -- in the table


def test_minutes_are_moved_two_minutes_after_their_end_and_read_as_before(broker):
    at = NOW.replace(second=0)
    for ago in (1, 2, 3, 4):
        put(broker, at - ago * MINUTE, {"succeeded": ago})
    before = counted(broker, at - timedelta(hours=1))
    assert roll_up(broker) == 2
    assert rows() == [(60, at - ago * MINUTE, "points", "app.one", {"succeeded": ago}) for ago in (4, 3)]
    assert MinuteCounts(broker).list_minutes("default", 0, 10**9) == [number(at) - 2, number(at) - 1]
    assert counted(broker, at - timedelta(hours=1)) == before == {KEY: {"succeeded": 10}}
    found = minutes.sum_rows(minutes.read_rows(at - 4 * MINUTE, at - MINUTE, broker))
    assert found == {KEY: {"succeeded": 9}}, "from the first instant on, and without the last one"


def test_a_crash_between_insert_and_deletion_counts_nothing_twice(broker, monkeypatch):
    at = NOW.replace(second=0) - 9 * MINUTE
    put(broker, at, {"succeeded": 5})
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(MinuteCounts, "forget", lambda *args: (_ for _ in ()).throw(RuntimeError("killed")))
        roll_up(broker)
    assert (len(rows()), MinuteCounts(broker).list_minutes("default", 0, 10**9)) == (1, [number(at)])
    assert counted(broker, at) == {KEY: {"succeeded": 5}}
    assert roll_up(broker) == 1
    assert rows() == [(60, at, "points", "app.one", {"succeeded": 5})]
    assert counted(broker, at) == {KEY: {"succeeded": 5}}


def test_the_table_is_read_alone_where_redis_is_away(dead_redis):
    ledger.add_minute(NOW, Counts({KEY: {"failed": 2}}))
    assert minutes.sum_rows(minutes.read_rows(NOW, NOW + MINUTE)) == {KEY: {"failed": 2}}
    assert sum_by_queue(minutes.sum_rows(minutes.read_rows(NOW))) == {("default", "points"): {"failed": 2}}


def test_minutes_become_hours_after_two_days_and_hours_go_after_ninety(broker, monkeypatch):
    monkeypatch.setattr(rollups, "BATCH", 7)  # so that most batches add to an hour that is there
    monkeypatch.setattr(ledger, "BATCH", 7)
    hour, young = NOW.replace(minute=0, second=0) - timedelta(hours=49), NOW - timedelta(hours=47)
    for minute in range(59, -1, -1):
        counts = {KEY: {"succeeded": 1, "latency:1": minute}, OTHER: {"failed": 2}}
        ledger.add_minute(hour + minute * MINUTE, Counts(counts))
    ledger.add_minute(young, Counts({KEY: {"lost": 1}}))
    Rollup.objects.create(at=NOW - timedelta(days=91), seconds=3600, kind="jobs", queue="default", task="gone")
    assert roll_up(broker) == 0
    expected = {KEY: {"succeeded": 60, "latency:1": 1770}, OTHER: {"failed": 120}}
    assert rows() == [
        (60, young, "points", "app.one", {"lost": 1}),
        (3600, hour, "points", "app.one", expected[KEY]),
        (3600, hour, "jobs", "app.two", expected[OTHER]),
    ]
    assert minutes.sum_rows(minutes.read_rows(hour, hour + timedelta(hours=1), broker)) == expected


def test_whoever_merges_what_another_one_has_merged_writes_nothing(broker, monkeypatch):
    ledger.add_minute(NOW - timedelta(days=3), Counts({KEY: {"failed": 1}, OTHER: {"failed": 1}}))
    real = rollups.add_up

    def beside(*args):
        monkeypatch.setattr(rollups, "add_up", real)
        assert ledger.merge_minutes(NOW) == 2
        real(*args)

    monkeypatch.setattr(rollups, "add_up", beside)
    with pytest.raises(ledger.Overtaken):
        ledger.merge_minutes(NOW)
    assert [(row[0], row[4]) for row in rows()] == [(3600, {"failed": 1})] * 2


# -- in the status


def test_the_status_tells_of_the_last_hour(broker):
    assert ask()[1]["last_hour"] == []
    make_due(broker, schedule("adds", task="tests.app.tasks.add", args=[1]))
    run_burst()
    [found] = ask()[1]["last_hour"]
    assert (found["queue"], found["kind"], found["outcomes"]) == ("default", "points", {"succeeded": 1})
    assert found["latency"]["p50"] == found["latency"]["p95"] == found["latency"]["p99"] > 0
