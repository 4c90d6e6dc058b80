"""What people do to jobs, step by step, in memory and with a real server and a real worker: the same comes of it.

The memory follows the scripts by hand; this finds out where it does not.
"""

from datetime import datetime, timedelta

import pytest

from django_delayq import mirror, orders
from django_delayq.backend.sending import shared
from django_delayq.compat import task_backends
from django_delayq.exceptions import JobHeld
from django_delayq.fields import utcnow
from django_delayq.jobs import DelayQTask, decode, encode, parse_id
from django_delayq.models import Run, Schedule
from django_delayq.testing import Runner
from tests.app import tasks
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)

#: Far enough that it does not come during the test.
LATER = timedelta(hours=6)


@pytest.fixture(params=["memory", "server"])
def work(request, broker):
    """What runs all that is due now."""
    if request.param == "memory":
        with Runner() as runner:
            yield runner.run_due
    else:
        mirror.check_layout(broker)
        for place in broker.shards():
            broker.swap_epochs([place], None, "test")
        yield run_burst


def using(task, **options):
    made = DelayQTask(func=task.func, backend=task.backend, queue_name=task.queue_name, priority=task.priority)
    return made.using(**options)


def stands(result) -> tuple[object, ...]:
    result = task_backends["default"].get_result(result.id)  # refresh() leaves its task as it was
    run_after = result.task.run_after
    away = None
    if run_after is not None:
        now = utcnow() if run_after.tzinfo else datetime.now()  # noqa: DTZ005
        away = round((run_after - now) / timedelta(hours=1))
    errors = [error.exception_class_path.rpartition(".")[2] for error in result.errors]
    return result.status, result.attempts, len(result.worker_ids), errors, away


def test_jobs_that_are_done_and_dead_and_tried_again(work):
    done, dead = tasks.add.enqueue(1), tasks.fail.enqueue()
    again, later = (
        using(tasks.fail, max_attempts=2, backoff=3600).enqueue(),
        tasks.add.using(run_after=LATER).enqueue(2),
    )
    work()
    assert stands(done) == ("SUCCESSFUL", 1, 1, [], None)
    assert stands(dead) == ("FAILED", 1, 1, ["RuntimeError"], None)
    assert stands(again)[:4] == ("READY", 1, 1, ["RuntimeError"])
    assert stands(again)[4] in (0, 1), "waits for its retry"
    assert stands(later) == ("READY", 0, 0, [], 6)


def test_cancelled_moved_and_unique_jobs(work):
    backend = task_backends["default"]
    cancelled, moved, done = (tasks.add.enqueue(number) for number in range(3))
    once = using(tasks.add, unique_key="one")
    first, same = once.enqueue(3), once.enqueue(4)
    assert same.id == first.id
    assert backend.cancel(cancelled.id)
    assert backend.reschedule(moved.id, LATER)
    work()
    assert stands(cancelled) == ("FAILED", 0, 0, ["JobCancelled"], None)
    assert stands(moved) == ("READY", 0, 0, [], 6)
    assert stands(done) == stands(first) == ("SUCCESSFUL", 1, 1, [], None)
    assert [backend.cancel(result.id) for result in (cancelled, moved, done)] == [False, True, False]
    assert not backend.reschedule(done.id, LATER)
    assert once.enqueue(5).id != first.id


def test_a_revived_job_and_its_unique_key(work):
    once = using(tasks.fail, unique_key="one")
    dead = once.enqueue()
    work()

    def revive() -> str:
        jobs, (queue, member) = shared().jobs, parse_id(dead.id)
        place = jobs.shard_of(member, queue)
        line, call, _ = decode(place.queue, member, jobs.view(place, member).payload)
        return jobs.change(place, member, "revive", 0, encode(place.queue, member, line), unique=call.unique)

    other = once.enqueue()
    assert (other.id == dead.id, revive()) == (False, "TAKEN")
    assert stands(dead)[0] == "FAILED"
    work()
    assert revive() == "OK"
    assert once.enqueue().id == dead.id
    assert stands(dead) == ("READY", 0, 0, [], None)
    work()
    assert stands(dead) == ("FAILED", 1, 1, ["RuntimeError"], None)


def test_what_is_due_goes_by_priority(work, monkeypatch):
    monkeypatch.setattr(tasks, "CALLS", called := [])
    for number, priority in ((1, -1), (2, 0), (3, 1), (4, 0)):
        tasks.add.using(priority=priority).enqueue(number)
    if work is run_burst:
        work(threads=1)
    else:
        work()
    assert [first for first, _ in called] == [3, 2, 4, 1]


def test_orders_of_schedules(work):
    schedule = Schedule.objects.create(name="s", task="tests.app.tasks.add", args=[1], kind="every", every=LATER)
    orders.run_now(schedule)
    failing = Schedule.objects.create(
        name="f", task="tests.app.tasks.fail", kind="every", every=LATER, max_attempts=2, backoff=LATER
    )
    orders.run_now(failing)
    work()
    assert list(Run.objects.order_by("schedule_name").values_list("schedule_name", "origin", "status", "attempt")) == [
        ("f", "manual", "retrying", 1),
        ("s", "manual", "succeeded", 1),
    ]


def test_a_running_job_is_held(work, monkeypatch):
    refused = []

    def cancel_myself(a, b=1):
        try:
            task_backends["default"].cancel(result.id)
        except JobHeld as error:
            refused.append(str(error))

    monkeypatch.setattr(DelayQTask, "call", lambda task, *args, **kwargs: cancel_myself(*args, **kwargs))
    result = using(tasks.add).enqueue(1)
    if type(tasks.add) is not DelayQTask:
        monkeypatch.setattr(type(tasks.add), "call", lambda task, *args, **kwargs: cancel_myself(*args, **kwargs))
    work()
    assert refused == [f"A worker has the job {result.id} already, so that it can be neither cancelled nor moved."]
    assert stands(result)[0] == "SUCCESSFUL"


def test_what_cannot_be_done_with_a_job_is_refused_alike(work):
    waiting, dead, known = using(tasks.add, run_after=LATER).enqueue(1), tasks.fail.enqueue(), tasks.add.enqueue(2)
    work()

    def change(result, what, **values):
        jobs, (queue, member) = shared().jobs, parse_id(result.id)
        return jobs.change(jobs.shard_of(member, queue), member, what, 0, **values)

    assert [change(waiting, what) for what in ("revive", "bury")] == ["WAITING", "WAITING"]
    assert [change(dead, what) for what in ("cancel", "move")] == ["DEAD", "DEAD"]
    assert [change(known, what) for what in ("cancel", "move", "revive", "bury")] == ["GONE"] * 4
    assert stands(waiting) == ("READY", 0, 0, [], 6)
    assert stands(dead)[0] == "FAILED"
    assert [change(dead, "bury"), change(dead, "bury")] == ["OK", "GONE"]
