"""One worker process as its supervisor sees it: started, heard, told to stop, killed. Decides nothing."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from ..worker.status import LEAVING, OK, RECYCLE, WORKING
from .fresh import held_back
from .line import announced


class Child:
    """A process, running from its construction on. Times are monotonic seconds.

    Raises:
        OSError: No process can be started now.
    """

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.working = self.leaving = False
        self.told_to_stop = self.killed = self.hung_up = False
        #: When it has to be gone; None while it may stay.
        self.deadline: float | None = None
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        self._rest = b""
        try:
            with theirs, held_back():
                environment = announced(os.environ, theirs.fileno(), number)
                self._process = subprocess.Popen(  # noqa: S603 - our own command line
                    command, env=environment, pass_fds=[theirs.fileno()]
                )
        except BaseException:
            self._line.close()
            raise
        self.pid = self._process.pid
        self.started_at = self.heard_at = time.monotonic()
        self.spoke = False

    def fileno(self) -> int:
        """Return the descriptor of its line, for a selector."""
        return self._line.fileno()

    def listen(self) -> list[str]:
        """Return the words it has said since the last time, to be called until `hung_up`. Never blocks."""
        try:
            told = self._line.recv(4096)
        except BlockingIOError:
            return []
        except OSError:
            told = b""
        if told:
            self.heard_at, self.spoke = time.monotonic(), True
        self.hung_up = not told
        *words, self._rest = (self._rest + told).split(b"\n")
        found = [word.decode(errors="replace") for word in words]
        self.working = self.working or WORKING in found
        self.leaving = self.leaving or LEAVING in found
        return found

    @property
    def status(self) -> int | None:
        """None while it runs; its exit status, or the number of the signal that ended it, negative."""
        return self._process.poll()

    @property
    def drained(self) -> bool:
        """True where it has ended and left nothing behind: it drained, or never came to work."""
        return self.status in (OK, RECYCLE) or not self.working

    def stop(self, within_seconds: float) -> None:
        """Tell it once to drain; it has to be gone within so long."""
        if not self.told_to_stop:
            self.told_to_stop = True
            self.deadline = time.monotonic() + within_seconds
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.killed = True
        self._process.kill()

    def close(self) -> None:
        """Let go of a process that has ended."""
        self._line.close()

    @property
    def lived_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self.started_at

    def __str__(self) -> str:
        return f"Process {self.number}, pid {self.pid},"


def how_it_ended(child: Child) -> str:
    """Return how a child ended, in words for the log."""
    status = child.status or 0
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    unasked = name == "SIGKILL" and not child.killed
    return f"was killed by {name}" + (" (by hand, or by the kernel for want of memory)" if unasked else "")
