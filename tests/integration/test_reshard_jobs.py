"""Jobs while the number of shards changes: all of them move, with what is known of them, and each runs once."""

from datetime import timedelta

import pytest

from django_delayq import mirror
from django_delayq.backend.listing import Flaw, find_job
from django_delayq.backend.sending import shared
from django_delayq.broker import Broker, JobBroker, JobSettlement, Shard
from django_delayq.compat import TaskResultStatus
from tests.acceptance.support import wait_until
from tests.app import tasks
from tests.integration.job_pages import forge, where
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
LATER = 3600


@pytest.fixture(autouse=True)
def forget():
    tasks.CALLS.clear()
    shared().forget()
    yield
    shared().forget()


def change(settings, shards):
    """Say another number of shards and move everything there; return how many were moved."""
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": shards}
    return mirror.reshard(Broker(timeout_seconds=5), say=lambda text: None, pause=lambda seconds: None)["default"]


def counts(queue="default"):
    jobs = JobBroker(Broker(timeout_seconds=5))
    found = jobs.counts([place for place in jobs.broker.shards() if place.queue == queue])
    return tuple(sum(values) for values in zip(*found, strict=True))


def test_a_durable_job_whose_key_the_database_guards_takes_none_in_its_new_shard(settings):
    run_burst()  # takes the prefix
    task = tasks.note.using(backend="durable", unique_key="k", run_after=timedelta(seconds=LATER))
    durable = task.enqueue("/dev/null")
    change(settings, 4)
    assert counts() == (1, 0, 0, 0)
    plain = tasks.note.using(unique_key="k").enqueue("/dev/null")
    assert plain.id != durable.id, "they do not see each other's keys"
    assert task.enqueue("/dev/null").id == durable.id


@pytest.mark.parametrize("later", [LATER / 2, LATER * 2])
def test_two_jobs_of_one_key_that_wait_are_both_moved(settings, later):
    """One waits for its next attempt, the other was enqueued while that one ran, and has the key."""
    run_burst()  # takes the prefix
    task = tasks.note.using(unique_key="k")
    tries = task.enqueue("/dev/null")
    jobs = JobBroker(Broker(timeout_seconds=5))
    claim = jobs.claim(Shard("default", 0), limit=1, lease_ms=30_000, request=1)
    waits = tasks.note.using(unique_key="k", run_after=timedelta(seconds=later)).enqueue("/dev/null")
    (entry,) = claim.entries
    again = JobSettlement(entry.member, claim.holder, "retry", LATER * 1000, entry.payload)
    assert jobs.settle(Shard("default", 0), [again], dead_ms=1, dead_most=1).replies == [1]
    assert counts() == (2, 0, 0, 0)
    change(settings, 4)
    assert counts() == (2, 0, 0, 0)
    assert task.enqueue("/dev/null").id in (tries.id, waits.id)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (5, 3)])
def test_what_waits_is_dead_or_is_done_is_found_in_its_new_shard(settings, before, after):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": before}
    run_burst()  # takes the prefix
    done = [tasks.add.enqueue(n, 100) for n in range(5)]
    dead = [tasks.fail.enqueue(f"fails {n}") for n in range(5)]
    run_burst()
    ready = [tasks.add.using(priority=n % 3).enqueue(n) for n in range(20)]
    later = tasks.add.using(run_after=timedelta(seconds=LATER)).enqueue_many(((n,), {}) for n in range(20))
    one = tasks.note.using(unique_key="k", run_after=timedelta(seconds=LATER)).enqueue("/dev/null")
    assert counts() == (21, 20, 0, 5)
    tasks.CALLS.clear()

    assert change(settings, after) > 0
    assert counts() == (21, 20, 0, 5)
    assert tasks.note.using(unique_key="k").enqueue("/dev/null").id == one.id
    for result, status in [
        (done[0], TaskResultStatus.SUCCESSFUL),
        (dead[0], TaskResultStatus.FAILED),
        (later[0], "READY"),
    ]:
        result.refresh()
        assert result.status == status
    run_burst()
    assert sorted(tasks.CALLS) == [(n, 1) for n in range(20)]
    assert counts() == (21, 0, 0, 5)
    for n, result in enumerate(ready):
        result.refresh()
        assert result.return_value == n + 1
    assert change(settings, before) > 0
    for n, result in enumerate([*done, *ready]):
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL, n


