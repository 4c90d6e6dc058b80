"""The threads that run tasks, and how much may be claimed for them. Knows no Redis and no ledger."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from ..compat import AnyTask
from .entry import Finished, Held

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

    def __init__(self, threads: int, call: Callable[[Held, AnyTask], Finished], report: Callable[[Finished], None]):
        self.threads = threads
        self._call = call
        self._report = report
        self._inbox: queue.SimpleQueue[tuple[Held, AnyTask] | None] = queue.SimpleQueue()
        self._running = 0
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
        for _ in self._pool:
            self._inbox.put(None)
        end = time.monotonic() + timeout_seconds
        for thread in self._pool:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._pool)

    def submit(self, held: Held, task: AnyTask) -> None:
        """Queue an entry for the next free slot."""
        self._inbox.put((held, task))

    @property
    def waiting(self) -> int:
        """Entries that did not start yet."""
        return self._inbox.qsize()

    @property
    def running(self) -> int:
        """Entries that run now."""
        return self._running

    def stalled(self) -> bool:
        """Say whether entries wait although nothing has ended for a while. See Note [Claim ahead]."""
        return self.waiting > 0 and self._running >= self.threads and not self._moving()

    def _moving(self) -> bool:
        return time.monotonic() - self._last_end < AHEAD_SECONDS

    def capacity(self) -> int:
        """Return how many entries to claim now. See Note [Claim ahead]."""
        busy = self._running + self.waiting
        room = self.threads - busy
        if self._mean is not None and self._moving():
            room = max(room, int(self.threads * AHEAD_SECONDS / max(self._mean, 1e-6)) - busy)
        return max(0, room)

    def take_back(self) -> list[Held]:
        """Take everything that did not start out of the inbox again."""
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if item is not None:
                    taken.append(item[0])
        return taken

    def _run(self) -> None:
        while True:
            item = self._inbox.get()
            if item is None:
                return
            if item[0].lapsed():
                self._report(Finished(item[0], 0.0, started=False))
                continue
            with self._lock:
                self._running += 1
            finished = self._call(*item)
            with self._lock:
                self._running -= 1
                self._last_end = time.monotonic()
                mean = finished.seconds if self._mean is None else self._mean
                self._mean = mean + NEWEST * (finished.seconds - mean)
            self._report(finished)
