"""A worker that died after it had written an outcome, and before Redis heard of it."""

import time
from datetime import timedelta

import pytest

from django_delayq.chain import member_of
from django_delayq.models import Run, Schedule
from tests import failpoints
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


class Killed(BaseException):
    """The worker ends here: nothing in it handles this."""


def died(broker, monkeypatch, **values):
    """Have a worker record a due point and die; return the schedule, whose lease has ended since."""
    row = Schedule.objects.create(name="s", kind="every", every=timedelta(hours=1), **values)
    make_due(broker, row)

    def reach(name):
        if name == "after_ledger":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        with pytest.raises(Killed):
            run_burst()
    assert broker.client.zadd(due_key(broker), {member_of(row.pk): 1}, xx=True, ch=True) == 1
    return row


def due_key(broker):
    return f"{{{broker.config.prefix}:default:0}}:due"


def test_a_run_that_may_overlap_runs_at_once_all_the_same(broker, monkeypatch):
    row = died(broker, monkeypatch, task="tests.app.tasks.noop", overlap="allow")
    assert [run.status for run in Run.objects.all()] == ["queued"]
    run_burst()
    assert [run.status for run in Run.objects.all()] == ["succeeded"]
    assert broker.client.zscore(due_key(broker), member_of(row.pk)) > time.time() * 1000


@pytest.mark.parametrize("flushed", [False, True])
def test_a_retry_waits_for_its_backoff_all_the_same(broker, monkeypatch, flushed):
    row = died(broker, monkeypatch, task="tests.app.tasks.fail", max_attempts=3, backoff=timedelta(minutes=10))
    assert Run.objects.get().status == "retrying"
    if flushed:
        broker.client.flushdb()
    run_burst()
    assert Run.objects.get().attempt == 1
    assert 400 < broker.client.zscore(due_key(broker), member_of(row.pk)) / 1000 - time.time() <= 600
