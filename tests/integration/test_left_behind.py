"""Points of a definition that was edited or paused while one of its points ran, waited for a retry, or was lost; and
of a worker that died after it had written an outcome, and before Redis heard of it.
"""

import time
from datetime import timedelta
from itertools import pairwise

import pytest

from django_delayq.ledger.chain import format_member
from django_delayq.models import Run, Schedule
from django_delayq.worker.held import Lease
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests import failpoints
from tests.acceptance.support import PATIENCE_SECONDS
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
STEP = timedelta(seconds=10)
COUNT = 5


def overdue(broker, **values):
    """Make a schedule of which five points are due; return it and them."""
    values = {"task": "tests.app.tasks.noop", "missed": "all", **values}
    row = Schedule.objects.create(name="s", kind="every", every=STEP, **values)
    first = make_due(broker, row, ago=timedelta(seconds=55))
    row.refresh_from_db()
    return row, [first + n * STEP for n in range(COUNT)]


def unexplained(points):
    """Return the points with no outcome, and in no skipped stretch."""
    rows = list(Run.objects.finished())
    covered = [(row.due_at, row.last_due_at or row.due_at) for row in rows]
    return [point for point in points if not any(first <= point <= last for first, last in covered)]


EDITS = [lambda row: row.pause(), lambda row: (setattr(row, "every", timedelta(hours=1)), row.save())]
EDITED = pytest.mark.parametrize("edit", EDITS, ids=["pause", "retime"])


@EDITED
def test_points_that_were_due_when_an_edit_came_during_a_run_are_explained(broker, edit):
    row, points = overdue(broker)
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    worker.tick()
    assert worker.slots.waiting == 1
    edit(row)
    worker.slots.start()
    while not isinstance(item := worker.inbox.get(timeout=PATIENCE_SECONDS), Lease):
        pass
    worker.recorder.add([item])
    worker.recorder.flush()
    run_burst()
    assert unexplained(points) == []
    assert Run.objects.get(due_at=points[0]).status == "succeeded"
    worker.slots.stop(5)
    worker.broker.close()


@EDITED
def test_points_that_were_due_when_an_edit_came_before_a_retry_are_explained(broker, edit):
    row, points = overdue(broker, task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(milliseconds=10))
    run_burst(max_runs=1)
    edit(row)
    run_burst()
    run_burst()
    assert unexplained(points) == []


@EDITED
@pytest.mark.parametrize(("overlap", "flushed"), [("skip", 0), ("queue_all", 0), ("allow", 0), ("skip", 1)])
def test_points_that_were_due_when_an_edit_came_before_their_claim_are_explained(broker, edit, overlap, flushed):
    row, points = overdue(broker, overlap=overlap)
    edit(row)
    if flushed:
        broker.purge()
    run_burst()
    assert unexplained(points) == []


def test_what_an_edit_left_and_what_was_missed_after_it_do_not_overlap(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIN_INTERVAL_SECONDS": 0.1}
    row, points = overdue(broker, missed="latest")
    row.every = timedelta(seconds=0.2)
    row.save()
    time.sleep(0.5)  # two points of the new definition are missed too
    run_burst()
    assert unexplained(points) == []
    rows = list(Run.objects.finished().order_by("due_at"))
    assert all((before.last_due_at or before.due_at) < after.due_at for before, after in pairwise(rows))


# -- a worker that died before Redis heard of an outcome


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
    assert broker.client.zadd(due_key(broker), {format_member(row.pk): 1}, xx=True, ch=True) == 1
    return row


def due_key(broker):
    return f"{{{broker.config.prefix}:default:0}}:due"


def score_ms(broker, row):
    return broker.read_views([(format_member(row.pk), row.queue)])[0].score_ms


def test_a_run_that_may_overlap_runs_at_once_all_the_same(broker, monkeypatch):
    row = died(broker, monkeypatch, task="tests.app.tasks.noop", overlap="allow")
    assert [run.status for run in Run.objects.all()] == ["queued"]
    run_burst()
    assert [run.status for run in Run.objects.all()] == ["succeeded"]
    assert score_ms(broker, row) > time.time() * 1000


@pytest.mark.parametrize("flushed", [False, True])
def test_a_retry_waits_for_its_backoff_all_the_same(broker, monkeypatch, flushed):
    row = died(broker, monkeypatch, task="tests.app.tasks.fail", max_attempts=3, backoff=timedelta(minutes=10))
    assert Run.objects.get().status == "retrying"
    if flushed:
        broker.purge()
    run_burst()
    assert Run.objects.get().attempt == 1
    assert 400 < score_ms(broker, row) / 1000 - time.time() <= 600
