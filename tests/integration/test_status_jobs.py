"""What `delayq_status` tells of jobs: how many in which state, how long the next one waits, and when that is wrong."""

from datetime import timedelta

import pytest

from django_delayq import status
from django_delayq.broker import Broker
from django_delayq.status import as_json, database_side, shown
from django_delayq.status.snapshot import JobsView, RedisView, Snapshot
from tests.acceptance.support import wait_until
from tests.integration.job_pages import claim, dead, dead_row, ready, waiting, where
from tests.integration.probing import ALIVE, SHARD, ask, beat, build, codes, text
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def built(broker):
    build(broker)
    return broker


def age(broker, wanted, seconds, part="ready"):
    """Pretend that a job has been ready, or due, for so many seconds."""
    _, place, member = where(broker, wanted)
    name = f"{{{broker.config.prefix}:{place}}}:{part}"
    score = broker.client.zscore(name, member)
    broker.client.zadd(name, {member: score - seconds * (10**6 if part == "ready" else 1000)})


def jobs():
    return {found["queue"]: found for found in ask()[1]["jobs"]}


def test_it_counts_the_jobs_of_each_queue_by_state(built):
    dead(built)
    claim(built, ready())
    for n in range(3):
        waiting(n)
    ready(), ready()
    ready(queue="mail")
    found = jobs()
    assert set(found["default"]) == {"queue", "waiting", "ready", "running", "dead", "oldest_ready"}
    assert [found["default"][name] for name in ("waiting", "ready", "running", "dead")] == [3, 2, 1, 1]
    assert [found["mail"][name] for name in ("waiting", "ready", "running", "dead")] == [0, 1, 0, 0]
    assert 0 <= found["default"]["oldest_ready"] < 30
    line = next(line for line in text().splitlines() if line.startswith("Jobs"))
    assert line.split() == ["Jobs", "waiting", "ready", "running", "dead", "oldest", "ready"]


def test_durable_jobs_that_are_dead_are_counted_where_they_stand(built, monkeypatch):
    assert (ask()[1]["dead_durable_jobs"], "Dead jobs" in text()) == (0, False)
    dead(built)
    for queue in ("default", "mail", "mail", "of nobody"):
        dead_row(queue=queue)
    assert (jobs()["default"]["dead"], ask()[1]["dead_durable_jobs"]) == (1, 3)
    assert "Dead jobs  3 in the database; those in Redis are below" in text().splitlines()
    for module in (database_side, as_json, shown):
        monkeypatch.setattr(module, "MOST_COUNTED", 2)
    found = ask()[1]
    assert (found["dead_durable_jobs"], found["capped"]) == (2, ["dead_durable_jobs"])
    assert "Dead jobs  more than 2 in the database; those in Redis are below" in text().splitlines()


@pytest.mark.parametrize("shards", [1, 3])
def test_the_counts_of_several_shards_are_summed_and_the_oldest_of_all_is_told(settings, prefix, shards):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": shards}
    broker = Broker(timeout_seconds=5, worker="test")
    build(broker)
    made = [ready(n) for n in range(12)]
    age(broker, made[7], 500)
    found = jobs()["default"]
    assert found["ready"] == 12
    assert 500 <= found["oldest_ready"] < 530
    broker.close()


def test_a_priority_does_not_count_as_time(built):
    ready(priority=100)
    ready(priority=-100)
    assert jobs()["default"]["oldest_ready"] < 30


def test_what_waits_for_a_time_is_not_late_and_what_has_come_due_is_although_nobody_claims(built):
    one = waiting()
    assert jobs()["default"]["oldest_ready"] is None
    age(built, one, 3600 + 100, "jobs")
    assert 100 <= jobs()["default"]["oldest_ready"] < 130
    assert jobs()["default"]["waiting"] == 1


def test_a_job_that_is_ready_for_long_in_a_queue_that_nobody_serves_is_a_problem(built):
    beat(built, {"queues": ["mail"], "started": 1})
    one = ready()
    assert codes() == (0, [])
    age(built, one, 100)
    found = ask()[1]
    (problem,) = (problem for problem in found["problems"] if problem["code"] == "jobs_without_worker")
    assert problem["queue"] == "default"
    assert "1 job in all" in problem["message"] and "delayq_worker" in problem["message"]
    assert "jobs_without_worker" not in codes("--max-lag", "1000")[1]
    beat(built)
    assert "jobs_without_worker" not in codes()[1]


def test_after_a_worker_has_run_them_nothing_is_left(built):
    for n in range(5):
        ready(n)
    waiting(after=timedelta(milliseconds=300))
    wait_until(lambda: (run_burst(), jobs()["default"]["waiting"] == 0)[1])
    assert jobs()["default"] == {
        "queue": "default", "waiting": 0, "ready": 0, "running": 0, "dead": 0, "oldest_ready": None,
    }  # fmt: skip
    assert "Jobs: none" in text()


def test_queues_without_jobs_are_left_out_of_the_table_and_the_rest_is_aligned():
    queues = (JobsView("default", 0, 0, 0, 0, None), JobsView("mail", 12345, 2, 3, 4, 7.0))
    redis = RedisView((ALIVE,), (SHARD,), jobs=queues)
    lines = [line for _, line in status.as_lines(Snapshot("a", "p", redis), [])]
    at = next(number for number, line in enumerate(lines) if line.startswith("Jobs"))
    assert lines[at + 1].split() == ["mail", "12345", "2", "3", "4", "7.0", "s", "ago"]
    assert lines[at + 2] == ""
    assert len(lines[at]) == len(lines[at + 1])
