"""The parent of several workers: waits for signals, words and deaths, and has the crew act on them.

It runs no task, talks to no Redis and no database and holds no lease. So whatever happens to one of its children
happens to no other; and when it is killed itself, the children notice (`line.py`) and drain.
"""

import logging
import os
import selectors
import time

from ..worker.status import OK, UNFINISHED
from .alarm import Alarm
from .child import Child
from .crew import Crew, SupervisorOptions

logger = logging.getLogger("django_delayq.worker")

#: How long an interpreter may need until its worker says the first word.
START_SECONDS = 120.0
#: Silence that is no sign of anything, however short the leases are.
BUSY_SECONDS = 10.0
#: The longest sleep, although everything worth waking up for wakes us.
CAP_SECONDS = 5.0


class Supervisor:
    """Keeps `processes` workers. `run()` returns the exit status: 0 if all drained; `failure` says why it gave up.

    Note [Silence]
    A task in C code that never lets go of the interpreter hangs its whole process, with the thread that renews the
    leases and the one that says ALIVE. After two leases without a word all leases of that process have run out, and
    other workers have what it had. Killing it then costs nothing that is not lost already, and frees its place.
    """

    def __init__(self, options: SupervisorOptions) -> None:
        self._crew = Crew(options)
        self._alarm = Alarm()
        self._selector = selectors.DefaultSelector()
        self._silence_seconds = max(2 * options.lease_seconds, BUSY_SECONDS)
        self._killed = False
        self._renewals = 0

    @property
    def failure(self) -> str:
        """Why no worker can start; '' where nothing is wrong."""
        return self._crew.failure

    def run(self) -> int:
        """Supervise until told to stop, or until nothing is due in burst mode. In the main thread only."""
        with self._alarm, self._selector:
            logger.info("Supervisor of %d processes, pid %d.", len(self._crew.seats), os.getpid())
            self._selector.register(self._alarm, selectors.EVENT_READ)
            while True:
                self._obey()
                for child in self._crew.start_missing():
                    self._selector.register(child, selectors.EVENT_READ, child)
                if self._crew.done:
                    break
                self._wait()
                for child in self._crew.bury():
                    self._forget(child)
                    child.close()
                self._end_overdue()
        logger.info("All processes have ended.")
        return OK if self._crew.clean and not self.failure else UNFINISHED

    def _obey(self) -> None:
        """Carry out what signals asked for."""
        if self._alarm.stops and not self._crew.stopping:
            self._crew.stop()
        if self._alarm.stops > 1 and not self._killed:
            self._killed = True
            self._crew.kill()
        if self._alarm.renewals > self._renewals:
            self._renewals = self._alarm.renewals
            self._crew.renew()

    def _wait(self) -> None:
        """Sleep until something happens, and hear what the children say."""
        now = time.monotonic()
        moments = [child.deadline for child in self._crew.children if not child.killed]
        moments += [now + CAP_SECONDS, self._crew.next_start()]
        seconds = min(moment for moment in moments if moment is not None) - now
        for key, _ in self._selector.select(max(0.0, seconds)):
            if isinstance(key.data, Child):
                self._crew.hear(key.data)
                if key.data.hung_up:
                    self._forget(key.data)
            else:
                self._alarm.silence()
        if time.monotonic() - now > CAP_SECONDS + BUSY_SECONDS / 2:  # we stood still ourselves, and heard nobody
            for child in self._crew.children:
                child.heard_at = time.monotonic()

    def _forget(self, child: Child) -> None:
        if child.fileno() in self._selector.get_map():
            self._selector.unregister(child)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for child in self._crew.children:
            if child.killed:
                continue
            if child.deadline is not None and now >= child.deadline:
                logger.error("%s has not drained in time: killing it.", child)
                child.kill()
            elif now - child.heard_at > (self._silence_seconds if child.spoke else START_SECONDS):
                text = "%s has said nothing for %.0f s, as if a task kept it from running: killing it."
                logger.error(text, child, now - child.heard_at)
                child.kill()
