"""Durable jobs where Redis is down, is flushed, or comes back with nothing."""

import time
from datetime import timedelta

import pytest
from django.db import transaction

from django_delayq import mirror
from django_delayq.backend.preparing import Preparer
from django_delayq.broker import Broker, JobBroker
from django_delayq.compat import TaskResultStatus
from django_delayq.fields import utcnow
from django_delayq.models import Job
from django_delayq.timing import to_ms
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.faults.harness.database import gone
from tests.faults.harness.servers import Server, pointing_at
from tests.faults.live import live_worker
from tests.faults.simulated_time import SimulatedTime
from tests.jobs.durable_support import backend, built, counts, durable, row_of, rows_of, started, view
from tests.jobs.support import Stored
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def server(prefix):
    """A server of the test's own, without persistence."""
    with Server() as own, pointing_at(own.url):
        yield own


def aged(result):
    """Let the job look as if the fast path had had its time."""
    rows_of(result).update(enqueued_at=utcnow() - timedelta(hours=2))


# -- Redis is down


def test_a_commit_without_redis_succeeds_and_the_next_delta_sweep_puts_the_job(broker, monkeypatch, tmp_path):
    monkeypatch.setattr("django_delayq.mirror.sweep.YOUNG", timedelta(hours=1))  # longer than the test
    path = tmp_path / "ran"
    built(broker)
    with pointing_at(NOBODY), transaction.atomic():
        result = durable(tasks.note).enqueue(str(path))
    assert sum(counts(broker)) == 0
    assert mirror.delta_sweep(broker) == 0  # it may still be on the fast path
    aged(result)
    assert mirror.delta_sweep(broker) == 1
    assert (sum(counts(broker)), row_of(result).mirrored) == (1, True)
    assert mirror.delta_sweep(broker) == 0
    run_burst()
    assert started(path) == 1


def test_without_redis_an_enqueue_waits_once_and_then_not_until_the_breaker_closes(broker, monkeypatch):
    with pointing_at(NOBODY):
        durable(tasks.add).enqueue(1)
        asked = []
        monkeypatch.setattr(mirror.fast, "put_jobs", lambda *args: asked.append(args))
        durable(tasks.add).enqueue_many(((n,), {}) for n in range(2500))
    assert asked == []
    assert Job.objects.filter(mirrored=False).count() == 2501


def test_what_a_job_has_become_is_told_without_redis(broker):
    ended, waits = durable(tasks.add).enqueue(1), durable(tasks.add, run_after=utcnow() + timedelta(hours=1)).enqueue(2)
    run_burst()
    with pointing_at(NOBODY):
        ended.refresh()
        waits.refresh()
    assert (ended.status, ended.return_value) == (TaskResultStatus.SUCCESSFUL, 2)
    assert waits.status == TaskResultStatus.READY


def test_a_worker_that_is_there_takes_the_job_soon_after_redis_is_back(server, settings, monkeypatch, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "IDLE_CAP_SECONDS": 0.5}
    monkeypatch.setattr("django_delayq.mirror.sweep.YOUNG", timedelta(0))
    path = tmp_path / "ran"
    with live_worker():
        server.stop()
        durable(tasks.note).enqueue(str(path))
        assert Job.objects.get().status == "READY"
        server.start()
        wait_until(lambda: Job.objects.get().status == "SUCCESSFUL", 20)
    assert started(path) == 1


def test_a_job_whose_shard_gets_another_epoch_at_that_moment_is_put_nevertheless(broker, monkeypatch, tmp_path):
    built(broker)
    with pointing_at(NOBODY):
        result = durable(tasks.note).enqueue(str(tmp_path / "ran"))
    aged(result)
    real, asked = Broker.epochs, []

    def epochs(own, places):
        asked.append(places)
        return ["another" for _ in places] if len(asked) == 1 else real(own, places)

    monkeypatch.setattr(Broker, "epochs", epochs)
    mirror.delta_sweep(broker)
    assert (sum(counts(broker)), row_of(result).mirrored, len(asked)) == (1, True, 2)


# -- Redis is flushed


def test_a_flush_loses_no_durable_job_whatever_its_queue_and_shard(server, settings, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 4}
    path = tmp_path / "ran"
    for queue in ("default", "mail"):
        durable(tasks.note, queue_name=queue).enqueue_many(((str(path),), {}) for _ in range(20))
    server.flush()
    run_burst()
    assert started(path) == 40
    assert set(Job.objects.values_list("status", flat=True)) == {"SUCCESSFUL"}


