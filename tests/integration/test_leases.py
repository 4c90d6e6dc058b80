"""Leases that are renewed by one thread while the loop hands them back."""

import threading
from datetime import timedelta

import pytest

from django_delayq.signals import lease_lost
from django_delayq.worker import held
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import PATIENCE_SECONDS
from tests.app.tasks import noop
from tests.integration.mirroring import schedule
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("what", ["job", "point", "retry"])
def test_what_is_renewed_between_its_settlement_and_the_reply_is_not_lost(broker, monkeypatch, caplog, what):
    lost, renewed = [], []

    def hear(sender, member, **kwargs):
        lost.append(member)

    lease_lost.connect(hear)
    if what == "job":
        noop.enqueue()
    else:
        retried = {"task": "tests.app.tasks.fail", "max_attempts": 2, "backoff": timedelta(hours=1)}
        make_due(broker, schedule(**(retried if what == "retry" else {})))
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))
    hand_back = worker.trip.settle

    def overtaken(*args, **kwargs):
        reply = hand_back(*args, **kwargs)
        renewed.append(len(worker.keeper))
        worker.keeper.renew_all()
        return reply

    monkeypatch.setattr(worker.trip, "settle", overtaken)
    try:
        assert worker.run() == 0
    finally:
        lease_lost.disconnect(hear)
    assert renewed == [1]
    assert lost == []
    assert "Lost the lease" not in caplog.text
    assert len(worker.keeper) == 0


def test_a_long_lease_is_renewed_before_a_score_that_was_lost_under_it_comes_due(monkeypatch):
    monkeypatch.setattr(held, "RENEWED_WITHIN", 0.01)
    keeper = held.LeaseKeeper(lambda *args: set(), lease_seconds=3600, batch_size=1)
    rounds = threading.Semaphore(0)
    monkeypatch.setattr(keeper, "run_round", rounds.release)
    keeper.start()
    assert rounds.acquire(timeout=PATIENCE_SECONDS)
    keeper.stop()
