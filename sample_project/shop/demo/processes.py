"""The processes of the demo: started together, listened to, ended together. Knows nothing of schedules."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from sample import server

#: A worker told to stop finishes what runs within DELAYQ['DRAIN_SECONDS'], then it has to go.
GRACE_SECONDS = 14.0
KEPT_LINES = 15
QUIET = {"PYTHONUNBUFFERED": "1", "DJANGO_RUNSERVER_HIDE_WARNING": "true"}
MANAGE = str(server.BASE_DIR / "manage.py")


class Child:
    """A management command in a process of its own, whose lines are passed on with its name in front.

    In a session of its own, so that Ctrl-C in the terminal reaches the demo only, which ends its children in order. Its
    stdin is a pipe that only the demo holds: if the demo is killed, the child sees the end of it and ends too.
    """

    def __init__(self, name: str, command: Sequence[str], echo: Callable[[str], None]) -> None:
        self.name = name
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._echo = echo
        self._process = subprocess.Popen(  # noqa: S603  (our own manage.py)
            [sys.executable, MANAGE, *command],
            env={**os.environ, **QUIET, server.CHILD_VARIABLE: name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, name=f"lines of {name}", daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative = the signal that ended it."""
        return self._process.poll()

    def tell_to_stop(self) -> None:
        """Ask it to finish what it does."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and whatever it may have started. Harmless where it has ended by itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, deadline: float, hurry: threading.Event) -> None:
        """Wait for its end, at most until `deadline` (monotonic) or until somebody is in a hurry; then kill it."""
        while self.exit_code is None and time.monotonic() < deadline and not hurry.is_set():
            time.sleep(0.05)
        self.kill()
        self._process.wait()
        self._reader.join(timeout=2)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _pass_on(self) -> None:
        for line in self._process.stdout or ():
            self.last_lines.append(line.rstrip())
            self._echo(f"{self.name:>6} │ {line.rstrip()}")


class Family:
    """All children of one demo."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._children: list[Child] = []
        self.hurry = threading.Event()

    def start(self, name: str, *command: str) -> None:
        """Start a management command."""
        self._children.append(Child(name, command, self._echo))

    def first_dead(self) -> Child | None:
        """Return a child that has ended although nobody told it to."""
        return next((child for child in self._children if child.exit_code is not None), None)

    def stop(self) -> None:
        """End all of them: politely, and after a grace period (or in a hurry) not so politely."""
        children, self._children = self._children, []
        for child in children:
            child.tell_to_stop()
        deadline = time.monotonic() + GRACE_SECONDS
        for child in children:
            child.wait(deadline, self.hurry)


def free_port(wanted: int, *, tries: int = 1) -> int | None:
    """Return the first free port of localhost from `wanted` on, or None."""
    for port in range(wanted, wanted + tries):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return None
