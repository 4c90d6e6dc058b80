"""The private directory of a server: socket `s`, the watchdog's socket `l`, `log`. Starts and stops no process.

Note [Lock]
Whoever starts, joins or removes a server holds a lock on the directory itself (flock), and then makes sure that the
directory is still the one of that name. So two starters do not start two servers, nobody joins a server that is just
being removed, and no lock file stays behind.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from .binary import URL_VARIABLE, EmbeddedServerUnavailable

#: A unix socket's path has at most 103 bytes on macOS and the BSDs, 107 on Linux.
LONGEST_TEMP_ROOT = 70
TAIL_CHARACTERS = 2000


def private_home() -> Path:
    """Create a directory of a name that nobody can guess."""
    return Path(tempfile.mkdtemp(prefix="dq", dir=_temp_root()))


def _temp_root() -> str:
    root = tempfile.gettempdir()
    # Safe also in a directory that others write to: the name is not guessable, or `lock` checks whose it is.
    return root if len(os.fsencode(root)) <= LONGEST_TEMP_ROOT else "/tmp"  # noqa: S108


def shared_home(name: str) -> Path:
    """Return the directory that all processes of this user share under a name. Creates nothing."""
    return Path(_temp_root()) / f"dq-{os.getuid()}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def lock(home: Path, deadline: float) -> int:
    """Create the directory if need be and lock it. See Note [Lock]. Return the descriptor that holds the lock."""
    while True:
        with contextlib.suppress(FileExistsError):
            home.mkdir(mode=0o700)
        try:
            door = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        found = os.fstat(door)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            os.close(door)
            raise EmbeddedServerUnavailable(
                f"{home} belongs to somebody else or is open to others. Remove it, or set {URL_VARIABLE}."
            )
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(found, home.lstat()):
                return door
        os.close(door)
        if time.monotonic() > deadline:
            raise EmbeddedServerUnavailable(f"Another process has kept {home} locked for too long.")
        time.sleep(0.02)


def call_watchdog(home: Path) -> socket.socket | None:
    """Connect to the watchdog; None if there is none."""
    lifeline = socket.socket(socket.AF_UNIX)
    try:
        lifeline.connect(str(home / "l"))
    except OSError:
        lifeline.close()
        return None
    return lifeline


def answers(home: Path) -> bool:
    """Say whether a server answers here."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(str(home / "s"))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def clear(home: Path) -> None:
    """Remove what a killed watchdog left, its server included. The caller holds the lock."""
    with socket.socket(socket.AF_UNIX) as orphan, contextlib.suppress(OSError):
        orphan.settimeout(5)
        orphan.connect(str(home / "s"))
        orphan.sendall(b"SHUTDOWN NOSAVE\r\n")
        while orphan.recv(4096):
            pass
    shutil.rmtree(home, ignore_errors=True)


def log_tail(home: Path) -> str:
    """Return the end of the log of server and watchdog."""
    try:
        return (home / "log").read_text(errors="replace")[-TAIL_CHARACTERS:].strip() or "(its log is empty)"
    except OSError:
        return "(no log)"
