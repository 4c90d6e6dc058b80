"""How a process under a supervisor begins, as a fresh interpreter, and how a worker ends, within a bounded time.

Note [A worker process is never forked]
A worker process is never forked from a loaded one: a fork inherits connections that both processes then read, and
locks of threads that do not exist in it. A fresh interpreter with the same command line keeps what wraps the command
(a custom `manage.py`, coverage) and runs the code that is installed *now*.

Note [Signals wait for the handlers]
A stop signal that arrives while the interpreter starts would kill the process, or raise KeyboardInterrupt in an
import. So the parent blocks these signals for the child until `WorkerSignals` has installed its handlers.

Note [The end of a process is bounded]
Python waits for all threads, the exit handlers and the output. Something that a task left behind (a thread, a child,
a full pipe) can delay this for ever. By then all is recorded and no lease is held: the process ends in END_SECONDS.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from django.core.exceptions import ImproperlyConfigured

logger = logging.getLogger("django_delayq.worker")

#: The signals that stop a worker.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Seconds beyond DRAIN_SECONDS that a worker may take to record its outcomes and to end its interpreter.
MARGIN_SECONDS: Final = 5.0
#: Seconds, within that margin, that the end of the interpreter may take.
END_SECONDS: Final = 2.0


def build_command_line() -> list[str]:
    """Return the command that starts this program again. See Note [A worker process is never forked]."""
    if not sys.executable or len(sys.orig_argv) < 2:
        raise ImproperlyConfigured(
            "This Python does not know its own command line. Start delayq_worker with a Python interpreter."
        )
    return [sys.executable, *sys.orig_argv[1:]]


@contextmanager
def block_signals() -> Iterator[None]:
    """Block the signals for this thread, and for what it starts. See Note [Signals wait for the handlers]."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_within(seconds: float, exit_status: int) -> None:
    """Write the output; end this process after `seconds` at the latest. See Note [The end of a process is bounded]."""

    def end() -> None:
        time.sleep(seconds)
        end_children()
        os._exit(exit_status)

    threading.Thread(target=end, name="delayq-end", daemon=True).start()
    _flush_streams()  # may block; the thread ends the process then


def end_at_once(exit_status: int) -> NoReturn:
    """End the process even if tasks run, for which Python would wait; log handlers get END_SECONDS."""
    end_children()
    end_within(END_SECONDS, exit_status)
    with suppress(Exception):
        logging.shutdown()
    os._exit(exit_status)


def _flush_streams() -> None:
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # closed, full, or its reader is gone: the interpreter would try again, and exit with 120
            setattr(sys, name, None)


def open_standard_streams() -> None:
    """Open /dev/null for missing standard streams: another file would get the number of standard output."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w"))


def end_as_child(error: BaseException | None) -> NoReturn:
    """End a forked child that returned from its task: the outcome and the connections belong to its parent."""
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        status = int(error is not None)
        if error is not None:
            logger.error("A process that a task has forked failed.", exc_info=error)
    os._exit(status)


def end_children() -> None:
    """Terminate the children that tasks started by `multiprocessing`, without waiting for them."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        with suppress(Exception):
            child.terminate()


def read_resident_mb() -> float:
    """Return the resident memory of this process in MiB. Raises OSError where there is no /proc."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
