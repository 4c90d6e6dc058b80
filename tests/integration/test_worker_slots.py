"""The threads of a worker: how many of them work, and what none of them may lose."""

import threading
import time
from dataclasses import dataclass, field

import pytest

from django_delayq.compat import TaskResultStatus
from django_delayq.worker import slots
from django_delayq.worker.held import Held
from django_delayq.worker.slots import Slots
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.app.tasks import noop, stubborn
from tests.faults.live import live_worker

SHORT, LONG = 0.000_01, 0.5


@dataclass(eq=False)
class Item(Held):
    """What the slots are given here: calls `act`, and is said to have taken `seconds`. It lets other threads go on."""

    shard: object = None
    member: str = "j1"
    lease: str = ""
    deadline: float = float("inf")
    entry: object = None
    fence: str = ""
    worker: str = ""
    claimed_at: object = None
    point: object = None
    act: object = lambda: time.sleep(0)
    seconds: float = SHORT
    thread: list[str] = field(default_factory=list)


class Bench:
    """Slots, and what they reported."""

    def __init__(self, threads=4):
        self.reported, self.errors = [], []
        self.slots = Slots(threads, self.call, self.reported.append)
        self.slots.start()

    def call(self, held):
        """Do what a worker does for an entry."""
        held.executed = True
        held.thread.append(threading.current_thread().name)
        try:
            held.act()
        except Exception as error:
            self.errors.append(error)
            raise
        return True

    def submit(self, *items):
        """Queue these."""
        self.slots.submit(items)

    def run(self, *items):
        """Queue these, and wait for their ends."""
        self.run_beside(*items)
        wait_until(lambda: self.slots._awake == 0, 10, "the threads to sleep")

    def run_beside(self, *items):
        """Queue these, and wait for their ends, whatever else still runs."""
        self.submit(*items)
        self.ended(*items)

    def ended(self, *items):
        """Wait until these are reported."""
        wait_until(lambda: set(items) <= self.held_of_reports(), 10)

    def held_of_reports(self):
        """Return what was reported."""
        return set(self.reported)

    def threads_of(self, *items):
        """Return the threads that executed these."""
        return {name for item in items for name in item.thread}


@pytest.fixture
def bench():
    made = Bench()
    yield made
    assert made.slots.stop(PATIENCE_SECONDS), "every thread ends"
    assert not made.errors


@pytest.fixture
def used_to_short(bench):
    """Slots that have seen nothing but short tasks for a while."""
    bench.run(*(Item() for _ in range(600)))
    return bench


@pytest.fixture
def patient(monkeypatch):
    """A thread that this machine holds up for a moment does not count as one that waits."""
    monkeypatch.setattr(slots, "PATIENCE_SECONDS", 600)


def barrier(parties):
    """Return what ends only where so many threads do it at once."""
    made = threading.Barrier(parties)
    return lambda: made.wait(PATIENCE_SECONDS)


def test_tasks_that_wait_run_in_all_threads(bench):
    together = barrier(4)
    bench.run(*(Item(act=together, seconds=LONG) for _ in range(8)))


def test_short_tasks_run_in_one_thread(used_to_short, patient):
    items = [Item() for _ in range(200)]
    used_to_short.run(*items)
    assert len(used_to_short.threads_of(*items)) == 1


def test_threads_that_are_awake_leave_short_tasks_to_one(bench, patient):
    """They were woken before anything was known of the tasks, and there is always more to do."""
    first, later = [Item() for _ in range(1500)], [Item() for _ in range(300)]
    bench.run(*first, *later)
    assert len(bench.threads_of(*later)) == 1


def test_a_task_that_waits_holds_up_nothing(used_to_short):
    gate = threading.Event()
    stuck, others = Item(act=lambda: gate.wait(PATIENCE_SECONDS), seconds=LONG), [Item() for _ in range(100)]
    used_to_short.submit(stuck, *others)
    wait_until(lambda: stuck.thread, 10)
    assert used_to_short.slots.holding_back

    def patient():
        used_to_short.slots.nothing_ended(waited=True)
        return not used_to_short.slots.waiting

    wait_until(patient, 10)
    used_to_short.ended(*others)
    assert stuck not in used_to_short.held_of_reports()
    gate.set()
    used_to_short.ended(stuck)


def test_what_is_submitted_while_a_task_waits_starts_at_once(used_to_short):
    gate = threading.Event()
    stuck, others = Item(act=lambda: gate.wait(PATIENCE_SECONDS), seconds=LONG), [Item() for _ in range(10)]
    used_to_short.submit(stuck)
    wait_until(lambda: stuck.thread, 10)
    time.sleep(2 * slots.PATIENCE_SECONDS)  # until it is known to wait
    used_to_short.run_beside(*others)
    assert stuck not in used_to_short.held_of_reports()
    gate.set()
    used_to_short.ended(stuck)


def test_tasks_that_begin_to_wait_get_all_threads(used_to_short):
    used_to_short.run(*(Item(seconds=LONG) for _ in range(5)))
    together = barrier(4)
    used_to_short.run(*(Item(act=together, seconds=LONG) for _ in range(4)))


def test_an_entry_whose_execution_fails_unforeseen_is_let_go_and_its_thread_goes_on(bench, caplog):
    def burst():
        raise RuntimeError("nobody foresaw this")

    bad, good = [Item(act=burst) for _ in range(9)], Item()
    bench.run(*bad, good)
    assert [found.executed for found in bench.reported].count(False) == 9
    assert "nobody foresaw this" in caplog.text
    assert len(bench.errors) == 9
    bench.errors.clear()
    assert bench.slots.free == bench.slots.threads


@pytest.mark.django_db(transaction=True)
def test_in_a_worker_a_job_that_waits_holds_up_no_short_ones(broker, tmp_path):
    """Only one thread is awake then, and the loop wakes the next."""
    with live_worker() as live:
        noop.enqueue_many([((), {})] * 800)
        wait_until(lambda: live.worker.runs == 800, 60, "the short ones")
        live.worker.slots._long = 0.0  # however slow this machine was
        stuck = stubborn.enqueue(str(tmp_path / "began"), str(tmp_path / "gate"))
        wait_until((tmp_path / "began").exists, 20)
        results = noop.enqueue_many([((), {})] * 100)
        wait_until(lambda: live.worker.runs == 900, 20, "those behind it")
        assert live.worker.slots.running == 1
        assert {noop.get_result(found.id).status for found in results} == {TaskResultStatus.SUCCESSFUL}
        (tmp_path / "gate").touch()
        wait_until(lambda: stubborn.get_result(stuck.id).is_finished, 20)
