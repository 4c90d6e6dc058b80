"""Durable jobs that are dead: listed with those of Redis, looked at, revived and deleted in the database."""

import json
import sys
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import ledger, mirror
from django_delayq.backend import listing, operating
from django_delayq.backend.listing import JobState, find_job, find_stored, list_ended, list_jobs, shards_of
from django_delayq.backend.operating import Outcome
from django_delayq.broker import Broker, Shard
from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.fields import utcnow
from django_delayq.ledger import JobOutcome, Won
from django_delayq.models import Job
from django_delayq.timing import from_ms, to_ms
from tests.app import tasks
from tests.faults.harness.servers import pointing_at
from tests.integration.job_pages import dead as dead_in_redis
from tests.jobs.durable_support import backend, built, counts, durable, put, row_of, rows_of, view
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
NOBODY = "redis://127.0.0.1:1/0"
NOTHING = (0, 0, 0, 0)
START_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def index(broker):
    built(broker)


def died(*args, task=tasks.fail, **options):
    """Enqueue a durable job and let it fail for good; return its result."""
    result = durable(task, **options).enqueue(*args)
    run_burst()
    assert row_of(result).status == "FAILED"
    return result


def made(died_ms, queue="default", number=0, **values):
    """Insert the row of a dead job as a worker leaves it."""
    call = json.dumps(
        {"task": "tests.app.tasks.add", "args": [number], "kwargs": {}, "backend": "durable", "enqueued": 1}
    )
    when = from_ms(died_ms)
    row = Job(
        member=f"j{queue[0]}{died_ms:015}{number:06}", queue=queue, backend="durable", task="tests.app.tasks.add",
        status="FAILED", attempt=1, mirrored=True, finished_at=when, died_at=when,
        expires_at=utcnow() + timedelta(days=1), call=call, state='{"status":"FAILED"}',
    )  # fmt: skip
    for name, value in values.items():
        setattr(row, name, value)
    return row


def ids(broker, size=100, queues=("default", "mail")):
    """Return the ids of all pages of dead jobs."""
    found, after = [], ""
    while True:
        page = list_jobs(broker, shards_of(broker, queues), JobState.DEAD, size=size, after=after)
        found += [job.result_id for job in page.jobs]
        assert len(page.jobs) <= size
        if not page.after:
            return found
        assert (len(page.jobs), len(found) < 1000) == (size, True)
        after = page.after


# -- when it died


def test_a_durable_job_is_dead_when_its_last_attempt_failed_and_not_before(broker, tmp_path):
    result = durable(tasks.flaky, max_attempts=2, backoff=0.001).enqueue(str(tmp_path / "tries"), 9)
    run_burst(max_runs=1)
    assert (row_of(result).attempt, row_of(result).died_at, ids(broker)) == (1, None, [])
    run_burst()
    row = row_of(result)
    assert (row.attempt, row.died_at, ids(broker)) == (2, row.finished_at, [result.id])


def test_what_succeeded_was_cancelled_or_is_dead_in_redis_has_not_died_in_the_database(broker):
    good, cancelled = durable(tasks.add).enqueue(1), durable(tasks.add, run_after=timedelta(hours=1)).enqueue(2)
    assert backend().cancel(cancelled.id)
    plain = tasks.fail.using(backend="stored").enqueue()
    run_burst()
    assert [row_of(result).died_at for result in (good, cancelled, plain)] == [None, None, None]
    assert ids(broker) == [plain.id], "once, although it has a row too"


# -- pages


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_pages_hold_each_dead_job_of_redis_and_of_the_database_once_in_one_order(broker, size):
    shared = [dead_in_redis(broker) for _ in range(4)]
    at = {wanted: find_job(broker, wanted).at_ms for wanted in shared}
    rows = [made(at[shared[n % 4]] + (-1, 0, 1)[n % 3], ("default", "mail")[n % 2], n) for n in range(15)]
    rows += [made(START_MS, number=100 + n) for n in range(5)]
    Job.objects.bulk_create(rows)
    at |= {row.result_id: to_ms(row.died_at) for row in rows}
    found = ids(broker, size)
    assert (len(found), set(found)) == (24, set(at))
    assert [at[wanted] for wanted in found] == sorted(at.values(), reverse=True)
    assert ids(broker, size, ("mail",)) == [row.result_id for row in reversed(rows_in(rows, "mail"))]


