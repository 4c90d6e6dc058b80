"""When a worker process has done enough and makes room for a fresh one. Ends nothing itself.

Note [Resident memory]
What counts is what the process holds of the machine now, as the kernel's own out-of-memory killer sees it: the resident
set. The peak, which `getrusage` tells, would never fall again, and one large run that gave everything back would cost
the process its life. Linux tells it in `/proc/self/statm`; everywhere else `ps`, which POSIX requires, tells it.
"""

import logging
import os
import subprocess
import time
from pathlib import Path

from .options import LEAVING, WorkerOptions

logger = logging.getLogger("django_delayq.worker")

#: Reading the memory costs some ms where `ps` must be asked. A process lives at least so long, whatever its ceiling is.
CHECK_SECONDS = 5.0
MEBIBYTE = 1024 * 1024
STATM = Path("/proc/self/statm")


class Recycling:
    """The limits of one process. Used by the loop's thread only, between ticks.

    Note [Successor first]
    A fresh process needs a second or more until it works. Under a supervisor a worker that has reached a limit
    therefore says so and goes on; the supervisor starts its successor, and has it drain once that one works. So the
    number of working processes never falls, and a limit is exceeded by what is done in that second. Without a
    supervisor the worker drains at once, and the same process becomes a fresh one.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self._max_runs = options.max_runs_per_process
        self._max_memory_mb = options.max_memory_per_process_mb
        self._tell = options.tell
        self._told = False
        self._check_at = time.monotonic() + CHECK_SECONDS

    def wanted(self, runs: int) -> str:
        """Return why to drain now and end with RECYCLE after so many runs; '' while this process should go on.

        Costs nothing without limits. Looks at the memory every 5 s, so a task that takes all of it at once is not
        stopped. Under a supervisor always ''. See Note [Successor first].
        """
        reason = "" if self._told else self._reason(runs)
        if not reason or self._tell is None:
            return reason
        self._told = True
        logger.info("Wants a successor: %s.", reason)
        self._tell(LEAVING)
        return ""

    def _reason(self, runs: int) -> str:
        if self._max_runs is not None and runs >= self._max_runs:
            return f"{runs} runs, of at most {self._max_runs}"
        if self._max_memory_mb is not None and time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_SECONDS
            try:
                used = resident_mb()
            except OSError as error:  # it could be told at the start: next time
                logger.debug("The memory of this process is not known: %s", error)
                return ""
            if used > self._max_memory_mb:
                return f"{used:.0f} MiB of memory, of at most {self._max_memory_mb} MiB"
        return ""


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
