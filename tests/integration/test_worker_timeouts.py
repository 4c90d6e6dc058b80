"""Timeouts of schedules: the exception in the task, the outcome without the task, and nothing hits the wrong one."""

import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
from django.db import connections

from django_delayq.exceptions import TaskTimeout
from django_delayq.models import Run, Status
from django_delayq.recurrence import to_ms
from django_delayq.worker import loop, timeouts
from django_delayq.worker.held import Lease
from django_delayq.worker.options import OK, RECYCLE, UNFINISHED
from django_delayq.worker.slots import forget_connections
from django_delayq.worker.timeouts import Timeouts, Watch
from tests.acceptance.support import PATIENCE_SECONDS, lines, wait_until, worker
from tests.integration import mirroring
from tests.integration.mirroring import Running, view
from tests.support import DAY, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

#: Far beyond what any of these tests takes.
LONG = 300
STOPPED = "django_delayq.exceptions.TaskTimeout: stopped after its timeout of 0.3 s"


def schedule(task, name="s", timeout=0.3, **values):
    limit = None if timeout is None else timedelta(seconds=timeout)
    return mirroring.schedule(name, task=f"tests.app.tasks.{task}", timeout=limit, **values)


def test_a_task_that_takes_too_long_is_stopped_by_an_exception(broker):
    row = schedule("spin", args=[LONG])
    point = make_due(broker, row)
    assert run_burst() == OK
    run = Run.objects.get()
    assert (run.status, run.reason) == (Status.FAILED, STOPPED)
    assert "in spin" in run.error
    assert run.duration >= timedelta(seconds=0.3)
    assert view(broker, row).point_ms == to_ms(point + DAY)


def test_a_transaction_that_a_stopped_task_left_open_concerns_nobody_else(broker, caplog):
    """Both run in the same slot's thread, one after the other; the first one's transaction would lock the ledger."""
    for name, seconds in (("first", LONG), ("second", 0.01)):
        make_due(broker, schedule("leave_transaction", name=name, args=[seconds]))
    run_burst(threads=1)
    assert "locked" not in caplog.text
    assert dict(Run.objects.values_list("schedule_name", "status")) == {"first": "failed", "second": "succeeded"}


def test_a_coroutine_within_its_timeout_returns(broker, tmp_path):
    make_due(broker, schedule("anote", args=[str(tmp_path / "f")], timeout=LONG))
    run_burst()
    assert Run.objects.get().result == "async"


def test_a_timeout_error_of_the_task_itself_is_told_apart(broker):
    make_due(broker, schedule("abroken", timeout=LONG))
    run_burst()
    assert Run.objects.get().reason == "TimeoutError: the bank did not answer"


@pytest.fixture
def short_grace(settings, monkeypatch):
    settings.DELAYQ = {**settings.DELAYQ, "TIMEOUT_GRACE_SECONDS": 0.3}
    monkeypatch.setattr(loop, "SLOTS_SECONDS", 0.2)


def test_what_does_not_react_is_recorded_without_it_and_the_process_is_recycled(broker, tmp_path, short_grace):
    trace, gate, neighbour = tmp_path / "trace", tmp_path / "gate", tmp_path / "neighbour"
    row = schedule("stubborn", name="hung", args=[str(trace), str(gate)])
    make_due(broker, row)
    beside = tmp_path / "gate beside"
    make_due(broker, schedule("note", name="beside", timeout=None, args=[str(neighbour), "n", 0, str(beside)]))
    running = Running(threads=2)
    wait_until(lambda: lines(trace) and lines(neighbour), 30)
    waiting = schedule("noop", name="waiting", timeout=None)
    make_due(broker, waiting)
    wait_until(lambda: running.worker.leaving)
    beside.touch()
    assert running.ended() == RECYCLE
    hung = Run.objects.get(schedule_name="hung")
    assert (hung.status, hung.reason) == (Status.FAILED, "timeout")
    assert "in stubborn" in hung.error
    assert Run.objects.get(schedule_name="beside").status == Status.SUCCEEDED
    assert not Run.objects.filter(schedule_name="waiting").exists()
    assert not view(broker, waiting).leased
    gate.touch()
    wait_until(lambda: len(lines(trace)) == 2, 10)
    assert lines(trace)[1] == ["end", "lost"]  # the context told it that somebody else may run the point
    time.sleep(0.3)  # a late report would come now
    assert running.worker.inbox.empty()
    hung.refresh_from_db()
    assert (hung.status, hung.reason, hung.result) == (Status.FAILED, "timeout", None)


