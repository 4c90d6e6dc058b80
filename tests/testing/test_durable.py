"""Durable jobs and results in the database, played by the runner."""

from datetime import timedelta

import pytest
from django.db import transaction

from django_delayq.broker import Broker
from django_delayq.compat import task_backends
from django_delayq.jobs import DelayQTask
from django_delayq.models import Job
from django_delayq.testing import Runner
from tests.app import tasks

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def durable(task, **options):
    made = DelayQTask(func=task.func, backend="durable", queue_name="default", priority=0, run_after=None)
    return made.using(**options) if options else made


def test_a_durable_job_runs_and_its_row_tells(delayq: Runner):
    result = durable(tasks.add).enqueue(1)
    delayq.assert_enqueued(tasks.add, args=[1], count=1)
    delayq.run_due()
    result.refresh()
    assert (result.is_finished, result.return_value) == (True, 2)
    assert Job.objects.get().finished_at == delayq.now


def test_it_is_tried_again_and_then_dead(delayq: Runner):
    result = durable(tasks.fail, max_attempts=2, backoff=3600).enqueue()
    delayq.run_due()
    result.refresh()
    assert (len(result.errors), result.is_finished) == (1, False)
    delayq.run_due(HOUR)
    result.refresh()
    assert (len(result.errors), str(result.status)) == (2, "FAILED")


def test_a_rollback_takes_it_back(delayq: Runner):
    with pytest.raises(RuntimeError), transaction.atomic():
        durable(tasks.add).enqueue(1)
        raise RuntimeError
    delayq.run_due()
    delayq.assert_enqueued(tasks.add, count=0)


def test_its_result_is_read_without_redis(delayq: Runner, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Broker, "client", property(lambda broker: pytest.fail("asks Redis")))
        result = durable(tasks.add).using(run_after=HOUR).enqueue(1)
        result.refresh()
    assert not result.is_finished


def test_it_can_be_cancelled_and_put_off(delayq: Runner):
    cancelled, moved = durable(tasks.add).enqueue(1), durable(tasks.add).enqueue(2)
    backend = task_backends["durable"]
    assert backend.cancel(cancelled.id)
    assert backend.reschedule(moved.id, 2 * HOUR)
    delayq.run_due(HOUR)
    assert not backend.get_result(moved.id).is_finished
    delayq.run_due(2 * HOUR)
    assert backend.get_result(moved.id).return_value == 3
    assert backend.get_result(cancelled.id).errors[0].exception_class_path.endswith("JobCancelled")
