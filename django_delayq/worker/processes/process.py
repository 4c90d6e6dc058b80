"""How a process under a supervisor begins, as a fresh interpreter, and how a worker ends, within a bounded time.

Note [A fresh interpreter]
A worker process is never forked off a loaded one. A fork inherits what the parent's imports opened and started: a
database or Redis connection that both ends then read from, the lock that a thread held which does not exist in the
child, a gRPC channel, on macOS frameworks that abort in a forked child. It would save memory and a second, at the price
of failures in code that is not ours, and that only some projects see. The same command line in a fresh interpreter
inherits nothing, brings along whatever wraps the command (a `manage.py` that sets things up, coverage, interpreter
options), and runs the code that is installed *now*.

Note [Signals in between]
A process that is asked to stop while its interpreter starts would die by the signal, or with a KeyboardInterrupt
somewhere in an import. So a fresh interpreter begins with these signals blocked, which a new child inherits. They stay
pending until `WorkerSignals` has its handlers in place, and are obeyed then. What an import starts before that, a
thread or a program, begins with them blocked too.

Note [Gone for good]
Python ends a process once all its threads have ended, its exit handlers have run and its output is written. What a task
left behind (a thread, a child, a full pipe) makes that wait for ever. By then all is recorded and no lease is held, so
there is nothing to wait for but courtesy: what is left has the rest of the grace.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from django.core.exceptions import ImproperlyConfigured

from ...calls.capture import nowhere

#: The signals that a worker obeys.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: How long a worker may need beyond DRAIN_SECONDS, to record what it finished and to end its interpreter.
MARGIN_SECONDS: Final = 5.0
#: How long the end of the interpreter may take of that, beyond the grace.
END_SECONDS: Final = 2.0


def command_line() -> list[str]:
    """Return the command that starts this program once more. See Note [A fresh interpreter].

    Raises:
        ImproperlyConfigured: Python is embedded in another program, which alone knows how it was started.
    """
    if not sys.executable or len(sys.orig_argv) < 2:
        raise ImproperlyConfigured(
            "This Python does not know its own command line. Start delayq_worker with a Python interpreter."
        )
    return [sys.executable, *sys.orig_argv[1:]]


@contextmanager
def held_back() -> Iterator[None]:
    """Block the signals of this thread, and of what is started meanwhile. See Note [Signals in between]."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_within(seconds: float, exit_status: int) -> None:
    """End this process so many seconds from now, if it is still there. See Note [Gone for good].

    Returns once what was printed is written.
    """

    def end() -> None:
        time.sleep(seconds)
        end_children()
        os._exit(exit_status)

    threading.Thread(target=end, name="delayq-end", daemon=True).start()
    _flush_streams()  # here that thread can still end it


def end_at_once(exit_status: int) -> NoReturn:
    """End although tasks run; what was logged is written as far as END_SECONDS allow.

    Python would wait for the thread of an `async def` task, and meanwhile another worker takes its point over.
    """
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
    """Open /dev/null in place of what this process was started without.

    The next file or socket would get the number of standard output, and what others print would go there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, nowhere())


logger = logging.getLogger("django_delayq.worker")


def end_as_child(error: BaseException | None) -> NoReturn:
    """End a child that came back from its task: what follows, outcome and connections, is its parent's."""
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        status = int(error is not None)
        if error is not None:
            logger.error("A process that a task has forked failed.", exc_info=error)
    os._exit(status)


def end_children() -> None:
    """Tell what tasks started by `multiprocessing` and left running to end. Waits for nothing."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        with suppress(Exception):
            child.terminate()


MEBIBYTE = 1024 * 1024
STATM = Path("/proc/self/statm")


def resident_mb() -> float:
    """Return the resident memory of this process in MiB. See Note [Resident memory].

    Raises:
        OSError: Neither /proc nor `ps` can be read here.
    """
    try:
        pages = int(STATM.read_text().split()[1])
    except FileNotFoundError:
        return _asked_of_ps()
    return pages * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


def _asked_of_ps() -> float:
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]  # the answer is in KiB
    try:
        answer = subprocess.run(command, capture_output=True, check=False, timeout=10)  # noqa: S603 - a fixed command
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error
    if not answer.stdout.strip().isdigit():
        raise OSError(f"ps does not tell the memory of a process: {(answer.stderr or answer.stdout).decode()!r}")
    return int(answer.stdout) / 1024
