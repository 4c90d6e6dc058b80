"""A fresh interpreter with this command line: as a child, or in the place of this very process.

Note [A fresh interpreter]
A worker process is never forked off a loaded one, and never goes on with what a loaded one left behind. A fork inherits
what the parent's imports opened and started: a database or Redis connection that both ends then read from, the lock
that a thread held which does not exist in the child, a gRPC channel, on macOS frameworks that abort in a forked child.
It would save memory and a second, at the price of failures in code that is not ours, and that only some projects see.
The same command line in a fresh interpreter inherits nothing, brings along whatever wraps the command (a `manage.py`
that sets things up, coverage, interpreter options), and runs the code that is installed *now*: a rolling restart is a
deploy.

Note [Signals in between]
A process that is asked to stop while its interpreter starts would die by the signal, or with a KeyboardInterrupt
somewhere in an import. So a fresh interpreter begins with these signals blocked, which both `exec` and a new child
inherit. They stay pending until `Orders` has its handlers in place, and are obeyed then. What an import starts before
that, a thread or a program, begins with them blocked too.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from django.core.exceptions import ImproperlyConfigured

from ..embedded import keep_through_exec
from ..kinds.children import end_children
from .ending import END_SECONDS, flush

#: The signals that a worker obeys.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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


class Start:
    """What this process was started with, noted before its tasks can change it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.folder = ""
        with suppress(OSError):  # removed
            self.folder = str(Path.cwd())


def become_fresh(start: Start) -> NoReturn:
    """Replace this process, with all its threads and what they hold, by a fresh interpreter; the id stays.

    Call it in the main thread with SIGNALS blocked. Nothing is closed first but what the kernel closes; exit handlers
    do not run. Not guaranteed: a signal that another thread catches in the very microseconds of the `exec` is lost.

    Raises:
        OSError: The interpreter cannot be started, say because it was removed; this process is as it was.
    """
    command = command_line()
    keep_through_exec()
    end_children()
    flush(END_SECONDS)
    with suppress(OSError):  # removed since: the present one may do
        os.chdir(start.folder)
    os.execve(command[0], command, start.environment)  # noqa: S606 - our own command line
