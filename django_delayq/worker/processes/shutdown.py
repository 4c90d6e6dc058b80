"""The stop signals of a worker process, and its view of the supervisor that started it. They exchange no messages.

Note [Supervised workers drain once]
A worker without a supervisor drains at the first SIGTERM or SIGINT and ends at once at the second. Under a supervisor
one request arrives several times (from Ctrl-C, systemd and the supervisor), so any number of signals requests one
drain, and only the supervisor kills. SIGHUP counts once; if it was ignored at the start (nohup), it stays so.

Note [Forked children restore signal handlers]
A child that a task forks inherits these handlers and would ignore the SIGTERM by which `multiprocessing` ends it. So
the child restores the former handlers. Signals are blocked until then, because these handlers would consume them.

Note [A hung process is ended by faulthandler]
A task in C code that never releases the interpreter hangs its process, including the thread that renews leases. After
two lease periods its entries belong to other workers, so ending it costs nothing. No Python thread could end it, but
`faulthandler` waits outside the interpreter.
"""

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, MutableMapping
from types import FrameType
from typing import Final, NamedTuple, Self

from ... import conf
from ..loop import Worker
from ..process import MARGIN_SECONDS, SIGNALS

logger = logging.getLogger("django_delayq.worker")

#: Holds "process id of the supervisor, number of this process" if the worker has a supervisor.
VARIABLE: Final = "DELAYQ_SUPERVISOR"
#: Minimum seconds without progress that count as a hang, however short the leases are.
BUSY_SECONDS: Final = 10.0
#: Time between two checks that the supervisor lives; each restarts the limit for a hang.
LOOK_SECONDS: Final = 1.0


class Parent(NamedTuple):
    """A worker's supervisor; `number` is the number of the worker among those it started, from 1."""

    pid: int
    number: int

    @classmethod
    def find_in(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Return the supervisor of this process, or None. Removes it from the environment that tasks pass on."""
        try:
            pid, number = map(int, environment.pop(VARIABLE, "").split())
        except ValueError:
            return None
        return cls(pid, number)

    def watch(self, gone: Callable[[], None]) -> None:
        """In a thread: end this process if it hangs; once the supervisor is gone, call `gone` and limit the drain."""
        config = conf.get_config()
        hung_seconds, stderr = max(2 * config.lease_seconds, BUSY_SECONDS), _open_stderr()

        def look() -> None:
            while os.getppid() == self.pid:  # an orphaned process gets another parent
                faulthandler.dump_traceback_later(hung_seconds, exit=True, file=stderr)
                time.sleep(LOOK_SECONDS)
            faulthandler.dump_traceback_later(config.drain_seconds + MARGIN_SECONDS, exit=True, file=stderr)
            logger.warning("The supervisor is gone: this worker drains and ends.")
            gone()

        threading.Thread(target=look, name="delayq-parent", daemon=True).start()


def _open_stderr() -> int:
    """Return a descriptor of standard error that never blocks; text that it does not take is lost."""
    try:
        return os.open("/dev/stderr", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError:
        return 2


def set_stop_handlers(handler: Callable[[int, FrameType | None], object]) -> "dict[int, signal._HANDLER]":
    """Handle the stop signals; return the former handlers. See Note [Supervised workers drain once]."""
    # A handler rather than SIG_IGN, which processes started by tasks would inherit.
    return {
        number: signal.signal(number, handler)
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }


class WorkerSignals:
    """Handles the stop signals of a worker. `to_stop` is True once this process was requested to end."""

    def __init__(self, worker: Worker, *, supervised: bool) -> None:
        self._worker = worker
        self._supervised = supervised
        self.to_stop = False
        self._exit_status: int | None = None  # set once the worker has drained
        self._before: dict[int, signal._HANDLER] = {}
        self._forking = threading.local()

    def obey(self) -> None:
        """Install the handlers, then unblock pending signals. See Note [Signals wait for the handlers]."""
        self._before = set_stop_handlers(self._stop)
        unblock, restore = self._unblock_after_fork, self._restore_in_child
        os.register_at_fork(before=self._block_for_fork, after_in_parent=unblock, after_in_child=restore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def restore(self) -> None:
        """Restore the former handlers, for children and for code that continues after the command."""
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self._before.clear()

    def drain(self) -> None:
        """Request a drain; may be repeated. Safe in a signal handler and in any thread."""
        self.to_stop = True
        if not self._worker.stopping:
            self._worker.stop()

    def end_drain(self, exit_status: int) -> None:
        """Make further signals end this process at once, with this status; under a supervisor, ignore them."""
        self._exit_status = exit_status
        for number in SIGNALS if self._supervised else ():
            signal.signal(number, signal.SIG_IGN)  # Python restores the default of a handler before it ends

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._supervised or number == signal.SIGHUP:
            self.drain()
        elif self._exit_status is not None:
            os._exit(self._exit_status)
        elif self.to_stop:
            self._worker.stop()
        else:
            self.drain()

    # -- a task forks: see Note [Forked children restore signal handlers]

    def _block_for_fork(self) -> None:
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _unblock_after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _restore_in_child(self) -> None:
        self.restore()
        self._unblock_after_fork()
