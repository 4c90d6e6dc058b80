"""The parent of several workers: waits for signals, words and deaths, and has the pool act on them.

It runs no task, talks to no Redis and no database and holds no lease. So whatever happens to one of its children
happens to no other; and when it is killed itself, the children notice (`channel.py`) and drain.
"""

import logging
import os
import selectors
import time
from collections.abc import Callable

from .. import conf
from ..worker.options import OK, UNFINISHED
from .child import Child
from .pool import Pool
from .process import command_line
from .signals import SupervisorSignals

logger = logging.getLogger("django_delayq.worker")

#: How long an interpreter may need until its worker says the first word.
START_SECONDS = 120.0
#: Silence that is no sign of anything, however short the leases are.
BUSY_SECONDS = 10.0
#: The longest sleep, although everything worth waking up for wakes us.
CAP_SECONDS = 5.0


class Supervisor:
    """Keeps `processes` workers; with `burst`, until each has found nothing due. `pool.failure` says why it gave up.

    Note [Silence]
    A task in C code that never lets go of the interpreter hangs its whole process, with the thread that renews the
    leases and the one that says ALIVE. After two leases without a word all leases of that process have run out, and
    other workers have what it had. Killing it then costs nothing that is not lost already, and frees its place.
    """

    def __init__(self, processes: int, *, burst: bool, moved: Callable[[Pool], None] = lambda pool: None) -> None:
        """`moved` is called each time the loop comes by."""
        config = conf.get_config()
        self._processes = processes
        self.pool = Pool(processes, command_line(), drain_seconds=config.drain_seconds, burst=burst)
        self._moved = moved
        self._signals = SupervisorSignals()
        self._selector = selectors.DefaultSelector()
        self._silence_seconds = max(2 * config.lease_seconds, BUSY_SECONDS)

    def run(self) -> int:
        """Supervise until told to stop, or until nothing is due in burst mode. In the main thread only.

        Returns the exit status: OK if all drained.
        """
        with self._signals, self._selector:
            logger.info("Supervisor of %d processes, pid %d.", self._processes, os.getpid())
            self._selector.register(self._signals, selectors.EVENT_READ)
            while True:
                self._moved(self.pool)
                self._obey()
                for child in self.pool.start_missing():
                    self._selector.register(child, selectors.EVENT_READ, child)
                if self.pool.done:
                    break
                self._wait()
                for child in self.pool.reap():
                    self._forget(child)
                    child.close()
                self._end_overdue()
        logger.info("All processes have ended.")
        return OK if self.pool.clean and not self.pool.failure else UNFINISHED

    def _obey(self) -> None:
        if self._signals.stops and not self.pool.stopping:
            self.pool.stop()
        if self._signals.stops > 1:
            self.pool.kill()
        if self._signals.renew:
            self._signals.renew = False
            self.pool.renew()

    def _wait(self) -> None:
        """Sleep until something happens, and hear what the children say."""
        now = time.monotonic()
        moments = [child.deadline for child in self.pool.children if not child.killed]
        moments += [now + CAP_SECONDS, self.pool.next_start()]
        seconds = min(moment for moment in moments if moment is not None) - now
        for key, _ in self._selector.select(max(0.0, seconds)):
            if isinstance(key.data, Child):
                self.pool.hear(key.data)
                if key.data.hung_up:
                    self._forget(key.data)
            else:
                self._signals.clear()
        if time.monotonic() - now > CAP_SECONDS + BUSY_SECONDS / 2:  # we stood still ourselves, and heard nobody
            for child in self.pool.children:
                child.heard_at = time.monotonic()

    def _forget(self, child: Child) -> None:
        if child.fileno() in self._selector.get_map():
            self._selector.unregister(child)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for child in self.pool.children:
            if child.killed:
                continue
            if child.deadline is not None and now >= child.deadline:
                logger.error("%s has not drained in time: killing it.", child)
                child.kill()
            elif now - child.heard_at > (self._silence_seconds if child.spoke else START_SECONDS):
                text = "%s has said nothing for %.0f s, as if a task kept it from running: killing it."
                logger.error(text, child, now - child.heard_at)
                child.kill()
