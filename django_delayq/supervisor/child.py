"""One worker process as its supervisor sees it: started, heard, told to stop, killed. Decides nothing."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from ..worker.options import LEAVING, OK, PORT, RECYCLE, WORKING
from .channel import VARIABLE
from .process import held_back


class Child:
    """A process, running from its construction on. Times are monotonic seconds.

    Raises:
        OSError: No process can be started now.
    """

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        #: What it has said so far.
        self.spoke = self.working = self.leaving = False
        self.stopping = self.killed = self.hung_up = False
        #: Where it tells its metrics; None where it does not.
        self.metrics_port: int | None = None
        self.renew = False  # it is to be replaced although it works
        #: When it has to be gone; None while it may stay.
        self.deadline: float | None = None
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._rest = b""
        try:
            with theirs, held_back():
                descriptor = theirs.fileno()
                environment = {**os.environ, VARIABLE: f"{descriptor} {number}"}
                self._process = subprocess.Popen(command, env=environment, pass_fds=[descriptor])  # noqa: S603
        except BaseException:
            self._channel.close()
            raise
        self.pid = self._process.pid
        self.started_at = self.heard_at = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor of its channel, for a selector."""
        return self._channel.fileno()

    def listen(self) -> None:
        """Take in what it has said since the last time, to be called until `hung_up`. Never blocks."""
        try:
            received = self._channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received:
            self.heard_at, self.spoke = time.monotonic(), True
        self.hung_up = not received
        *words, self._rest = (self._rest + received).split(b"\n")
        self.working = self.working or WORKING.encode() in words
        for word in words:
            if word.startswith(PORT.encode()):
                self.metrics_port = int(word.removeprefix(PORT.encode()))
        self.leaving = self.leaving or LEAVING.encode() in words

    @property
    def status(self) -> int | None:
        """None while it runs; its exit status, or the number of the signal that ended it, negative."""
        return self._process.poll()

    @property
    def drained(self) -> bool:
        """True where it has ended and left nothing behind: it drained, or never came to work."""
        return self.status in (OK, RECYCLE) or not self.working

    @property
    def lived_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self.started_at

    def stop(self, within_seconds: float) -> None:
        """Tell it once to drain; it has to be gone within so long."""
        if not self.stopping:
            self.stopping = True
            self.deadline = time.monotonic() + within_seconds
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.killed = True
        self._process.kill()

    def close(self) -> None:
        """Let go of a process that has ended."""
        self._channel.close()

    def how_it_ended(self) -> str:
        """Return how it ended, in words for the log."""
        status = self.status or 0
        if status >= 0:
            return f"ended with exit status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:  # a real-time signal
            name = f"signal {-status}"
        unasked = name == "SIGKILL" and not self.killed
        return f"was killed by {name}" + (" (by hand, or by the kernel for want of memory)" if unasked else "")

    def __str__(self) -> str:
        return f"Process {self.number}, pid {self.pid},"
