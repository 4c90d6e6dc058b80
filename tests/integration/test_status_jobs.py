"""What `delayq_status` tells of jobs: how many wait, are due or have failed, and what is wrong."""

from datetime import timedelta

import pytest

from django_delayq.broker import Broker
from django_delayq.fields import utcnow
from django_delayq.models import Origin, Run
from django_delayq.status import database_side
from tests.app import tasks
from tests.integration.probing import ask, beat, build, codes, text
from tests.jobs.support import Standing
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
NAMES = ("members", "due", "leased", "jobs", "jobs_due")


@pytest.fixture
def built(broker):
    build(broker)
    return broker


def enqueue(number=1, queue="default", **options):
    return tasks.noop.using(queue_name=queue, **options).enqueue_many([([], {})] * number)


def claim(broker, limit):
    (place,) = [place for place in broker.shards() if place.queue == "default"]
    return broker.claim(place, limit=limit, lease_ms=30_000, request=1)


def queues():
    """Return the sums of each queue, and the longest wait in it."""
    found = {}
    for shard in ask()[1]["shards"]:
        sums, oldest = found.setdefault(shard["queue"], ([0] * 5, []))
        sums[:] = [mine + shard[name] for mine, name in zip(sums, NAMES, strict=True)]
        oldest += [shard["oldest_due"]] if shard["oldest_due"] is not None else []
    return {queue: (sums, max(oldest, default=None)) for queue, (sums, oldest) in found.items()}


def age(result, seconds):
    """Let a job that is due have been so for so many seconds longer."""
    found = Standing(result)
    found.client.zincrby(found.names["jobs"], -seconds * 1000, found.member)
    found.client.hincrby(found.names["point"], found.member, -seconds * 1000)


def fail(queue, status="failed", origin=Origin.JOB, number=1):
    now = utcnow()
    values = {"queue": queue, "status": status, "origin": origin, "apart": True, "task": "t", "generation": 1}
    points = [now + timedelta(seconds=n) for n in range(number)]
    Run.objects.bulk_create([Run(due_at=point, token=f"{point:%H%M%S%f}", **values) for point in points])


def test_it_counts_the_jobs_of_each_queue(built):
    enqueue(3, run_after=timedelta(hours=1))
    enqueue(2)
    enqueue(1, queue="mail")
    found = queues()
    assert (found["default"][0], found["mail"][0]) == ([5, 2, 0, 5, 2], [1, 1, 0, 1, 1])
    assert claim(built, 2).entries
    assert queues()["default"] == ([5, 0, 2, 5, 0], None)
    assert "Queue default: 5 entries (5 jobs), 0 due (0 jobs), 2 leased" in text().splitlines()


@pytest.mark.parametrize("shards", [1, 3])
def test_the_oldest_of_all_shards_is_told(settings, prefix, shards):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": shards}
    broker = Broker(timeout_seconds=5, worker="test")
    build(broker)
    age(enqueue(12)[7], 500)
    sums, oldest = queues()["default"]
    assert sums[-1] == 12 and 500 <= oldest < 530
    broker.close()


@pytest.mark.parametrize("priority", [100, -100])
def test_of_those_whose_turn_it_is_the_first_tells_how_long_it_has_waited_whatever_its_priority(built, priority):
    waiting = enqueue(5, priority=priority)
    assert claim(built, 1).entries, "the others have moved on to their turn"
    assert Standing(waiting[4]).view.score_ms == 0
    assert 0 <= queues()["default"][1] < 60
    for result in waiting[1:]:
        found = Standing(result)
        found.client.zincrby(found.names["jobs-ready"], -500_000, found.member)
    assert 500 <= queues()["default"][1] < 560


def test_a_retry_whose_turn_it_is_has_not_waited_since_it_was_enqueued(built):
    others = enqueue(5)[1:]
    assert claim(built, 1).entries
    found = Standing(others[0])
    found.client.zincrby(found.names["jobs-ready"], -500_000, found.member)
    found.client.hset(found.names["attempts"], found.member, 1)
    assert 0 <= queues()["default"][1] < 60


def test_a_queue_without_a_worker_in_which_a_job_has_been_due_for_long_is_one_problem(built):
    beat(built, {"queues": ["mail"], "started": 1})
    (result,) = enqueue()
    assert codes() == (0, []), "another host may be about to serve it"
    age(result, 100)
    (problem,) = ask()[1]["problems"]
    assert (problem["code"], problem["queue"]) == ("no_worker", "default")
    assert "1 schedule, run or job of it cannot start" in problem["message"] and "delayq_worker" in problem["message"]
    assert codes("--max-lag", "1000") == (0, [])
    beat(built)
    assert codes() == (1, ["overdue"])


def test_after_a_worker_has_run_them_nothing_is_left(built):
    enqueue(5)
    run_burst()
    assert queues()["default"] == ([0, 0, 0, 0, 0], None)


def test_jobs_that_have_failed_are_counted_among_the_newest_failures(built, monkeypatch):
    assert (ask()[1]["database"]["failed_jobs"], "failed jobs 0" in text()) == (0, True)
    for queue, status in (("default", "failed"), ("mail", "lost"), ("of nobody", "failed")):
        fail(queue, status)
    fail("default", origin=Origin.MANUAL)
    fail("default", "skipped")
    assert ask()[1]["database"]["failed_jobs"] == 3
    assert "failed jobs 3" in text()
    fail("default", number=5)
    monkeypatch.setattr(database_side, "MOST_READ", 4)
    assert ask()[1]["database"]["failed_jobs"] == 5, "of each status the newest are looked at"
