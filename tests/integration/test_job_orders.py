"""What people do to jobs by their ids: cancel, run now, revive, delete; also to those in another state."""

from datetime import timedelta

import pytest

from django_delayq import registry
from django_delayq.backend import operating
from django_delayq.backend.listing import JobState, find_job
from django_delayq.backend.operating import Outcome
from django_delayq.broker import Broker, keys
from django_delayq.compat import TaskResultStatus, task_backends
from django_delayq.exceptions import BrokerUnavailable
from tests.app import tasks
from tests.integration.admin_pages import kill_redis
from tests.integration.job_pages import LEASE_MS, build, claim, counts, dead, forge, ready, waiting, where
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS = {
    "cancel": operating.cancel, "run_now": operating.run_now, "revive": operating.revive, "delete": operating.delete,
}  # fmt: skip
NOBODY = f"default.{'A' * 22}"


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"], autouse=True)
def jobs(request, settings, broker):
    """A built prefix, with one shard and with several."""
    tasks.CALLS.clear()
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": request.param}
    made = Broker(timeout_seconds=5, worker="test")
    build(made)
    yield made
    made.close()


def result_of(wanted):
    return task_backends["default"].get_result(wanted)


def test_a_cancelled_job_is_never_executed_and_its_result_says_so(jobs):
    for wanted in (waiting(1), ready(2)):
        assert operating.cancel(jobs, wanted) == Outcome.DONE
        result = result_of(wanted)
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class_path == "django_delayq.exceptions.JobCancelled"
        assert operating.cancel(jobs, wanted) == Outcome.GONE
    run_burst()
    assert tasks.CALLS == []
    assert counts(jobs) == (0, 0, 0, 0)


def test_a_job_that_is_run_now_is_executed_at_once(jobs):
    wanted, other = waiting(1), waiting(2)
    assert operating.run_now(jobs, wanted) == Outcome.DONE
    assert find_job(jobs, wanted).state == JobState.READY, "by the clock of Redis, whatever that of this process says"
    run_burst()
    assert tasks.CALLS == [(1, 1)]
    assert result_of(wanted).status == TaskResultStatus.SUCCESSFUL
    assert find_job(jobs, other).state == JobState.WAITING
    assert operating.run_now(jobs, wanted) == Outcome.GONE


def test_a_job_that_is_ready_keeps_its_turn_when_it_is_to_run_now(jobs):
    first, second = ready(1), ready(2)
    _, place, member = where(jobs, first)
    name = f"{{{jobs.config.prefix}:{place}}}:ready"
    before = jobs.client.zscore(name, member)
    assert operating.run_now(jobs, first) == Outcome.READY
    assert jobs.client.zscore(name, member) == before
    assert find_job(jobs, second).state == JobState.READY


def test_a_revived_job_starts_anew_as_it_was_enqueued(jobs):
    task = tasks.add.using(priority=7, max_attempts=3)
    wanted = dead(jobs, task, 20, attempts=3, b=22)
    assert operating.revive(jobs, wanted) == Outcome.DONE
    seen = find_job(jobs, wanted)
    assert (seen.state, seen.call.priority, seen.call.max_attempts) == (JobState.READY, 7, 3)
    assert (seen.record.errors, seen.record.workers, seen.record.status) == ([], [], "")
    _, place, member = where(jobs, wanted)
    assert jobs.client.hget(keys.all_keys(jobs.config.prefix, place)["priority"], member) == b"7"
    assert counts(jobs) == (0, 1, 0, 0)
    assert operating.revive(jobs, wanted) == Outcome.NOT_DEAD
    run_burst()
    assert tasks.CALLS == [(20, 22)]
    result = result_of(wanted)
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 42, 1)


def test_a_revived_job_has_all_its_attempts_again(jobs, tmp_path):
    path = tmp_path / "flaky"
    wanted = tasks.flaky.using(max_attempts=2, backoff=timedelta(0)).enqueue(str(path), 3).id
    run_burst()
    assert find_job(jobs, wanted).state == JobState.DEAD
    assert len(path.read_text()) == 2
    assert operating.revive(jobs, wanted) == Outcome.DONE
    run_burst()
    assert len(path.read_text()) == 4
    assert result_of(wanted).return_value == "attempt 4"


@pytest.fixture(params=["default", "durable", "stored"])
def once(request, tmp_path):
    """A task with a unique key, of each kind of alias, that fails at first; and what lets it succeed."""
    return tasks.flaky.using(backend=request.param, unique_key="k"), (str(tmp_path / "tries"), 1)


def test_a_revived_job_takes_its_unique_key_again_until_it_is_claimed(jobs, once):
    task, args = once
    wanted = task.enqueue(*args).id
    run_burst()
    assert operating.revive(jobs, wanted) == Outcome.DONE
    assert task.enqueue(*args).id == wanted, "the same key returns the job that waits"
    run_burst()
    assert task_backends[task.backend].get_result(wanted).status == TaskResultStatus.SUCCESSFUL
    assert task.enqueue(*args).id != wanted


