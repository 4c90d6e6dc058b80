"""The threads of a worker: all of them work, and none of them may lose anything."""

import threading
import time
from dataclasses import dataclass, field

import pytest

from django_delayq.worker.held import Lease
from django_delayq.worker.slots import Slots
from tests.acceptance.support import PATIENCE_SECONDS, wait_until

SHORT, LONG = 0.000_01, 0.5


@dataclass(eq=False)
class Item(Lease):
    """What the slots are given here: calls `act`, and is said to have taken `seconds`. It lets other threads go on."""

    shard: object = None
    member: str = "j1"
    holder: str = ""
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
        self.submit(*items)
        self.ended(*items)

    def ended(self, *items):
        """Wait until these are reported."""
        wait_until(lambda: set(items) <= set(self.reported), 10)


@pytest.fixture
def bench():
    made = Bench()
    yield made
    assert made.slots.stop(PATIENCE_SECONDS), "every thread ends"
    assert not made.errors


def barrier(parties):
    """Return what ends only where so many threads do it at once."""
    made = threading.Barrier(parties)
    return lambda: made.wait(PATIENCE_SECONDS)


def test_tasks_that_wait_run_in_all_threads(bench):
    together = barrier(4)
    bench.run(*(Item(act=together, seconds=LONG) for _ in range(8)))


def test_a_task_that_waits_holds_up_nothing(bench):
    gate = threading.Event()
    stuck, others = Item(act=lambda: gate.wait(PATIENCE_SECONDS), seconds=LONG), [Item() for _ in range(100)]
    bench.submit(stuck, *others)
    bench.ended(*others)
    assert stuck not in bench.reported and bench.slots.running == 1
    gate.set()
    bench.ended(stuck)


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
