"""The process between an embedded server and its users: ends the server after its last user.

`server.py` starts it in a session of its own: see there, Note [File locks hold all state]. Needs only the standard
library.
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

STOP_SECONDS = 5.0
#: Seconds between checks that the server is still used, and still runs.
LOOK_SECONDS = 0.05


def main(home: Path, *command: str) -> None:
    """Start the server, wait until it is unused or has ended, and remove its directory. Logs to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # SIGTERM is a byte in a pipe, not an exception: between the start of the server and the next line, one would leave
    # the server running.
    stops, received = os.pipe()
    os.set_blocking(received, False)
    signal.set_wakeup_fd(received)
    signal.signal(signal.SIGTERM, lambda *_: None)
    door, users = os.open(home, os.O_RDONLY | os.O_DIRECTORY), os.open(home / "users", os.O_RDONLY)
    try:
        with (home / "log").open("ab") as log:  # a new descriptor: the server must not inherit our lock on the log
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home)  # noqa: S603
        while server.poll() is None and not _lock_if_unused(door, users):
            if select.select([stops], [], [], LOOK_SECONDS)[0]:
                break
        _end(server)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
    finally:
        fcntl.flock(door, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(door), home.lstat()):
                shutil.rmtree(home, ignore_errors=True)


def _lock_if_unused(door: int, users: int) -> bool:
    """Return whether the server has no users. If so, the directory is locked, so that no process can join."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        fcntl.flock(door, fcntl.LOCK_UN)
    return False


def _end(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
