"""`put_missing`: what was committed and not put into Redis gets there, whatever the order of commits and keys."""

import json
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq import sync
from django_delayq.index import Broker
from django_delayq.models import Run
from django_delayq.sync import missing
from tests.app import tasks as app_tasks
from tests.jobs import tasks
from tests.jobs.support import Standing, in_thread, row, run, run_burst, unput

pytestmark = pytest.mark.django_db(transaction=True)
postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")


@pytest.fixture(autouse=True)
def built(broker):
    """Shards that are built, and a mark."""
    run_burst()
    sync.sweep_delta(broker)


@pytest.fixture
def puts(monkeypatch):
    """Numbers of the rows that were offered to Redis."""
    calls, real = [], missing.put_runs

    def put_runs(broker, runs):
        calls.append([run.pk for run in runs])
        return real(broker, runs)

    monkeypatch.setattr(missing, "put_runs", put_runs)
    return calls


def put(result):
    return not Standing(result).gone()


@contextmanager
def open_transaction(*enqueue):
    """Have another connection enqueue, and commit at the end of the `with`; yields the results."""
    results, go, done = [], threading.Event(), threading.Event()

    def work():
        with transaction.atomic():
            results.extend(each() for each in enqueue)
            done.set()
            go.wait(60)

    thread, _ = in_thread(work)
    assert done.wait(60)
    try:
        yield results
    finally:
        go.set()
        thread.join(60)


def test_each_row_is_offered_once_and_a_look_without_new_rows_writes_nothing(broker, puts, monkeypatch):
    first = [tasks.echo.enqueue(n) for n in range(3)]
    with unput():
        second = tasks.echo.enqueue(4)
    assert sync.put_missing(broker) == 1
    assert puts == [[row(result).pk for result in (*first, second)]]
    assert put(second)
    look_until_no_gap_is_left(broker)
    monkeypatch.setattr(Broker, "write_note", lambda self, name, value: pytest.fail("writes"))
    with CaptureQueriesContext(connection) as captured:
        assert sync.put_missing(broker) == 0
    assert (puts[1:], len(captured) <= 3) == ([], True)


def test_a_look_is_bounded_and_the_next_one_goes_on(broker, puts, monkeypatch):
    monkeypatch.setattr(missing, "PAGE", 4)
    monkeypatch.setattr(missing, "MOST_PAGES", 2)
    monkeypatch.setattr(missing, "PUT", 3)
    with unput():
        results = tasks.echo.enqueue_many([((n,), {}) for n in range(10)])
    assert [sync.put_missing(broker) for _ in range(3)] == [8, 2, 0]
    assert [len(part) for part in puts] == [3, 1, 3, 1, 2]
    assert all(map(put, results))


def test_what_has_ended_or_runs_is_not_put(broker, puts):
    with unput():
        results = [tasks.echo.enqueue(n) for n in range(4)]
    for result, status in zip(results, ("succeeded", "running", "failed"), strict=False):
        Run.objects.filter(pk=row(result).pk).update(status=status)
    assert sync.put_missing(broker) == 1
    assert puts == [[row(results[3]).pk]]


@pytest.mark.parametrize("noted", ["", "nonsense", "[1]", '["x", []]', "[5, [[1]]]", "null"])
def test_without_a_mark_that_can_be_read_all_open_rows_are_put(broker, noted):
    with unput():
        results = [tasks.echo.enqueue(n) for n in range(2)]
    broker.write_note("missed", noted)
    assert sync.put_missing(broker) == 2
    assert all(map(put, results))
    assert sync.put_missing(broker) == 0
    assert json.loads(broker.read_note("missed"))[0] <= row(results[-1]).pk


def test_where_the_last_rows_are_gone_the_mark_goes_back_and_what_comes_is_put(broker):
    """They were deleted with their outcomes, or the database is a backup, which gives keys once more."""
    before = tasks.echo.using(run_after=timedelta(hours=1)).enqueue(0)
    later = [tasks.echo.enqueue(n) for n in range(5)]
    sync.put_missing(broker)
    pks = [row(result).pk for result in later]
    Run.objects.filter(pk__in=pks).delete()
    assert sync.put_missing(broker) == 0
    assert json.loads(broker.read_note("missed"))[0] == row(before).pk
    with unput():
        app_tasks.add.enqueue(1)
    Run.objects.filter(task=app_tasks.add.module_path).update(id=pks[0])
    assert sync.put_missing(broker) == 1
    run_burst()
    assert app_tasks.CALLS == [(1, 1)]


