"""One worker process as its supervisor sees it: started, heard, told to stop, killed. Decides nothing."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from .channel import VARIABLE
from .process import held_back


class Child:
    """A process, running from its construction on. Times are monotonic seconds.

    Raises:
        OSError: No process can be started now.
    """

    def __init__(self, number: int, command: Sequence[str], within_seconds: float) -> None:
        self.number = number
        self.stopping = self.killed = False
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        try:
            with theirs, held_back():
                descriptor = theirs.fileno()
                environment = {**os.environ, VARIABLE: f"{descriptor} {number}"}
                self._process = subprocess.Popen(command, env=environment, pass_fds=[descriptor])  # noqa: S603
        except BaseException:
            self._channel.close()
            raise
        self.pid = self._process.pid
        self.started_at = time.monotonic()
        #: When it has to have been heard again or, once it is told to stop, to be gone.
        self.deadline = self.started_at + within_seconds

    def listen(self, within_seconds: float) -> None:
        """Take in what it has sent since the last time; it then has to be heard again within so long. Never blocks."""
        try:
            heard = self._channel.recv(4096)
        except OSError:
            return
        if heard and not self.stopping:
            self.deadline = time.monotonic() + within_seconds

    @property
    def status(self) -> int | None:
        """None while it runs; its exit status, or the number of the signal that ended it, negative."""
        return self._process.poll()

    @property
    def lived_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self.started_at

    def stop(self, within_seconds: float) -> None:
        """Tell it to drain; it has to be gone within so long."""
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
        return f"was ended by signal {-status} ({signal.strsignal(-status)})"

    def __str__(self) -> str:
        return f"Process {self.number}, pid {self.pid},"
