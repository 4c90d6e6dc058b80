"""A server process for as long as somebody uses it. Speaks to it only to see that it answers.

Note [Who keeps the server alive]
The server is a child of a small watchdog in a session of its own (`watchdog.py`), so that Ctrl-C does not reach it.
Every user holds a connection to the watchdog. When the last one is gone, closed or killed, the watchdog ends the
server and removes its directory. A forked child that still holds the connection counts as a user.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from socket import AF_UNIX, SHUT_WR
from socket import socket as Socket
from types import TracebackType
from typing import Self
from urllib.parse import quote

from .binary import EmbeddedServerUnavailable, find_server
from .home import answers, call_watchdog, clear, lock, log_tail, private_home

START_SECONDS = 15.0
STOP_SECONDS = 15.0
#: Watchdogs that outlive our use of them. Kept, because Popen warns when it is collected before its process ended.
_still_in_use: list["subprocess.Popen[bytes]"] = []


def url_of(home: Path) -> str:
    """Return the address of the server in a directory, as redis-py's `from_url` takes it."""
    return f"unix://{quote(str(home / 's'))}?db=0"


class EmbeddedServer:
    """A server on a unix socket in a private directory, for the life of this process at most.

    `directory` is where an append-only file is kept; it stays the caller's and is never removed. Without it, all data
    goes when the server stops. `url`, `socket` and `pid` are valid after `start()`; after `stop()`, `start()` brings up
    an empty server (or, with `directory` and `appendonly`, the same data) at the same url.
    """

    def __init__(
        self,
        binary: str | Path | None = None,
        *,
        directory: str | Path | None = None,
        appendonly: bool = False,
        extra_args: Sequence[str] = (),
        home: Path | None = None,
    ) -> None:
        self._binary = binary
        self._directory = Path(directory).resolve() if directory else None
        self._options = ("--appendonly", "yes" if appendonly else "no", *extra_args)
        self._home = home
        self._lifeline: Socket | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._user_pid = 0
        self.pid = 0

    @property
    def socket(self) -> Path:
        """The path of the unix socket."""
        if self._home is None:
            raise EmbeddedServerUnavailable("The embedded server has not been started yet: call start() first.")
        return self._home / "s"

    @property
    def url(self) -> str:
        """The address as redis-py's `from_url` takes it."""
        return url_of(self.socket.parent)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Return once the server answers: the one that already does at this place, or a new one.

        Raises:
            EmbeddedServerUnavailable: No binary, or it does not answer in time; the message holds the end of its log.
        """
        if self._lifeline is not None:
            if answers(self.socket.parent):
                return self
            self.stop()
        if self._home is None:
            self._home = private_home()
        try:
            self._start_or_join(self._home, time.monotonic() + START_SECONDS)
        except BaseException:
            self._reap()
            raise
        return self

    def stop(self) -> None:
        """Leave. The last user's call returns once the server has ended and its directory is gone."""
        lifeline, self._lifeline, self.pid = self._lifeline, None, 0
        if lifeline is None:
            return
        with lifeline:
            if os.getpid() != self._user_pid:  # a forked child must not hang up for its parent
                return
            lifeline.settimeout(STOP_SECONDS)
            with contextlib.suppress(OSError):
                lifeline.shutdown(SHUT_WR)
                while lifeline.recv(4096):
                    pass
        self._reap()

    def keep_through_exec(self) -> None:
        """Keep the connection that holds the server alive open across an `exec`."""
        if self._lifeline is not None:
            self._lifeline.set_inheritable(True)

    def _start_or_join(self, home: Path, deadline: float) -> None:
        while True:
            door = lock(home, deadline)
            try:
                lifeline = call_watchdog(home)
                if lifeline is not None:
                    if self._become_user(lifeline, deadline) is None:
                        return
                elif any(home.iterdir()):
                    clear(home)
                else:
                    self._launch(home, deadline)
                    return
            finally:
                os.close(door)
            time.sleep(0.02)  # the former server is just being removed, which needs the lock

    def _launch(self, home: Path, deadline: float) -> None:
        """Start a server in an empty directory. The caller holds the lock."""
        try:
            binary = str(self._binary or find_server())
            lifeline = self._start_watchdog(home, binary)
            words = self._become_user(lifeline, deadline)
            if words is not None:
                words = words or log_tail(home)
                raise EmbeddedServerUnavailable(f"The embedded server {binary} ended instead of starting:\n{words}")
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    def _start_watchdog(self, home: Path, binary: str) -> Socket:
        data = str(self._directory or home)
        command = (
            *(binary, "--port", "0", "--unixsocket", str(home / "s"), "--unixsocketperm", "700", "--save", ""),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--dir", data, *self._options),
        )
        script = Path(__file__).with_name("watchdog.py")
        with Socket(AF_UNIX) as listener, (home / "log").open("ab") as log:
            listener.bind(str(home / "l"))
            listener.listen(64)
            lifeline = Socket(AF_UNIX)
            lifeline.connect(str(home / "l"))  # before the watchdog exists, so that it never finds itself unused
            self._watchdog = subprocess.Popen(  # noqa: S603  (our own script)
                [sys.executable, "-I", "-S", str(script), str(listener.fileno()), str(home), data, *command],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        return lifeline

    def _become_user(self, lifeline: Socket, deadline: float) -> str | None:
        """Wait until the server answers. Return None then, and its last words if it has ended instead."""
        told = b""
        lifeline.settimeout(0.02)
        while time.monotonic() < deadline:
            part = _receive(lifeline)
            if part == b"":
                lifeline.close()
                return told.partition(b"\n")[2].decode(errors="replace").strip()
            told += part or b""
            if b"\n" in told and answers(self.socket.parent):
                self._lifeline, self._user_pid, self.pid = lifeline, os.getpid(), int(told.partition(b"\n")[0])
                return None
        lifeline.close()
        raise EmbeddedServerUnavailable(
            f"The embedded server at {self.socket} did not answer within {START_SECONDS:g} s. The end of its log:\n"
            + log_tail(self.socket.parent)
        )

    def _reap(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None:
            return
        try:
            watchdog.wait(0.5)
        except subprocess.TimeoutExpired:  # others still use the server
            _still_in_use.append(watchdog)


def _receive(lifeline: Socket) -> bytes | None:
    """Return what the watchdog says: None = nothing yet, empty = it has ended."""
    try:
        return lifeline.recv(4096)
    except TimeoutError:
        return None
    except OSError:
        return b""
