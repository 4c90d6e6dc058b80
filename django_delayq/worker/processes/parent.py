"""What a worker knows of the supervisor that started it, and how it ends without it. Nothing is said in between.

Note [A process that hangs]
A task in C code that never lets go of the interpreter hangs its whole process, with the thread that renews the leases.
After two leases all that the process had is another worker's, so ending it costs nothing, and frees its place. No
thread of Python could do that: `faulthandler` waits outside the interpreter, is put off as long as a thread runs, and
writes where each thread stood, as far as standard error takes it at once: a pipe that nobody reads must not keep the
process. The watch begins when the worker's modules are imported: an import that hangs is for the service manager.
"""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Final, NamedTuple, Self

from ... import conf
from .process import MARGIN_SECONDS

logger = logging.getLogger("django_delayq.worker")

#: Holds "process id of the supervisor, number of this process", for a worker that has a supervisor.
VARIABLE: Final = "DELAYQ_SUPERVISOR"
#: A hang of this length is no sign of anything, however short the leases are.
BUSY_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 1.0


class Parent(NamedTuple):
    """A supervisor, seen from its worker: `number` is that of the worker among those it started, from 1."""

    pid: int
    number: int

    @classmethod
    def found_in(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Return the supervisor of this process, or None.

        Takes it out of the environment: what a task starts is no child of our supervisor.
        """
        try:
            pid, number = map(int, environment.pop(VARIABLE, "").split())
        except ValueError:
            return None
        return cls(pid, number)

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` once the supervisor is gone, and end a process that hangs. In a thread of its own.

        Without a supervisor the process ends after `DRAIN_SECONDS` and a margin, whatever it has not finished.
        """
        config, stderr = conf.get_config(), _stderr_that_never_blocks()
        hung_seconds = max(2 * config.lease_seconds, BUSY_SECONDS)

        def look() -> None:
            while os.getppid() == self.pid:  # a process that loses its parent gets another one
                faulthandler.dump_traceback_later(hung_seconds, exit=True, file=stderr)
                time.sleep(LOOK_SECONDS)
            faulthandler.dump_traceback_later(config.drain_seconds + MARGIN_SECONDS, exit=True, file=stderr)
            logger.warning("The supervisor is gone: this worker drains and ends.")
            gone()

        threading.Thread(target=look, name="delayq-parent", daemon=True).start()


def _stderr_that_never_blocks() -> int:
    """Return a descriptor of standard error; what that does not take at once is lost, but where it is a socket."""
    try:
        return os.open("/dev/stderr", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError:
        return 2
