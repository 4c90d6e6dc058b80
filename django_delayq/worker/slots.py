"""The threads that run tasks, and how much may be claimed for them. Knows no Redis and no ledger."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from ..compat import AnyTask
from .connections import forget_connections
from .entry import Finished, Held
from .jobs.entry import FinishedJob, HeldJob

#: Work claimed ahead of free slots is at most this much of measured time.
AHEAD_SECONDS = 0.25
#: The weight of the newest duration in the running mean.
NEWEST = 0.2


class Slots:
    """A fixed number of threads with one inbox. `report` is called in a slot's thread with each finished entry.

    Note [Claim ahead]
    A slot that waits for the next claim idles for a round trip, which is most of the time for tasks of microseconds. So
    more than the free slots may be claimed, as much as the measured mean says will start within AHEAD_SECONDS. Once no
    task has ended for that long, the mean is no longer to be trusted: nothing is claimed ahead, and what waits
    unstarted is handed back for other workers.
    """

    def __init__(
        self,
        threads: int,
        call: Callable[[Held | HeldJob, AnyTask], Finished | FinishedJob | None],
        report: Callable[[Finished | FinishedJob], None],
    ) -> None:
        """`call` executes an entry; where it returns None, somebody else has reported the outcome already."""
        self.threads = threads
        self._call = call
        self._report = report
        self._inbox: queue.SimpleQueue[tuple[Held | HeldJob, AnyTask] | None] = queue.SimpleQueue()
        self._busy = 0  # submitted, and neither ended nor taken back
        self._ends = 0  # in the inbox: each tells one thread to end
        self._lock = threading.Lock()
        self._mean: float | None = None
        self._last_end = 0.0
        self._pool = [threading.Thread(target=self._run, name=f"delayq-slot-{n}", daemon=True) for n in range(threads)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._pool:
            thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Let the threads end after what they run; say whether all did in time."""
        with self._lock:
            self._ends += len(self._pool)
        for _ in self._pool:
            self._inbox.put(None)
        end = time.monotonic() + timeout_seconds
        for thread in self._pool:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._pool)

    def submit(self, held: Held | HeldJob, task: AnyTask) -> None:
        """Queue an entry for the next free slot."""
        with self._lock:
            self._busy += 1
        self._inbox.put((held, task))

    def submit_many(self, items: Sequence[tuple[Held | HeldJob, AnyTask]]) -> None:
        """Queue entries for the next free slots, in this order."""
        with self._lock:
            self._busy += len(items)
        for item in items:
            self._inbox.put(item)

    @property
    def waiting(self) -> int:
        """Entries that did not start yet."""
        return max(0, self._inbox.qsize() - self._ends)

    @property
    def running(self) -> int:
        """Entries that run now."""
        return max(0, self._busy - self.waiting)

    @property
    def free(self) -> int:
        """Slots that would start another entry at once."""
        return max(0, self.threads - self._busy)

    def stalled(self) -> bool:
        """Say whether all slots are busy and nothing has ended for a while. See Note [Claim ahead]."""
        return self._busy >= self.threads and not self._moving()

    def _moving(self) -> bool:
        return time.monotonic() - self._last_end < AHEAD_SECONDS

    def capacity(self) -> int:
        """Return how many entries to claim now. See Note [Claim ahead]."""
        room = self.free
        if self._mean is not None and self._moving():
            room = max(room, int(self.threads * AHEAD_SECONDS / max(self._mean, 1e-6)) - self._busy)
        return max(0, room)

    def take_back(self) -> list[Held | HeldJob]:
        """Take everything that did not start out of the inbox again."""
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if item is not None:
                    taken.append(item[0])
        with self._lock:
            self._busy -= len(taken)
        return taken

    def _run(self) -> None:
        while True:
            item = self._inbox.get()
            if item is None:
                with self._lock:
                    self._ends -= 1
                forget_connections()
                return
            if item[0].lapsed():
                self._end(None)
                self._report(_unstarted(item[0]))
                continue
            finished = self._call(*item)
            self._end(finished)
            if finished is not None:
                self._report(finished)

    def _end(self, finished: Finished | FinishedJob | None) -> None:
        with self._lock:
            self._busy -= 1
            if finished is None:
                return
            self._last_end = time.monotonic()
            mean = finished.seconds if self._mean is None else self._mean
            self._mean = mean + NEWEST * (finished.seconds - mean)


def _unstarted(held: Held | HeldJob) -> Finished | FinishedJob:
    return FinishedJob(held, 0.0) if isinstance(held, HeldJob) else Finished(held, 0.0, started=False)