def test_a_flush_while_a_worker_waits_is_mended_by_it(server, settings, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "IDLE_CAP_SECONDS": 0.5}
    path = tmp_path / "ran"
    when = utcnow() + timedelta(days=1)
    with live_worker(), server.broker() as own:
        result = durable(tasks.note, run_after=when).enqueue(str(path))
        server.flush()
        wait_until(lambda: view(own, result).payload, 20, "the job to be put back")
        assert view(own, result).waits_until_ms == to_ms(row_of(result).wakes_at)
        assert backend().reschedule(result.id, timedelta(0))
        wait_until(lambda: row_of(result).status == "SUCCESSFUL", 20)
    assert started(path) == 1


def test_a_flush_grants_no_new_attempts_and_keeps_what_was_noted_of_the_former_ones(server, tmp_path):
    path = tmp_path / "tries"
    result = durable(tasks.flaky, max_attempts=3, backoff=0.001).enqueue(str(path), 9)
    run_burst(max_runs=2)
    server.flush()
    run_burst()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 3, 3)
    assert path.read_text() == "xxx"


def test_what_is_left_of_a_retrys_delay_is_waited_for_after_a_flush(server, broker, tmp_path):
    path = tmp_path / "tries"
    result = durable(tasks.flaky, max_attempts=2, backoff=3000).enqueue(str(path), 9)
    run_burst(max_runs=1)
    with server.broker() as own:
        before = view(own, result).waits_until_ms
        server.flush()
        run_burst()
        after = view(own, result).waits_until_ms
    assert abs(after - before) < 5000
    assert path.read_text() == "x"


def test_a_rebuild_of_some_shards_puts_back_what_belongs_there(server, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 2}
    durable(tasks.noop).enqueue_many(((), {}) for _ in range(30))
    with server.broker() as own:
        built(own)
        own.drop(own.shards())
        mine = own.shards(["default"])[1:]
        here = sum(own.shard_of(member, "default") in mine for member in Job.objects.values_list("member", flat=True))
        assert mirror.rebuild(own, mine)
        assert 0 < here == sum(counts(own)) < 30


def test_another_number_of_shards_keeps_every_durable_job_and_runs_it_once(server, settings, tmp_path):
    path = tmp_path / "ran"
    task = durable(tasks.note)
    task.using(run_after=timedelta(days=2)).enqueue_many(((str(path),), {}) for _ in range(10))
    task.enqueue_many(((str(path),), {}) for _ in range(20))
    with server.broker() as own:
        built(own)
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 3}
    with server.broker() as own:
        run_burst()
        assert (started(path), sum(counts(own))) == (20, 10)
        assert mirror.full_sweep(own).lines == []


def test_what_is_put_back_is_signed_with_the_key_of_today(server, settings, tmp_path):
    path = tmp_path / "ran"
    durable(tasks.note).enqueue(str(path))
    server.flush()
    settings.SECRET_KEY = "another one, without a fallback"
    run_burst()
    assert started(path) == 1