def rows_in(rows, queue):
    return sorted((row for row in rows if row.queue == queue), key=lambda row: (row.died_at, row.pk))


def test_what_comes_between_two_pages_pushes_nothing_out(broker):
    Job.objects.bulk_create([made(START_MS + n, number=n) for n in range(10)])
    places = shards_of(broker, ("default",))
    first = list_jobs(broker, places, JobState.DEAD, size=5)
    Job.objects.bulk_create([made(START_MS + 1000 + n, number=n) for n in range(3)])
    second = list_jobs(broker, places, JobState.DEAD, size=5, after=first.after)
    assert [job.at_ms - START_MS for job in (*first.jobs, *second.jobs)] == list(range(9, -1, -1))
    assert second.after == ""


def test_what_has_expired_is_not_listed(broker):
    Job.objects.bulk_create([made(START_MS, number=1), made(START_MS, number=2, expires_at=utcnow())])
    assert len(ids(broker)) == 1


def test_a_page_reads_no_more_texts_than_it_shows_and_asks_as_much_whatever_the_number(broker):
    Job.objects.bulk_create([made(START_MS + n, number=n) for n in range(300)])
    for after in ("", f"|{START_MS + 150}.0"):
        with CaptureQueriesContext(connection) as queries:
            page = list_ended(JobState.DEAD, ["default", "mail"], size=10, after=after)
        assert (len(page.jobs), len(queries)) == (10, 3)  # one per queue, one for the texts


@pytest.mark.skipif(connection.vendor != "sqlite", reason="asks SQLite for its plan")
@pytest.mark.parametrize("after", [None, (from_ms(START_MS), 7)])
@pytest.mark.parametrize(("dead", "index"), [(True, "delayq_job_dead"), (False, "delayq_job_succeeded")])
def test_pages_and_counts_are_read_on_the_index_without_sorting(dead, index, after):
    pages = ledger.ended._listed("default", after, dead=dead)[:50]
    for rows in (pages, *([ledger.ended._dead("default").values("pk")[:1001]] if dead else [])):
        assert index in rows.explain()
        assert "TEMP B-TREE" not in rows.explain()


def test_dead_jobs_are_counted_up_to_a_number(broker, monkeypatch):
    dead_in_redis(broker)
    Job.objects.bulk_create([made(START_MS, ("default", "mail")[n % 2], n) for n in range(6)])
    places = shards_of(broker, ("default", "mail"))
    assert listing.count_jobs(broker, places) == (0, 0, 0, 7, False)
    assert listing.count_jobs(broker, shards_of(broker, ("mail",))) == (0, 0, 0, 3, False)
    monkeypatch.setattr(listing, "MOST_COUNTED", 5)
    assert listing.count_jobs(broker, places) == (0, 0, 0, 6, True)


@pytest.mark.parametrize(
    "after", ["|", "|1", "|1.", "|x.y", "|99999999999999999999.1", "a|b|c", "|1.1|1.1", "1~default:0"]
)
def test_nonsense_begins_at_the_first_page(after):
    Job.objects.bulk_create([made(START_MS)])
    assert len(list_ended(JobState.DEAD, ["default"], size=5, after=after).jobs) == 1


# -- one job


def test_a_dead_job_is_told_by_its_row_also_without_redis(broker):
    result = died("why")
    for find in (find_stored, lambda wanted: find_job(Broker(timeout_seconds=0.2), wanted)):
        with pointing_at(NOBODY):
            seen = find(result.id)
        assert (seen.state, seen.shard, seen.in_database) == (JobState.DEAD, Shard("default", 0), True)
        assert (seen.call.args, seen.record.errors[0][0], seen.flaw) == (["why"], "builtins.RuntimeError", None)
        assert seen.at_ms == to_ms(row_of(result).died_at)


def test_a_durable_job_is_told_with_what_its_row_says_in_every_state(broker, tmp_path):
    good, cancelled = durable(tasks.add).enqueue(1), durable(tasks.add, run_after=timedelta(hours=1)).enqueue(2)
    again = durable(tasks.flaky, max_attempts=3, backoff=60).enqueue(str(tmp_path / "tries"), 9)
    assert backend().cancel(cancelled.id)
    run_burst()
    with pointing_at(NOBODY):
        missed = durable(tasks.add).enqueue(3)
    seen = {result.id: find_job(broker, result.id) for result in (good, cancelled, again, missed)}
    assert [job.state for job in seen.values()] == [
        JobState.ENDED, JobState.ENDED, JobState.WAITING, JobState.WAITING,
    ]  # fmt: skip
    assert (seen[good.id].record.value, seen[cancelled.id].record.status) == (2, "FAILED")
    assert len(seen[again.id].record.errors) == 1, "which Redis does not know"
    (listed,) = list_jobs(broker, shards_of(broker, ("default",)), JobState.WAITING, size=5).jobs
    assert (listed.result_id, len(listed.record.workers)) == (again.id, 1)


