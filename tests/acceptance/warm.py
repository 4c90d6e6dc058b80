"""Warm worker processes, as the test's process sees them: ordered from a process that forks them. See `forking.py`."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO


class WarmProcess:
    """A forked worker, as `subprocess.Popen` would hand it out."""

    def __init__(self, command: Sequence[str], line: socket.socket) -> None:
        self.args = command
        self.returncode: int | None = None
        self._line, self._waits = line, threading.Lock()
        self.pid = self._told()

    def _told(self) -> int:
        word = self._line.recv(16)
        if not word:
            self._line.close()
            raise ConnectionError("the process that forks workers has ended")
        return int(word)

    def poll(self) -> int | None:
        """Return the exit status, None while it runs; that of a signal is negative."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status."""
        if not self._waits.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        try:
            if self.returncode is None:
                self._line.settimeout(timeout)
                self.returncode = self._told()
                self._line.close()
            return self.returncode
        except (BlockingIOError, TimeoutError):
            raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
        finally:
            self._waits.release()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forker:
    """The process that forks, as the test's process sees it."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.acceptance.forking", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=folder,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def start(self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> WarmProcess:
        """Start `python -m django <command>`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            order = json.dumps([command, dict(environment)]).encode()
            socket.send_fds(self._line, [order], [output.fileno(), theirs.fileno()])
        return WarmProcess(command, ours)

    def close(self) -> None:
        """End it, with all that it has forked."""
        self._line.close()
        self._process.wait()
