"""Points of a definition that was edited or paused while one of its points ran, waited for a retry, or was lost."""

import time
from datetime import timedelta
from itertools import pairwise

import pytest

from django_delayq.models import Run, Schedule
from django_delayq.worker.held import Held
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
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


def pause(row):
    row.pause()


def retime(row):
    row.every = timedelta(hours=1)
    row.save()


@pytest.mark.parametrize("edit", [pause, retime])
def test_points_that_were_due_when_an_edit_came_during_a_run_are_explained(broker, edit):
    row, points = overdue(broker)
    worker = Worker(WorkerOptions(queues=("default",), threads=1, burst=True))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    worker.tick()
    assert worker.slots.waiting == 1
    edit(row)
    worker.slots.start()
    while not isinstance(item := worker.inbox.get(timeout=PATIENCE_SECONDS), Held):
        pass
    worker.recorder.add([item])
    worker.recorder.flush()
    run_burst()
    assert unexplained(points) == []
    assert Run.objects.get(due_at=points[0]).status == "succeeded"
    worker.slots.stop(5)
    worker.broker.close()


@pytest.mark.parametrize("edit", [pause, retime])
def test_points_that_were_due_when_an_edit_came_before_a_retry_are_explained(broker, edit):
    row, points = overdue(broker, task="tests.app.tasks.fail", max_attempts=2, backoff=timedelta(milliseconds=10))
    run_burst(max_runs=1)
    edit(row)
    run_burst()
    run_burst()
    assert unexplained(points) == []


@pytest.mark.parametrize("edit", [pause, retime])
def test_points_that_were_due_when_an_edit_came_are_explained_after_a_flush(broker, edit):
    row, points = overdue(broker)
    edit(row)
    broker.purge()
    run_burst()
    assert unexplained(points) == []


@pytest.mark.parametrize("edit", [pause, retime])
@pytest.mark.parametrize("overlap", ["skip", "queue_all", "allow"])
def test_points_that_were_due_when_an_edit_came_before_their_claim_are_explained(broker, edit, overlap):
    row, points = overdue(broker, overlap=overlap)
    edit(row)
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