def test_a_list_without_durable_jobs_asks_the_database_for_no_states(broker):
    tasks.add.using(run_after=timedelta(hours=1)).enqueue(1)
    with CaptureQueriesContext(connection) as queries:
        assert list_jobs(broker, shards_of(broker, ("default",)), JobState.WAITING, size=5).jobs
    assert [query["sql"] for query in queries if "delayq_job" in query["sql"]] == []


@pytest.mark.parametrize("call", ["nonsense", '{"task":"x","from":"the future"}'])
def test_a_row_that_cannot_be_read_is_told_as_such_and_not_revived(broker, call):
    row = made(START_MS, call=call)
    row.save()
    assert (find_job(broker, row.result_id).flaw, len(ids(broker))) == ("unreadable", 1)
    assert operating.revive(broker, row.result_id) == Outcome.UNREADABLE
    assert operating.delete(broker, row.result_id) == Outcome.DONE


# -- revive


def test_a_revived_job_starts_anew_as_it_was_enqueued_and_keeps_its_result_id(broker, tmp_path):
    path = tmp_path / "tries"
    result = died(str(path), 3, task=tasks.flaky, max_attempts=2, backoff=0.001, priority=7)
    rows_of(result).update(reclaims=2)
    before = utcnow() - timedelta(milliseconds=1)
    assert operating.revive(broker, result.id) == Outcome.DONE
    row = row_of(result)
    assert (row.status, row.attempt, row.reclaims, row.priority) == ("READY", 0, 0, 7)
    assert {name for name, value in json.loads(row.state).items() if value} == {"past"}
    assert (row.mirrored, row.finished_at, row.died_at, row.expires_at) == (False, None, None, None)
    assert before <= row.wakes_at <= utcnow()
    again = backend().get_result(result.id)
    assert (again.status, again.attempts, again.errors) == (TaskResultStatus.READY, 0, [])
    assert (counts(broker), ids(broker)) == ((0, 1, 0, 0), [])
    assert operating.revive(broker, result.id) == Outcome.NOT_DEAD
    run_burst()
    again = backend().get_result(result.id)
    assert (again.status, again.attempts, again.return_value) == (TaskResultStatus.SUCCESSFUL, 2, "attempt 4")


def test_a_job_that_was_far_ahead_is_executed_at_once_when_it_is_revived(broker):
    result = durable(tasks.fail, run_after=timedelta(days=1)).enqueue()
    backend().reschedule(result.id, timedelta(0))
    run_burst()
    assert operating.revive(broker, result.id) == Outcome.DONE
    run_burst()
    assert ids(broker) == [result.id]
    assert row_of(result).attempt == 1


def test_a_job_may_die_and_be_revived_again_and_again(broker):
    result = died()
    for _ in range(3):
        assert operating.revive(broker, result.id) == Outcome.DONE
        run_burst()
        assert (ids(broker), row_of(result).attempt) == ([result.id], 1)


def test_without_redis_the_row_is_revived_and_a_sweep_puts_it_there(broker):
    result = died()
    with pointing_at(NOBODY):
        assert operating.revive(broker, result.id) == Outcome.DONE
    assert (row_of(result).status, counts(broker)) == ("READY", NOTHING)
    rows_of(result).update(enqueued_at=utcnow() - timedelta(seconds=5))  # the sweeps leave young ones to the fast path
    mirror.delta_sweep(broker)
    assert (counts(broker), row_of(result).mirrored) == ((0, 1, 0, 0), True)


def test_a_revival_that_is_rolled_back_leaves_the_job_dead(broker):
    result = died()
    with transaction.atomic():
        assert operating.revive(broker, result.id) == Outcome.DONE
        assert counts(broker) == NOTHING
        transaction.set_rollback(True)
    assert (ids(broker), counts(broker)) == ([result.id], NOTHING)
    with transaction.atomic():
        operating.revive(broker, result.id)
    assert counts(broker) == (0, 1, 0, 0)


