"""The private directory of a server, with its socket `s`, `users` and `log`. Starts and stops no process.

Note [File locks hold all state]
The kernel releases a lock (flock) however its holder ends, so no stale lock file remains. Each user holds a shared lock
on `users`; a forked child that inherits it counts as a user. The watchdog holds a lock on `log` for its life. A process
that starts, joins or removes a server locks the directory first, then checks that it is still the directory of that
name. So two processes cannot start two servers, and no process joins a server that is being removed.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from django_delayq.exceptions import DelayQError

URL_VARIABLE = "DELAYQ_REDIS_URL"
#: Maximum bytes: the path of a unix socket has at most 103 on macOS and the BSDs, 107 on Linux.
LONGEST_TEMP_ROOT = 70
PAUSE_SECONDS = 0.005


class EmbeddedServerUnavailable(DelayQError):
    """There is no server to start, or it did not answer; the message has the remedy, or the end of the log."""


def temp_root() -> str:
    """Return the parent directory. Other users may write to it: names are random, or `locked` checks the owner."""
    root = tempfile.gettempdir()
    return root if len(os.fsencode(root)) <= LONGEST_TEMP_ROOT else "/tmp"  # noqa: S108


def shared_home(name: str) -> Path:
    """Return the directory that this user's processes share under a name. Creates nothing."""
    return Path(temp_root()) / f"dq-{os.getuid()}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


@contextlib.contextmanager
def locked(home: Path, deadline: float) -> Iterator[bool]:
    """Lock the directory, see Note [File locks hold all state]; yield False if it does not exist, or no longer.

    Raises:
        EmbeddedServerUnavailable: It is not private, or another process kept it locked until the deadline.
    """
    with contextlib.ExitStack() as stack:
        try:
            door = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            yield False
            return
        stack.callback(os.close, door)
        found = os.fstat(door)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise EmbeddedServerUnavailable(
                f"{home} belongs to somebody else or is open to others. Remove it, or set {URL_VARIABLE}."
            )
        while time.monotonic() < deadline:
            if _lock(door):
                yield is_at(door, home)
                return
            time.sleep(PAUSE_SECONDS)
        raise EmbeddedServerUnavailable(f"Another process has kept {home} locked for too long.")


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock on this file."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return not _lock(file.fileno())
    return False


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at this path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def server_pid(home: Path) -> int:
    """Return the process id of the server that answers here, or 0."""
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.settimeout(1)
        client.connect(str(home / "s"))
        client.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
        reply = client.makefile("rb").read()
        found = re.match(rb"\+PONG\r\n.*?process_id:(\d+)", reply, re.DOTALL)
        return int(found[1]) if found else 0
    return 0


def clear(home: Path) -> None:
    """Remove what a killed watchdog left, including its server. The caller holds the lock."""
    with socket.socket(socket.AF_UNIX) as orphan, contextlib.suppress(OSError):
        orphan.settimeout(5)
        orphan.connect(str(home / "s"))
        orphan.sendall(b"SHUTDOWN NOSAVE\r\n")
        while orphan.recv(4096):
            pass
    shutil.rmtree(home, ignore_errors=True)
