"""A worker's view of the supervisor that started it, and how the worker ends without it. They exchange no messages.

Note [A process that hangs]
A task in C code that never releases the interpreter hangs its whole process, including the thread that renews leases.
After two lease periods its entries belong to other workers, so ending it costs nothing. No Python thread could end
it. `faulthandler` waits outside the interpreter, postponed while a thread still runs, and writes the stacks to
standard error without blocking. The watch begins when the worker's modules are imported; the service manager handles
earlier hangs.
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

#: Holds "process id of the supervisor, number of this process" if the worker has a supervisor.
VARIABLE: Final = "DELAYQ_SUPERVISOR"
#: Minimum seconds without progress that count as a hang, however short the leases are.
BUSY_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 1.0


class Parent(NamedTuple):
    """A worker's supervisor; `number` is the number of the worker among those it started, from 1."""

    pid: int
    number: int

    @classmethod
    def found_in(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Return the supervisor of this process, or None. Removes it from the environment that tasks pass on."""
        try:
            pid, number = map(int, environment.pop(VARIABLE, "").split())
        except ValueError:
            return None
        return cls(pid, number)

    def watch(self, gone: Callable[[], None]) -> None:
        """In a thread: call `gone` once the supervisor is gone, and end this process if it hangs.

        Without a supervisor the process ends after `DRAIN_SECONDS` and a margin, even if work is unfinished.
        """
        config, stderr = conf.get_config(), _stderr_that_never_blocks()
        hung_seconds = max(2 * config.lease_seconds, BUSY_SECONDS)

        def look() -> None:
            while os.getppid() == self.pid:  # an orphaned process gets another parent
                faulthandler.dump_traceback_later(hung_seconds, exit=True, file=stderr)
                time.sleep(LOOK_SECONDS)
            faulthandler.dump_traceback_later(config.drain_seconds + MARGIN_SECONDS, exit=True, file=stderr)
            logger.warning("The supervisor is gone: this worker drains and ends.")
            gone()

        threading.Thread(target=look, name="delayq-parent", daemon=True).start()


def _stderr_that_never_blocks() -> int:
    """Return a non-blocking descriptor of standard error, which drops text it cannot take at once; a socket blocks."""
    try:
        return os.open("/dev/stderr", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError:
        return 2
