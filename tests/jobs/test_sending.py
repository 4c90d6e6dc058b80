"""From a process into Redis: lost replies, flushes, a foreign prefix, and a Redis that is away."""

import json

import pytest

from django_delayq import mirror
from django_delayq.backend.sending import shared
from django_delayq.broker import JobBroker
from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus
from django_delayq.exceptions import BrokerUnavailable, ForeignLayout
from tests.acceptance.support import PATIENCE_SECONDS
from tests.app import tasks as app_tasks
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Stored, run, run_burst, told

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def flush(broker):
    """Empty this test's prefix, as a flush does."""
    return broker.purge


def lossy(monkeypatch, between):
    """Lose the reply to the first jobs that are added, and do something before they are sent again."""
    real, lost = JobBroker.enqueue_each, []

    def enqueue_each(self, items, epochs, *, again):
        replies = real(self, items, epochs, again=again)
        if not lost and any(found is not None for _, found in replies):
            lost.append(True)
            between()
            raise BrokerUnavailable("the reply is lost")
        return replies

    monkeypatch.setattr(JobBroker, "enqueue_each", enqueue_each)
    return lost


def test_what_has_ended_before_it_is_sent_again_is_not_added_again(monkeypatch):
    run_burst()  # builds the shards
    lost = lossy(monkeypatch, run_burst)
    with told() as heard:
        result = app_tasks.add.enqueue(1)
    assert lost
    assert [name for name, *_ in heard] == ["started", "finished", "enqueued"]
    assert run(result).return_value == 2
    assert app_tasks.CALLS == [(1, 1)]


@pytest.mark.parametrize("key", [None, "k"])
def test_what_waits_when_it_is_sent_again_is_added_once(monkeypatch, key):
    run_burst()
    lossy(monkeypatch, lambda: None)
    made = app_tasks.add if key is None else app_tasks.add.using(unique_key=key)
    with told() as heard:
        result = made.enqueue(1)
    assert [(name, id) for name, _, id, _ in heard] == [("enqueued", result.id)]
    run_burst()
    assert app_tasks.CALLS == [(1, 1)]


def test_before_any_worker_was_there_jobs_are_taken(broker):
    assert broker.epochs(broker.shards()) == [None, None]
    results = [tasks.echo.enqueue(1), *tasks.echo.using(queue_name="mail").enqueue_many([((2,), {}), ((3,), {})])]
    assert run(results[0]).status == SUCCESSFUL
    results[2].refresh()
    assert results[2].return_value == [[3], {}]


def test_a_flush_takes_plain_jobs_with_it_and_the_next_ones_run(flush):
    before = run(tasks.echo.enqueue(1))
    waiting = app_tasks.add.enqueue(2)
    flush()
    for gone in (before, waiting):
        with pytest.raises(TaskResultDoesNotExist):
            gone.refresh()
    after = tasks.echo.enqueue(3)
    assert after.status == TaskResultStatus.READY
    assert run(after).return_value == [[3], {}]
    flush()
    run_burst()  # another epoch than the one that this process knows
    assert run(tasks.echo.enqueue(4)).return_value == [[4], {}]
    assert app_tasks.CALLS == []


def test_in_another_databases_prefix_nothing_is_added(broker):
    run_burst()
    stored = Stored(tasks.echo.enqueue())
    layout = json.loads(broker.layout())
    broker.write_layout(json.dumps({**layout, "database": "somebody else's"}))
    shared().forget()
    with pytest.raises(ForeignLayout, match="belongs to another database"):
        tasks.echo.enqueue()
    assert stored.client.hlen(stored.names["payload"]) == 1
    broker.write_layout(json.dumps(layout))
    assert mirror.standing_shards(broker) == {"default": 1, "mail": 1}


def test_without_redis_it_is_told_and_the_next_call_tries_anew(settings):
    good = settings.CACHES
    settings.CACHES = {**good, "default": {**good["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    with told() as heard, pytest.raises(BrokerUnavailable, match="cannot be used now"):
        tasks.echo.enqueue()
    assert heard == []
    with pytest.raises(BrokerUnavailable):
        tasks.echo.get_result("default." + "x" * 22)
    settings.CACHES = good
    assert run(tasks.echo.enqueue()).status == SUCCESSFUL


def test_what_is_enqueued_wakes_a_worker_at_once(broker):
    """The hint names the place and the time, so that nobody waits for the next regular look."""
    run_burst()
    pubsub = broker.client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(broker._channel)
    pubsub.get_message(timeout=PATIENCE_SECONDS)
    tasks.echo.enqueue()
    message = pubsub.get_message(timeout=PATIENCE_SECONDS)
    assert message["data"].decode().startswith("default:0 ")
    pubsub.close()