def test_what_does_not_react_is_tried_again_while_attempts_are_left(broker, tmp_path, short_grace):
    row = schedule("stubborn", args=[str(tmp_path / "f"), str(tmp_path / "gate")], max_attempts=2)
    make_due(broker, row)
    running = Running()
    assert running.ended() == RECYCLE
    (tmp_path / "gate").touch()
    assert (Run.objects.get().status, Run.objects.get().attempt) == (Status.RETRYING, 1)
    assert not view(broker, row).leased
    assert view(broker, row).score_ms > broker.read_now_ms()


def test_a_stop_while_it_is_being_recycled_is_a_stop(broker, tmp_path, short_grace):
    gate, neighbour, beside = tmp_path / "gate", tmp_path / "neighbour", tmp_path / "gate beside"
    make_due(broker, schedule("stubborn", args=[str(tmp_path / "f"), str(gate)]))
    make_due(broker, schedule("note", name="beside", timeout=None, args=[str(neighbour), "n", 0, str(beside)]))
    running = Running()
    wait_until(lambda: lines(neighbour) and running.worker.leaving, 30)
    running.worker.stop()
    beside.touch()
    assert running.ended() == OK
    gate.touch()
    assert Run.objects.get(schedule_name="beside").status == Status.SUCCEEDED


@pytest.mark.parametrize("task", ["ablock", "stubborn"])
def test_a_process_ends_when_its_grace_is_over_whatever_its_tasks_do(task, broker, tmp_path):
    """Python itself would wait for the thread of a coroutine that blocks."""
    path = tmp_path / "f"
    args = [str(path), LONG if task == "ablock" else str(tmp_path / "gate")]
    make_due(broker, schedule(task, timeout=None, args=args))
    with worker(DRAIN_SECONDS=0.5) as process:
        wait_until(path.exists, 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == UNFINISHED


# Note [One exception at most]


def held():
    """An entry of which only the timeouts ask anything."""
    return Lease(None, "", "", float("inf"), *[None] * 5)


class Watched:
    """Timeouts without a worker."""

    def __init__(self, grace_seconds=LONG):
        self.overdue = []
        self.timeouts = Timeouts(
            grace_seconds=grace_seconds, give_up=lambda held, where: None, overdue=self.overdue.append,
            forget=forget_connections,
        )  # fmt: skip

    def __enter__(self):
        self.timeouts.start()
        return self

    def __exit__(self, *exc_info):
        self.timeouts.stop()


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(20))
    return "done"


class GateThatMeets(Watch):
    """A watch at whose gate the two meet: the watching thread sends right before, or right after, the task ends."""

    def __init__(self, first):
        super().__init__(held(), LONG, LONG, interrupt=True)
        self._real, self._gate, self._first = self._gate, self, first

    def acquire(self, blocking):
        """Both sides come here; the side of the slot lets the other one go first, or tries after it."""
        if threading.get_ident() != self.ident:
            return self._real.acquire(blocking=False)
        won = self._first == "task" and self._real.acquire(blocking=False)
        self.send()
        return won or self._real.acquire(blocking=False)

    def send(self):
        sender = threading.Thread(target=self.interrupt)
        sender.start()
        sender.join()


@pytest.mark.parametrize(("first", "expected"), [("task", (1, type(None))), ("watcher", (None, TaskTimeout))])
def test_whoever_is_first_at_the_gate_decides(first, expected, monkeypatch):
    gate = GateThatMeets(first)
    monkeypatch.setattr(timeouts, "Watch", lambda *args, **kwargs: gate)
    value, error = Watched().timeouts.run(lambda: 1, held(), LONG, interrupt=True)
    assert (value, type(error)) == expected
    gate.send()  # one that is late: the thread does something else by now
    assert busy(0.05) == "done"