def test_where_redis_fails_the_next_look_begins_where_this_one_did(broker, monkeypatch):
    with unput():
        result = tasks.echo.enqueue(1)
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(missing, "put_runs", lambda broker, runs: 1 / 0)
        sync.put_missing(broker)
    assert sync.put_missing(broker) == 1
    assert put(result)


def test_after_a_flush_all_that_is_open_comes_back_and_what_was_noted_stays(broker):
    waiting = tasks.echo.using(queue_name="mail", run_after=timedelta(hours=1)).enqueue(1)
    ended = run(tasks.echo.enqueue(2))
    broker.purge()
    with unput():
        result = tasks.echo.enqueue(3)
    sync.check_layout(broker)
    assert sync.rebuild(broker, broker.list_shards())
    assert [put(each) for each in (waiting, ended, result)] == [True, False, True]
    assert sync.put_missing(broker) == 0
    # The shards are lost and the note is not: it knows of gaps.
    missing.Mark(1, [missing.Gap(5, 6, 7)]).write(broker)
    noted = broker.read_note("missed")
    broker.drop(broker.list_shards())
    assert sync.rebuild(broker, broker.list_shards())
    assert broker.read_note("missed") == noted
    # Nor does a rebuild of one queue say that those of the others were put.
    broker.write_note("missed", "")
    with unput():
        result = tasks.echo.using(queue_name="mail").enqueue(4)
    broker.drop(broker.list_shards()[:1])
    assert sync.rebuild(broker, broker.list_shards())
    assert sync.put_missing(broker) >= 1
    assert put(result)


# -- gaps


@postgresql
def test_a_row_that_is_committed_after_greater_keys_were_seen_is_put(broker):
    with unput(), open_transaction(lambda: tasks.echo.enqueue(1), lambda: tasks.echo.enqueue(2)) as early:
        later = tasks.echo.enqueue(3)
        for _ in range(2):
            sync.put_missing(broker)
        assert put(later)
        assert gaps(broker), "what is open may come yet"
    assert sync.put_missing(broker) == 2
    assert all(map(put, early))
    look_until_no_gap_is_left(broker)


@postgresql
def test_so_is_one_whose_transaction_was_open_when_the_mark_was_lost(broker):
    with unput(), open_transaction(lambda: tasks.echo.enqueue(1)) as early:
        tasks.echo.enqueue(2)
        broker.write_note("missed", "")
        sync.put_missing(broker)
    assert sync.put_missing(broker) == 1
    assert put(early[0])


@postgresql
def test_keys_that_no_row_will_have_are_forgotten_in_time(broker, monkeypatch):
    tasks.echo.enqueue(0)
    look_until_no_gap_is_left(broker)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.echo.enqueue_many([((n,), {}) for n in range(5)])
        raise ZeroDivisionError
    tasks.echo.enqueue(6)
    sync.put_missing(broker)
    assert [(last - first) for first, last, *_ in gaps(broker)] == [4]
    monkeypatch.setattr(missing, "GAP_SECONDS", -1)
    sync.put_missing(broker)
    assert gaps(broker) == []


def test_rows_that_come_into_gaps_leave_the_rest_of_them():
    gap = missing.Gap(3, 9, 1)
    assert missing._split(gap, [3, 5, 6, 9]) == [(4, 4, 1), (7, 8, 1)]
    assert missing._split(gap, [3, 4, 5, 6, 7, 8, 9]) == []
    assert missing._split(gap, []) == [gap]


def test_of_too_many_gaps_the_newest_are_remembered(broker, monkeypatch):
    monkeypatch.setattr(missing, "MOST_GAPS", 2)
    missing.Mark(9, [missing.Gap(n, n, 0) for n in range(5)]).write(broker)
    again = missing.Mark.read(broker)
    assert [gap.first for gap in again.gaps] == [3, 4]


def gaps(broker):
    return json.loads(broker.read_note("missed"))[1]


def look_until_no_gap_is_left(broker):
    """Look at all rows, let the gaps have been seen as long ago as they are kept, and look once more."""
    sync.put_missing(broker)
    seen, found = json.loads(broker.read_note("missed"))
    old = [[first, last, since - missing.GAP_SECONDS] for first, last, since in found]
    broker.write_note("missed", json.dumps([seen, old]))
    sync.put_missing(broker)
    assert gaps(broker) == []
