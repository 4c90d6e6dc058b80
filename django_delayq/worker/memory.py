"""How much memory this process holds.

Note [Resident memory]
What counts is what the process holds of the machine now, as the kernel's own out-of-memory killer sees it: the resident
set. The peak, which `getrusage` tells, would never fall again. Linux tells it in `/proc/self/statm`; everywhere else
`ps`, which POSIX requires, tells it.
"""

import os
import subprocess
from pathlib import Path

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
