"""Leases that are renewed by one thread while the loop hands them back."""

from datetime import timedelta

import pytest

from django_delayq.models import Schedule
from django_delayq.signals import lease_lost
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.app.tasks import noop
from tests.support import DAILY_CRON, make_due

pytestmark = pytest.mark.django_db(transaction=True)


def enqueue(broker):
    noop.enqueue()


def due_point(broker):
    make_due(broker, Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron=DAILY_CRON))


def due_failure(broker):
    values = {"max_attempts": 2, "backoff": timedelta(hours=1), "cron": DAILY_CRON}
    make_due(broker, Schedule.objects.create(name="s", task="tests.app.tasks.fail", kind="cron", **values))


@pytest.mark.parametrize("make", [enqueue, due_point, due_failure], ids=["job", "point", "retry"])
def test_what_is_renewed_between_its_settlement_and_the_reply_is_not_lost(broker, monkeypatch, caplog, make):
    lost, renewed = [], []

    def hear(sender, member, **kwargs):
        lost.append(member)

    lease_lost.connect(hear)
    make(broker)
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