def test_a_dead_job_is_not_revived_while_another_one_of_its_key_waits(jobs, once):
    task, args = once
    wanted = task.enqueue(*args).id
    run_burst()
    other = task.enqueue(*args).id
    assert other != wanted, "a dead job has no key"
    assert operating.revive(jobs, wanted) == Outcome.KEY_TAKEN
    assert find_job(jobs, wanted).state == JobState.DEAD
    result = task_backends[task.backend].get_result(wanted)
    assert (result.status, len(result.errors)) == (TaskResultStatus.FAILED, 1)
    assert task.enqueue(*args).id == other
    run_burst()
    assert operating.revive(jobs, wanted) == Outcome.DONE, "the other one has begun"


def test_of_two_dead_jobs_of_one_key_one_is_revived_at_a_time(jobs, once):
    task, args = once
    path, _ = args
    made = []
    for _ in range(2):
        made.append(task.enqueue(path, 9).id)
        run_burst()
    assert [operating.revive(jobs, wanted) for wanted in made] == [Outcome.DONE, Outcome.KEY_TAKEN]


def test_a_deleted_job_is_gone(jobs):
    wanted, other = dead(jobs), dead(jobs)
    assert operating.delete(jobs, wanted) == Outcome.DONE
    assert find_job(jobs, wanted) is None
    assert counts(jobs) == (0, 0, 0, 1)
    assert operating.delete(jobs, wanted) == Outcome.GONE
    assert find_job(jobs, other).state == JobState.DEAD


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_worker_holds_is_left_to_it(jobs, order):
    wanted = ready()
    holder = claim(jobs, wanted)
    expected = Outcome.HELD if order in ("cancel", "run_now") else Outcome.NOT_DEAD
    assert ORDERS[order](jobs, wanted) == expected
    broker, place, member = where(jobs, wanted)
    assert broker.renew(place, [(member, holder)], lease_ms=LEASE_MS) == set()


@pytest.mark.parametrize("order", ["cancel", "run_now"])
def test_a_dead_job_is_neither_cancelled_nor_run_now(jobs, order):
    wanted = dead(jobs)
    assert ORDERS[order](jobs, wanted) == Outcome.DEAD
    assert find_job(jobs, wanted).state == JobState.DEAD


@pytest.mark.parametrize("order", ["revive", "delete"])
def test_a_job_that_is_not_dead_is_neither_revived_nor_deleted(jobs, order):
    for wanted in (waiting(), ready()):
        before = find_job(jobs, wanted)
        assert ORDERS[order](jobs, wanted) == Outcome.NOT_DEAD
        after = find_job(jobs, wanted)
        assert (after.state, after.at_ms, after.size) == (before.state, before.at_ms, before.size)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wanted", [NOBODY, "", "default.x", f"other.{'A' * 22}", "default.j", "\x00", "x" * 1000])
def test_what_is_no_job_is_gone(jobs, order, wanted):
    assert ORDERS[order](jobs, wanted) == Outcome.GONE


def test_what_is_not_signed_is_never_signed(jobs):
    """Else whoever can write to Redis would only have to wait for somebody to press a button."""
    text = 'x\n{"task":"tests.app.tasks.add","args":[1],"kwargs":{},"backend":"default","enqueued":1}'
    wanted = dead(jobs)
    forge(jobs, wanted, text)
    assert operating.revive(jobs, wanted) == Outcome.UNREADABLE
    broker, place, member = where(jobs, wanted)
    assert broker.view(place, member).payload == text
    assert operating.delete(jobs, wanted) == Outcome.DONE
    wanted = waiting()
    forge(jobs, wanted, text)
    _, place, member = where(jobs, wanted)
    assert operating.run_now(jobs, wanted) == Outcome.DONE
    assert broker.view(place, member).payload == text
    assert operating.cancel(jobs, wanted) == Outcome.DONE
    assert broker.view(place, member).result == ""
    run_burst()
    assert tasks.CALLS == []


@pytest.mark.parametrize("change", ["task", "alias"])
def test_jobs_that_this_code_does_not_know_can_be_changed_all_the_same(jobs, settings, monkeypatch, change):
    made = [waiting(1), waiting(2), dead(jobs), dead(jobs)]
    if change == "task":
        monkeypatch.setattr(registry, "_tasks", {})
    else:
        settings.TASKS = {"other": settings.TASKS["default"]}
    for wanted, order in zip(made, ORDERS, strict=True):
        assert ORDERS[order](jobs, wanted) == Outcome.DONE, order
    assert counts(jobs) == (0, 2, 0, 0)
    assert find_job(jobs, made[0]).record.status == "FAILED"


def test_a_lost_redis_is_told(jobs, settings):
    wanted, good = waiting(), settings.CACHES
    try:
        kill_redis(settings)
        broken = Broker(timeout_seconds=0.3)
        for order in ORDERS.values():
            with pytest.raises(BrokerUnavailable):
                order(broken, wanted)
    finally:
        settings.CACHES = good  # the prefix is purged after this