@pytest.mark.parametrize("text", ["forged\n{}", b"\xff\xfe"])
def test_what_cannot_be_read_here_moves_too(settings, broker, text):
    """It may be signed with a key that only other processes have by now, and they look for it in its new shard."""
    run_burst()
    task = tasks.add.using(priority=-3)
    results = [*task.enqueue_many(((n,), {}) for n in range(8)), task.using(unique_key="k").enqueue(8)]
    for result in results:
        forge(broker, result.id, text)
    assert change(settings, 4) > 0
    assert counts() == (0, 9, 0, 0)
    now = Broker(timeout_seconds=5)
    for result in results:
        assert find_job(now, result.id).flaw == Flaw.FORGED
        jobs, place, member = where(now, result.id)
        assert jobs.labels(place, member)[0] == -3
    assert task.using(unique_key="k").enqueue(9).id == results[-1].id


def test_what_was_handed_back_by_who_took_it_over_moves(settings, broker):
    """It is marked, as an execution may have begun before; the mark is nobody's."""
    run_burst()
    results = tasks.add.enqueue_many(((n,), {}) for n in range(8))
    jobs, place = JobBroker(broker), Shard("default", 0)
    claim = jobs.claim(place, limit=8, lease_ms=60_000, request=1)
    back = [JobSettlement(entry.member, claim.holder, "release", LATER * 1000, "lapsed") for entry in claim.entries]
    assert jobs.settle(place, back, dead_ms=1, dead_most=1).replies == [1] * 8
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 4}
    looks = iter(range(3))
    moved = mirror.reshard(Broker(timeout_seconds=5), say=lambda text: None, pause=lambda seconds: next(looks))
    assert moved["default"] > 0
    for result in results:
        jobs, place, member = where(Broker(timeout_seconds=5), result.id)
        assert jobs.view(place, member).waits_until_ms


def test_a_process_that_still_counts_as_before_adds_where_they_are_now(settings):
    run_burst()
    tasks.add.enqueue(1)
    former = settings.DELAYQ
    change(settings, 3)
    sender = shared()
    settings.DELAYQ = former  # as an old process has it
    assert shared() is sender
    results = [tasks.add.enqueue(n) for n in range(12)]
    assert tasks.add.get_result(results[0].id).status == "READY"
    settings.DELAYQ = {**former, "SHARDS": 3}
    assert counts() == (0, 13, 0, 0)
    run_burst()
    assert sorted(tasks.CALLS) == sorted([(1, 1), *((n, 1) for n in range(12))])


def test_what_a_worker_holds_stays_until_it_has_ended_and_is_never_run_twice(settings, broker):
    run_burst()
    results = [tasks.add.enqueue(n) for n in range(30)]
    holder = JobBroker(Broker(timeout_seconds=5, worker="other"))
    claim = holder.claim(Shard("default", 0), limit=8, lease_ms=30_000, request=1)
    assert len(claim.entries) == 8
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 8}
    said = []

    def settle_meanwhile(seconds):
        for entry in claim.entries:
            item = JobSettlement(entry.member, claim.holder, "done")
            assert holder.settle(Shard("default", 0), [item], dead_ms=1, dead_most=1).replies == [1]

    moved = mirror.reshard(Broker(timeout_seconds=5), say=said.append, pause=settle_meanwhile)
    assert len(said) == 1
    assert moved["default"] >= 8
    run_burst()
    held = {f"default.{entry.member[1:]}" for entry in claim.entries}
    expected = sorted((n, 1) for n, result in enumerate(results) if result.id not in held)
    assert sorted(tasks.CALLS) == expected


def test_an_interrupted_move_is_finished_by_the_next_one(settings, monkeypatch):
    run_burst()
    tasks.add.enqueue_many(((n,), {}) for n in range(12))
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 4}
    change_one = JobBroker.change
    left = iter(range(3))

    def dies(self, *args, **kwargs):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return change_one(self, *args, **kwargs)

    monkeypatch.setattr(JobBroker, "change", dies)
    with pytest.raises(KeyboardInterrupt):
        mirror.reshard(Broker(timeout_seconds=5), say=lambda text: None)
    monkeypatch.undo()
    run_burst()  # while some are in both places
    mirror.reshard(Broker(timeout_seconds=5), say=lambda text: None, pause=lambda seconds: None)
    wait_until(lambda: (run_burst(), len(tasks.CALLS) >= 12)[1])  # what was handed back comes due a second later
    assert sorted(tasks.CALLS) == [(n, 1) for n in range(12)]
    assert counts() == (0, 0, 0, 0)