def test_a_full_sweep_puts_back_what_was_lost_of_a_shard_that_still_looks_built(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    built(broker)
    rows_of(result).update(mirrored=True)
    for part in ("jobs", "ready", "payload"):
        broker.client.delete(f"{{{broker.config.prefix}:default:0}}:{part}")
    assert mirror.delta_sweep(broker) == 0
    assert mirror.full_sweep(broker).lines == [f"job {result.id}: put back"]
    run_burst()
    assert started(path) == 1


@pytest.mark.parametrize("left", ["payload", "holder", "dead"])
def test_a_full_sweep_puts_back_a_job_of_which_redis_has_kept_a_part(broker, tmp_path, left):
    """What is left of it must not keep it out."""
    built(broker)
    result = durable(tasks.note).enqueue(str(tmp_path / "ran"))
    stored = Stored(result)
    stored.client.zrem(stored.names["ready"], stored.member)
    if left == "holder":
        stored.client.hset(stored.names["held"], stored.member, "1.e somebody")
    if left == "dead":
        stored.client.zadd(stored.names["dead"], {stored.member: 1})
    assert mirror.full_sweep(broker).lines == [f"job {result.id}: put back"]
    assert mirror.full_sweep(broker).lines == []
    run_burst()
    assert (row_of(result).status, started(tmp_path / "ran")) == ("SUCCESSFUL", 1)


def test_a_payload_that_somebody_else_wrote_is_dropped_and_the_jobs_own_is_put_back(broker, tmp_path):
    path = tmp_path / "ran"
    result = durable(tasks.note).enqueue(str(path))
    row = row_of(result)
    key = f"{{{broker.config.prefix}:default:0}}:payload"
    broker.client.hset(key, row.member, broker.client.hget(key, row.member).replace(b"ran", b"bad"))
    run_burst()
    assert sum(counts(broker)) == 0
    mirror.full_sweep(broker)
    run_burst()
    assert (started(path), (tmp_path / "bad").exists()) == (1, False)


def test_a_job_31_days_ahead_runs_once_at_its_time_across_a_flush_and_a_change_of_lease(
    server, monkeypatch, settings, tmp_path
):
    path = tmp_path / "ran"
    when = utcnow() + timedelta(days=31)
    result = durable(tasks.note, run_after=when).enqueue(str(path))
    run_burst()
    with server.broker() as own:
        clocks = SimulatedTime(monkeypatch.setattr, own)
        clocks.set(when - timedelta(days=10))
        run_burst()
        server.flush()
        clocks.set(when - timedelta(days=5))
        settings.DELAYQ = {**settings.DELAYQ, "LEASE_SECONDS": 3}
        run_burst()
        clocks.set(when - timedelta(seconds=20))
        run_burst()
        early = clocks.now() < when  # the clock goes on: a burst may take its twenty seconds
        assert (started(path), row_of(result).status) == (0, "READY") or not early
        clocks.set(when + timedelta(milliseconds=50))
        run_burst()
        assert started(path) == 1
        server.flush()
        clocks.set(when + timedelta(seconds=1))
        run_burst()
        assert (started(path), row_of(result).status) == (1, "SUCCESSFUL")
        assert backend().get_result(result.id).status == TaskResultStatus.SUCCESSFUL
        clocks.end()


# -- two executions, one outcome


def test_a_job_that_two_workers_execute_after_a_flush_has_one_outcome(server, settings, tmp_path):
    settings.DELAYQ = {**settings.DELAYQ, "IDLE_CAP_SECONDS": 0.5}
    path, gate = tmp_path / "ran", tmp_path / "gate"
    result = durable(tasks.stubborn).enqueue(str(path), str(gate))

    def begun():
        return path.read_text().count("start") if path.exists() else 0

    with live_worker("first"), live_worker("second"):
        wait_until(lambda: begun() == 1, 20)
        server.flush()
        wait_until(lambda: begun() == 2, 20)
        gate.touch()
        wait_until(lambda: row_of(result).status == "SUCCESSFUL", 20)
        first = row_of(result)
        wait_until(lambda: path.read_text().count("end") == 2, 20)
    # Each has ended, and with it whatever it would have written.
    assert (row_of(result).fence, row_of(result).state) == (first.fence, first.state)
    result.refresh()
    assert len(result.worker_ids) == 1


# -- the database is down


def test_an_outcome_waits_for_the_database_and_is_recorded_once(broker, tmp_path):
    path, gate = tmp_path / "ran", tmp_path / "gate"
    result = durable(tasks.stubborn).enqueue(str(path), str(gate))
    with live_worker():
        wait_until(path.exists, 10)
        with gone():
            gate.touch()
            wait_until(lambda: "end" in path.read_text(), 10)
            wait_until(lambda: counts(broker)[2] == 1, 1)
            time.sleep(0.5)  # it tries in vain
            assert counts(broker)[2] == 1
        wait_until(lambda: row_of(result).status == "SUCCESSFUL", 20)
        wait_until(lambda: sum(counts(broker)) == 0, 10)
    assert path.read_text().count("start") == 1


def test_without_the_database_no_durable_job_starts_and_none_is_lost(broker, monkeypatch, tmp_path):
    path = tmp_path / "ran"
    durable(tasks.note).enqueue(str(path))
    with live_worker() as live:
        wait_until(lambda: started(path) == 1, 10)
        with gone():
            put_by_hand(broker, path)
            wait_until(lambda: live.worker.trouble.until > time.monotonic(), 10)
            assert started(path) == 1
        wait_until(lambda: sum(counts(broker)) == 0, 20)  # its row was never there
    assert started(path) == 1


def put_by_hand(broker, path):
    """Put a durable job into Redis that has no row, without a look at the database."""
    preparer = Preparer("durable", lambda task: None, durable=True)
    [(_, (queue, job))] = preparer.prepare([(durable(tasks.note), (str(path),), {})])
    place = broker.shard_of(job.member, queue)
    JobBroker(broker).enqueue_each([(place, [job])], {place: broker.epochs([place])[0]}, again=False)
