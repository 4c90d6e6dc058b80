"""F40: a queue is paused or limited while workers are killed and Redis is flushed."""

import itertools
import time
from contextlib import ExitStack

import pytest

from django_delayq import actions
from django_delayq.models import Run
from tests.acceptance.support import lines, wait_until
from tests.app import tasks
from tests.faults.harness.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)
#: Nothing of a paused queue starts from so long after the commit on.
FOLLOWED_SECONDS = 1.0
#: Longer than a worker of a busy machine is ever kept from renewing; a killed one's executions count for so long.
LEASE_SECONDS = 6


def starts(path):
    return [float(line[3]) for line in lines(path) if line[0] == "start"]


def ended(number):
    return Run.objects.filter(status="succeeded").count() == number


def test_f40_a_paused_queue_starts_nothing_whatever_becomes_of_workers_and_redis(server, tmp_path):
    path, number = tmp_path / "ran", 400
    tasks.note.enqueue_many(((str(path), f"n{n}", 0.05), {}) for n in range(number))
    with ExitStack() as stack:
        workers = [
            stack.enter_context(WorkerProcess("--threads", "2", folder=tmp_path, LEASE_SECONDS=LEASE_SECONDS))
            for _ in range(3)
        ]
        wait_until(lambda: len(starts(path)) > 20, 60, "executions")
        actions.pause("default", reason="F40")
        paused_at = time.time()
        workers[0].kill()
        time.sleep(FOLLOWED_SECONDS)
        server.flush()
        stack.enter_context(WorkerProcess("--threads", "2", folder=tmp_path, LEASE_SECONDS=LEASE_SECONDS).ready())
        time.sleep(LEASE_SECONDS + 2)  # what the killed one held has come due meanwhile
        resumed_at = time.time()
        before = len(starts(path))
        actions.resume("default")
        wait_until(lambda: ended(number), 120, "all jobs")
    between = [at - paused_at for at in starts(path) if paused_at + FOLLOWED_SECONDS < at < resumed_at]
    assert not between
    assert before < number, "nothing was left to be held back"


@pytest.mark.parametrize(
    ("number", "kills"), [(150, 1), pytest.param(10_000, 12, marks=[pytest.mark.everything, pytest.mark.long])]
)
def test_f40_a_limit_is_never_exceeded_whoever_is_killed(server, tmp_path, number, kills):
    path, most = tmp_path / "ran", 5
    actions.limit("default", most)
    tasks.note.enqueue_many(((str(path), f"n{n}", 0.03), {}) for n in range(number))
    killed = {}
    with ExitStack() as stack:

        def start():
            arguments = {"folder": tmp_path, "LEASE_SECONDS": LEASE_SECONDS}
            return stack.enter_context(WorkerProcess("--threads", "4", **arguments).ready())

        workers = [start() for _ in range(3)]
        for turn in range(kills):
            wait_until(lambda goal=number * (turn + 1) // (kills + 2): len(starts(path)) > goal, 300, "executions")
            victim = workers.pop(0)
            killed[str(victim.pid)] = victim.kill()
            workers.append(start())
        wait_until(lambda: ended(number), 300, "all jobs")
    assert 2 < at_once(path, killed) <= most


def at_once(path, killed):
    """Return how many ran at a time at most; what a killed process had begun ran until its death."""
    changes, open_ = [], {}
    for what, name, pid, at in lines(path):
        if what == "start":
            open_[name, pid] = float(at)
        else:
            changes += [(open_.pop((name, pid)), 1), (float(at), -1)]
    for (_, pid), at in open_.items():
        changes += [(at, 1), (killed[pid], -1)]
    return max(itertools.accumulate(step for _, step in sorted(changes)))
