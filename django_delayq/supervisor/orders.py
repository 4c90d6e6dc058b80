"""The signals of a worker process, and what they mean. Drains nothing itself.

Note [One order to stop]
Alone, a worker drains at the first SIGTERM or SIGINT and ends at once at the second. Under a supervisor the same order
reaches it several times: Ctrl-C goes to the whole group, systemd tells every process of the unit, and the supervisor
passes on what it hears. So there any number of signals is one order, to drain; the supervisor alone knows of a second
order, and then kills. Whether a worker already drains for a reason of its own says nothing about how often it was told.
A terminal that closes says so by SIGHUP, more than once: that is one order too. Who started a worker with SIGHUP
ignored, as nohup does, wants it to stay.

Note [Not for children]
A child that a task forks inherits these handlers, and would swallow the SIGTERM by which `multiprocessing` ends it. So
it gets back what stood before. What is sent to it before that waits, or the handlers would have swallowed it already.
"""

import os
import signal
import threading
from types import FrameType
from typing import Protocol

from .fresh import SIGNALS


class Stoppable(Protocol):
    """What `Worker` offers: `stop()` begins to drain, or ends at once if it drains already."""

    stopping: bool

    def stop(self) -> None:
        """Drain; the second time, end at once."""


class Orders:
    """Signal handlers of the main thread. `to_stop` tells whether this process was told to end."""

    def __init__(self, worker: Stoppable, *, supervised: bool) -> None:
        self._worker = worker
        self._supervised = supervised
        self.to_stop = False
        self._exit_status: int | None = None  # once all is drained
        self._before: dict[int, signal._HANDLER] = {}
        self._forking = threading.local()

    def obey(self) -> None:
        """Install the handlers, then let through what came in meanwhile. See Note [Signals in between]."""
        hangup = self._ignore if self._supervised else self._hang_up  # a terminal that closes tells the supervisor too
        for number, handler in ((signal.SIGTERM, self._stop), (signal.SIGINT, self._stop), (signal.SIGHUP, hangup)):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, handler)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def resign(self) -> None:
        """Put the former handlers back: for children, and for code that called the command and goes on."""
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self._before.clear()

    def hold_back(self) -> bool:
        """Block the signals from now on; say whether there was none until now, so that a fresh start is right."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        return not self.to_stop

    def drain(self) -> None:
        """Give the order to drain, as often as it comes. Safe in a signal handler and in any thread."""
        self.to_stop = True
        if not self._worker.stopping:
            self._worker.stop()

    def drained(self, exit_status: int) -> None:
        """Let each further order end this process at once, with this status."""
        self._exit_status = exit_status
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._supervised:
            self.drain()
        elif self._exit_status is not None:
            os._exit(self._exit_status)
        elif self.to_stop:
            self._worker.stop()
        else:
            self.drain()

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        self.drain()

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """Do nothing. SIG_IGN would be inherited by the programs that tasks start."""

    # -- a task forks: see Note [Not for children]

    def _before_fork(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _in_child(self) -> None:
        self.resign()
        self._after_fork()
