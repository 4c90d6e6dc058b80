"""Starts a command in a process, passes on its output, and ends it.

Note [A guard ends the command]
The worker starts `guard.py`, which starts the command in a process group of its own and holds the reading end of a pipe
of the worker. On the worker's order, or when the worker closes the pipe or dies, the guard ends the group: by SIGTERM
and, after a grace, by SIGKILL. Other orders send a signal to the command (`guard.py`). The guard does not reach daemons
that leave the group. If the guard itself is killed, the command continues.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ... import conf
from ...exceptions import DelayQError

#: Maximum seconds of one wait, because the exception of a timeout arrives only between two steps of Python.
POLL_SECONDS = 0.1
#: Seconds between SIGTERM and SIGKILL; at most half of `timeout_grace_seconds`, after which the thread is abandoned.
GRACE_SECONDS = 5.0
#: Maximum lines of stderr reported with a failure, and characters buffered of an unfinished line.
LAST_LINES, LONGEST_LINE = 20, 8192
_GUARD = Path(__file__).with_name("guard.py")
_Decoder = getincrementaldecoder("utf-8")


class ProcessDied(DelayQError):
    """The process of an isolated task ended before the task; `status` as in a shell, `last` lines of stderr."""

    def __init__(self, status: int, last: Iterable[str] = ()) -> None:
        try:
            how = f"by signal {status - 128} ({signal.Signals(status - 128).name})"
        except ValueError:
            how = f"with exit status {status}"
        super().__init__(f"The process of the task ended {how}, before the task did.")
        self.status = status
        note_last(self, last)


class CommandFailed(DelayQError):
    """A management command ended with an exit status other than 0; above 128 it is 128 + the signal."""

    def __init__(self, name: str, status: int, last: Iterable[str] = ()) -> None:
        lines = [line for line in last if line.strip()]
        super().__init__(f"{name}: exit status {status}" + (f": {lines[-1].strip()}" if lines else ""))
        self.status = status
        note_last(self, lines if lines[:-1] else ())


def note_last(error: BaseException, last: Iterable[str]) -> None:
    """Add the last lines that a process wrote to stderr to an exception."""
    if lines := [line for line in last if line.strip()]:
        error.add_note("The last lines of its stderr:\n" + "\n".join(lines))


def run(words: Sequence[str]) -> None:
    """Run a command of `manage.py` to its end and copy its output, line by line. Raises CommandFailed or OSError."""
    process = Process(words, memory_mb=conf.get_config().command_memory_mb)
    try:
        while process.pass_output():
            pass
    finally:
        process.end()
    if process.status:
        raise CommandFailed(words[0], process.status, process.last)


class Process:
    """A command of `manage.py` under a guard. One thread calls `pass_output` until it is False, then `end`."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        memory_mb: int | None = None,
        pass_fds: Sequence[int] = (),
        last_lines: int = LAST_LINES,
    ) -> None:
        """Start it; `pass_fds` are open in it too. Raises OSError if no process can be started."""
        self.grace = min(GRACE_SECONDS, conf.get_config().timeout_grace_seconds / 2)
        memory = 0 if memory_mb is None else memory_mb * 1024 * 1024
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(memory), str(self.grace)]
        self._guard = subprocess.Popen(  # noqa: S603 - the words were checked, and no shell reads them
            [*guard, *_find_program(), *words],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_build_environment(),
            start_new_session=True,
            pass_fds=pass_fds,
        )
        self._selector = selectors.DefaultSelector()
        self.last: deque[str] = deque(maxlen=last_lines)
        self.add_source(self._guard.stdout, Lines(lambda text: sys.stdout.write(text)))
        self.add_source(self._guard.stderr, Lines(self._write_error))

    def add_source(self, source: Any, take: Callable[[bytes], object]) -> None:
        """Also read from this pipe or socket, and pass each piece to `take`; b"" is its end."""
        self._selector.register(source, selectors.EVENT_READ, take)

    @property
    def ended(self) -> bool:
        return self._guard.poll() is not None

    @property
    def status(self) -> int:
        """The exit status as in a shell, after the end: above 128 for a signal."""
        status = self._guard.returncode or 0
        return status if status >= 0 else 128 - status

    def pass_output(self) -> bool:
        """Pass on the available output, within POLL_SECONDS; False once the process has ended and all is passed on."""
        ended = self.ended
        ready = self._selector.select(0 if ended else POLL_SECONDS) if self._selector.get_map() else []
        for key, _events in ready:
            try:
                found = os.read(key.fd, 65536)
            except ConnectionResetError:  # a socket with data that the process has not read
                found = b""
            if not found:
                self._selector.unregister(key.fileobj)
            key.data(found)
        if not ready and not ended and not self._selector.get_map():
            time.sleep(POLL_SECONDS)
        return bool(ready) or not ended

    def send_order(self, order: bytes) -> None:
        """Send an order to the guard: see `guard.py`."""
        assert self._guard.stdin is not None  # noqa: S101 - for mypy
        with suppress(OSError):  # it has ended
            self._guard.stdin.write(order)

    def end(self) -> None:
        """End it, if necessary, and pass on the rest of its output. See Note [A guard ends the command]."""
        try:
            if not self.ended:
                self.send_order(b"x")  # closing it is not enough: a process forked by another task may have it too
            until = time.monotonic() + self.grace + 1
            while time.monotonic() < until and self.pass_output():  # also after the end: its output may be unread
                pass
        finally:
            self._guard.kill()
            self._guard.wait()
            self._close()

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data(b"")
        self._selector.close()
        for pipe in (self._guard.stdin, self._guard.stdout, self._guard.stderr):
            if pipe is not None:
                pipe.close()

    def _write_error(self, text: str) -> None:
        self.last.append(text.rstrip("\n"))
        sys.stderr.write(text)


def _find_program() -> list[str]:
    """Return the program that runs commands: the one that started this worker, else Django's."""
    argv = sys.orig_argv
    own = argv[1 : argv.index("delayq_worker")] if "delayq_worker" in argv else ["-m", "django"]
    return [sys.executable, *own]


def _build_environment() -> dict[str, str]:
    module = conf.get_settings_module()
    settings = {"DJANGO_SETTINGS_MODULE": module} if module else {}
    return {**os.environ, **settings, "PYTHONUNBUFFERED": "1"}


class Lines:
    """Writes the output of a pipe line by line; long lines in pieces."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write, self._decoder, self._rest = write, _Decoder(errors="replace"), ""

    def __call__(self, found: bytes) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(found)).split("\n")
        for line in lines:
            self._write(f"{line}\n")
        if self._rest and (len(self._rest) > LONGEST_LINE or not found):
            rest, self._rest = self._rest, ""
            self._write(f"{rest}\n")