def test_what_is_left_of_the_dead_job_in_redis_does_not_keep_it_from_being_executed(broker):
    result = durable(tasks.add).enqueue(20, 22)
    run_burst()
    now = utcnow()
    rows_of(result).update(status="FAILED", died_at=now, finished_at=now, expires_at=now + timedelta(days=1))
    put(broker, row_of(result), wake_ms=to_ms(now) + 3_600_000)
    assert operating.revive(broker, result.id) == Outcome.DONE
    jobs_view = view(broker, result)
    assert jobs_view.waits_until_ms is not None, "it is left as it is"
    assert operating.run_now(broker, result.id) == Outcome.DONE
    run_burst()
    assert backend().get_result(result.id).return_value == 42


def test_an_outcome_of_before_its_death_is_not_taken_for_one_of_the_new_attempts(broker):
    """A worker that was overtaken comes back when the job has been revived: the row looks as that one has read it."""
    result = durable(tasks.fail).enqueue()
    member = row_of(result).member
    overtaken = ledger.load_jobs([member])[member]
    run_burst()
    assert operating.revive(broker, result.id) == Outcome.DONE
    late = JobOutcome(overtaken, "1.x late", "SUCCESSFUL", 1, "", utcnow(), utcnow(), None)
    assert ledger.record_jobs([late]) == [Won.LOST]
    run_burst()
    assert row_of(result).status == "FAILED"


def test_only_one_of_two_who_revive_a_job_does(broker, monkeypatch):
    result = died()
    read = row_of(result)
    assert operating.revive(broker, result.id) == Outcome.DONE
    assert not ledger.revive_job(read, unique="", now=utcnow())
    run_burst()
    assert row_of(result).status == "FAILED"
    assert not ledger.revive_job(read, unique="", now=utcnow()), "it died another death"
    assert not ledger.delete_job(read)
    monkeypatch.setattr(ledger, "find_job", lambda member: read)
    assert operating.delete(broker, result.id) == Outcome.NOT_DEAD


def test_a_job_that_redis_has_not_yet_or_that_has_ended_is_not_revived(broker):
    with pointing_at(NOBODY):
        missed = durable(tasks.add).enqueue(1)
    for order in (operating.revive, operating.delete):
        assert order(broker, missed.id) == Outcome.NOT_DEAD
    cancelled = durable(tasks.add).enqueue(1)
    backend().cancel(cancelled.id)
    assert [order(broker, cancelled.id) for order in (operating.revive, operating.delete)] == [Outcome.GONE] * 2
    assert row_of(cancelled).status == "FAILED"
    with pointing_at(NOBODY), pytest.raises(BrokerUnavailable):
        operating.revive(Broker(timeout_seconds=0.2), cancelled.id)


def test_a_dead_job_is_neither_cancelled_nor_run_now(broker):
    result = died()
    assert [order(broker, result.id) for order in (operating.cancel, operating.run_now)] == [Outcome.DEAD] * 2
    assert ids(broker) == [result.id]


def test_a_job_of_another_queue_is_not_found_under_this_one(broker):
    result = died()
    other = result.id.replace("default.", "mail.")
    assert (find_stored(other), operating.revive(broker, other)) == (None, Outcome.GONE)
    assert ids(broker) == [result.id]


def test_a_revived_job_is_no_edit_that_redis_has_missed_for_long(broker, monkeypatch):
    """It is old, but waits only since its revival."""
    monkeypatch.setattr(sys.modules[mirror.drift.__module__], "STALE", timedelta(hours=1))  # longer than the test
    result = died()
    rows_of(result).update(enqueued_at=utcnow() - timedelta(days=3))
    assert operating.revive(broker, result.id) == Outcome.DONE
    assert mirror.drift(broker).jobs == 0
    rows_of(result).update(wakes_at=utcnow() - timedelta(hours=2))
    assert mirror.drift(broker).jobs == 1


# -- delete


def test_a_deleted_job_is_gone_with_its_result_also_without_redis(broker):
    one, other = died(), died()
    assert operating.delete(broker, one.id) == Outcome.DONE
    with pointing_at(NOBODY):
        assert operating.delete(broker, other.id) == Outcome.DONE
    assert (Job.objects.count(), ids(broker)) == (0, [])
    assert operating.delete(broker, one.id) == Outcome.GONE
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result(one.id)