def test_a_task_that_ends_while_the_exception_is_being_sent_waits_for_it(monkeypatch):
    send = timeouts._raise_in

    def send_slowly(ident, exception):
        if exception is TaskTimeout:
            time.sleep(0.3)  # the task ends meanwhile
        send(ident, exception)

    monkeypatch.setattr(timeouts, "_raise_in", send_slowly)
    with Watched() as watched:
        outcome = watched.timeouts.run(lambda: busy(0.1), held(), 0.05, interrupt=True)
        assert outcome == ("done", None) or isinstance(outcome[1], TaskTimeout)
        assert busy(0.6) == "done"


def test_after_a_timeout_a_function_can_be_traced():
    """Python 3.11 hangs there once an exception was taken back; 3.12 only becomes slower."""
    script = """
import sys, time, django
django.setup()
from django_delayq.worker.held import Lease
from django_delayq.worker.timeouts import Timeouts

def task():
    while True:
        time.sleep(0.01)

timeouts = Timeouts(grace_seconds=60, give_up=print, overdue=print, forget=lambda: None)
timeouts.start()
error = timeouts.run(task, Lease(None, "", "", 0.0, *[None] * 5), 0.05, interrupt=True)[1]
sys.settrace(lambda *args: None)
(lambda: print(type(error).__name__))()
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.stdout == "TaskTimeout\n", ran.stderr


# While Python collects garbage an exception may be lost: `worker/timeouts.py`, Note [One exception at most].
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_many_tasks_that_end_at_their_timeout_leave_the_slots_unharmed():
    """As many more as it takes until both ways have happened: a busy machine may prefer one of them for a while."""
    escaped, outcomes, both = [], [], {("done", type(None)), (None, TaskTimeout)}
    end = time.monotonic() + PATIENCE_SECONDS

    def slot(seed, watched):
        chance, count = random.Random(seed), itertools.count(1)
        try:
            while next(count) <= 150 or (set(outcomes) != both and time.monotonic() < end):
                seconds = chance.uniform(0.0005, 0.003)
                call = partial(busy, seconds + chance.uniform(-0.0003, 0.0003))
                value, error = watched.timeouts.run(call, held(), seconds, interrupt=True)
                outcomes.append((value, type(error)))
                busy(0.001)  # our own code, and the next task, which has no timeout
        except BaseException as error:
            escaped.append(error)

    with Watched() as watched:
        threads = [threading.Thread(target=slot, args=(seed, watched)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert escaped == []
    assert len(outcomes) >= 4 * 150
    assert set(outcomes) == both, "both ways must have happened"
    assert not watched.timeouts._watches


def test_an_exception_that_a_task_swallowed_does_not_come_again():
    def swallow():
        try:
            busy(LONG)
        except TaskTimeout:
            return "swallowed"

    with Watched() as watched:
        assert watched.timeouts.run(swallow, held(), 0.05, interrupt=True) == ("swallowed", None)
        assert busy(0.2) == "done"


def test_the_end_and_the_hard_timeout_have_one_winner():
    late, count = 0, 0
    with Watched(grace_seconds=0.0) as watched:
        chance, end = random.Random(5), time.monotonic() + PATIENCE_SECONDS
        while count < 300 or (late in (0, count) and time.monotonic() < end):
            count += 1
            entry = held()
            watched.overdue.clear()
            watched.timeouts.run(lambda: time.sleep(chance.uniform(0.001, 0.003)), entry, 0.002, interrupt=False)
            mine = entry.conclude()
            wait_until(lambda mine=mine: mine or watched.overdue, 10, "the report")
            busy(0.0005)
            assert mine + len(watched.overdue) == 1
            late += not mine
    assert 0 < late < count, "both ways must have happened"


def test_without_timeouts_the_watching_thread_sleeps():
    with Watched() as watched:
        looks = []
        look = watched.timeouts._look
        watched.timeouts._look = lambda now: looks.append(now) or look(now)
        time.sleep(0.3)  # in which nothing happens
        assert looks == []
        for _ in range(50):  # later ones than the first need no waking
            watched.timeouts.run(lambda: None, held(), LONG, interrupt=True)
        assert len(looks) <= 3
        count = len(looks)
        time.sleep(0.3)  # in which nothing happens
        assert len(looks) <= count + 1


@pytest.fixture(autouse=True)
def close_connections():
    yield
    connections.close_all()
