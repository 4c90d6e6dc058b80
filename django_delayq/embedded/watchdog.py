"""The process that stands between an embedded server and its users: the server lives as long as one of them does.

Started by `server.py` as a script of its own, in its own session, so that neither Ctrl-C nor `kill -9` of a user can
leave a server or a directory behind. Each user holds one connection to the socket `l`; the kernel closes it, however
the user ends. Imports nothing but the standard library, is never imported by Django, and never restarts the server.
"""

import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TAIL_BYTES = 2000
STOP_SECONDS = 5.0
#: How often to try for the lock while the last user has gone, but somebody is just joining.
RETRY_SECONDS = 0.05


class Watchdog:
    """One server, its directory `home`, and the connections of its users."""

    def __init__(self, listener: socket.socket, home: Path, data: Path, command: Sequence[str]) -> None:
        self.listener, self.home = listener, home
        self.listener.setblocking(False)
        #: Opened while the starter holds the lock, hence this very directory, whatever later has its name.
        self.door = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        self.users: set[socket.socket] = set()
        self.leaving: list[socket.socket] = []
        self.told_to_stop = False
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self._watch_signals()
        with (home / "log").open("ab") as log:
            self.server = subprocess.Popen(  # noqa: S603  (the command comes from our own parent)
                list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=data
            )

    def serve(self) -> None:
        """Wait until nobody needs the server any more, or until it has ended; then leave nothing."""
        while not self.told_to_stop and self.server.poll() is None:
            self._admit_and_release(None if self.users else RETRY_SECONDS)
            if not self.users and self._lock(wait=False):
                self._admit_and_release(0)  # somebody may have come in before the lock was ours
                if not self.users:
                    break
                fcntl.flock(self.door, fcntl.LOCK_UN)
        self._tear_down()

    def _watch_signals(self) -> None:
        self.alarm, bell = socket.socketpair()
        self.alarm.setblocking(False)
        bell.setblocking(False)
        self._bell = bell
        signal.set_wakeup_fd(bell.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop_soon)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.selector.register(self.alarm, selectors.EVENT_READ)

    def _stop_soon(self, *_: object) -> None:
        self.told_to_stop = True

    def _admit_and_release(self, timeout_seconds: float | None) -> None:
        for key, _ in self.selector.select(timeout_seconds):
            if key.fileobj is self.listener:
                self._admit()
            elif key.fileobj is self.alarm:
                with contextlib.suppress(BlockingIOError):
                    self.alarm.recv(4096)
            elif isinstance(key.fileobj, socket.socket) and not _still_there(key.fileobj):
                self.selector.unregister(key.fileobj)
                self.users.discard(key.fileobj)
                self.leaving.append(key.fileobj)
        if self.users:
            self._let_go(self.leaving)

    def _admit(self) -> None:
        with contextlib.suppress(OSError):
            user, _ = self.listener.accept()
            user.setblocking(False)
            self.users.add(user)
            self.selector.register(user, selectors.EVENT_READ)
            user.send(f"{self.server.pid}\n".encode())

    def _let_go(self, users: list[socket.socket]) -> None:
        for user in users:
            user.close()
        users.clear()

    def _lock(self, *, wait: bool) -> bool:
        try:
            fcntl.flock(self.door, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def _tear_down(self) -> None:
        self.listener.close()  # who is just joining sees the end at once and tries anew
        if self.server.poll() is not None:
            for user in self.users:
                with contextlib.suppress(OSError):
                    user.send(self._last_words())
                    user.shutdown(socket.SHUT_WR)
        else:
            self._end_server()
        self._lock(wait=True)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self.door), self.home.lstat()):
                shutil.rmtree(self.home, ignore_errors=True)
        self._let_go(self.leaving)  # only now: this tells them that nothing is left
        self._let_go(list(self.users))

    def _end_server(self) -> None:
        self.server.terminate()
        try:
            self.server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()

    def _last_words(self) -> bytes:
        try:
            return (self.home / "log").read_bytes()[-TAIL_BYTES:]
        except OSError:
            return b""


def _still_there(user: socket.socket) -> bool:
    try:
        return user.recv(64) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def main(arguments: Sequence[str]) -> None:
    """Run with: number of the listening descriptor, home directory, data directory, command of the server."""
    number, home, data, *command = arguments
    with socket.socket(fileno=int(number)) as listener:
        try:
            watchdog = Watchdog(listener, Path(home), Path(data), command)
        except OSError as error:
            sys.stderr.write(f"{error}\n")  # to the log, which our starter reads once the listener is closed
            sys.stderr.flush()
            raise SystemExit(1) from None
        watchdog.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
