"""The signals of a worker process and of a supervisor, and what they mean. Drains and ends no worker itself.

Note [One order to stop]
Alone, a worker drains at the first SIGTERM or SIGINT and ends at once at the second. Under a supervisor the same order
reaches it several times: Ctrl-C goes to the whole group, systemd tells every process of the unit, and the supervisor
passes on what it hears. So there any number of signals is one order, to drain; the supervisor alone knows of a second
order, and then kills. Whether a worker already drains for a reason of its own says nothing about how often it was told.
A terminal that closes says so by SIGHUP, more than once: that is one order too. Who started a command with SIGHUP
ignored, as nohup does, wants it to stay.

Note [Not for children]
A child that a task forks inherits these handlers, and would swallow the SIGTERM by which `multiprocessing` ends it. So
it gets back what stood before. What is sent to it before that waits, or the handlers would have swallowed it already.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from ..loop import Worker
from .process import SIGNALS


def handle_orders(handler: Callable[[int, FrameType | None], object]) -> "dict[int, signal._HANDLER]":
    """Handle the orders to stop; return what stood before. See Note [One order to stop]."""
    # SIG_IGN would be inherited by what tasks start.
    return {
        number: signal.signal(number, handler)
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }


class WorkerSignals:
    """`to_stop` tells whether this process was told to end."""

    def __init__(self, worker: Worker, *, supervised: bool) -> None:
        self._worker = worker
        self._supervised = supervised
        self.to_stop = False
        self._exit_status: int | None = None  # once all is drained
        self._before: dict[int, signal._HANDLER] = {}
        self._forking = threading.local()

    def obey(self) -> None:
        """Install the handlers, then let through what came in meanwhile. See Note [Signals in between]."""
        self._before = handle_orders(self._stop)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def restore(self) -> None:
        """Put the former handlers back: for children, and for code that called the command and goes on."""
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self._before.clear()

    def drain(self) -> None:
        """Give the order to drain, as often as it comes. Safe in a signal handler and in any thread."""
        self.to_stop = True
        if not self._worker.stopping:
            self._worker.stop()

    def drained(self, exit_status: int) -> None:
        """Let each further order end this process at once, with this status; one of a supervisor's ignores them.

        The supervisor's own order may come only now, and Python gives signals their defaults back before it ends.
        """
        self._exit_status = exit_status
        for number in SIGNALS if self._supervised else ():
            signal.signal(number, signal.SIG_IGN)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._supervised or number == signal.SIGHUP:
            self.drain()
        elif self._exit_status is not None:
            os._exit(self._exit_status)
        elif self.to_stop:
            self._worker.stop()
        else:
            self.drain()

    # -- a task forks: see Note [Not for children]

    def _before_fork(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _in_child(self) -> None:
        self.restore()
        self._after_fork()
