"""A process for one command: started, heard, stopped.

Note [The guard]
The worker starts `guard.py`, which starts the command in a process group of its own and waits. The guard holds the
reading end of a pipe of which the worker has the other one: when the worker writes, closes it or ends in whatever way,
it ends the group, by SIGTERM and, after a grace, by SIGKILL. That works on every POSIX system, and reaches what the
command itself has started. Not reached is what leaves the group (a daemon), and the command where somebody kills the
guard itself by SIGKILL: then it goes on. What of its group outlives the command is killed with its end.

Note [Waiting]
The exceptions of timeouts arrive between two steps of Python, so no wait here is longer than POLL_SECONDS. The grace
is within that of the hard timeout: after it the process has ended before the worker gives its thread up.
"""

import os
import selectors
import subprocess
import sys
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from .. import conf
from ..exceptions import CommandFailed

POLL_SECONDS = 0.1
#: Between SIGTERM and SIGKILL; at most half of TIMEOUT_GRACE_SECONDS.
GRACE_SECONDS = 5.0
#: So many lines of stderr are told with a failure, and so much of a line is waited for.
LAST_LINES, LONGEST_LINE = 20, 8192
_GUARD = Path(__file__).with_name("guard.py")
_Decoder = getincrementaldecoder("utf-8")


def run(words: Sequence[str]) -> None:
    """Run a command of `manage.py` to its end; what it writes goes to `sys.stdout` and `sys.stderr`, line by line.

    Raises:
        CommandFailed: Its exit status is not 0; the message has it, and the last of what it wrote to stderr.
        OSError: No process can be started.
    """
    config = conf.get_config()
    grace = min(GRACE_SECONDS, config.timeout_grace_seconds / 2)
    memory = 0 if config.command_memory_mb is None else config.command_memory_mb * 1024 * 1024
    guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(memory), str(grace)]
    process = subprocess.Popen(  # noqa: S603 - the words were checked, and no shell reads them
        [*guard, *_program(), *words],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )
    hearing = _Hearing(process)
    try:
        while hearing.round():
            pass
    finally:
        _end(process, hearing, grace)
    if status := process.returncode:
        raise CommandFailed(words[0], status if status > 0 else 128 - status, hearing.last)


def _program() -> list[str]:
    """Return what runs commands: the program that this worker was started with, else Django's."""
    argv = sys.orig_argv
    own = argv[1 : argv.index("delayq_worker")] if "delayq_worker" in argv else ["-m", "django"]
    return [sys.executable, *own]


def _environment() -> dict[str, str]:
    module = conf.settings_module()
    settings = {"DJANGO_SETTINGS_MODULE": module} if module else {}
    return {**os.environ, **settings, "PYTHONUNBUFFERED": "1"}


def _end(process: "subprocess.Popen[bytes]", hearing: "_Hearing", grace: float) -> None:
    """Have the process end, if it has not, and hear what it says meanwhile. See Note [The guard]."""
    assert process.stdin is not None  # noqa: S101 - for mypy
    try:
        if process.poll() is None:
            with suppress(OSError):
                process.stdin.write(b"x")  # a process that another task forked may have the pipe too
            until = time.monotonic() + grace + 1
            while time.monotonic() < until and hearing.round():
                pass
    finally:
        process.kill()
        process.wait()
        hearing.close()
        process.stdin.close()


class _Hearing:
    """Passes on what a process writes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._selector = selectors.DefaultSelector()
        #: The last lines of stderr.
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        for pipe, write in ((process.stdout, self._out), (process.stderr, self._error)):
            assert pipe is not None  # noqa: S101 - for mypy
            self._selector.register(pipe, selectors.EVENT_READ, _Lines(pipe, write))

    def round(self) -> bool:
        """Pass on what is there, within POLL_SECONDS; False once it has ended and all is passed on."""
        ended = self._process.poll() is not None
        ready = self._selector.select(0 if ended else POLL_SECONDS) if self._selector.get_map() else []
        for key, _events in ready:
            if not key.data.read():
                self._selector.unregister(key.fileobj)
        if not ready and not ended and not self._selector.get_map():
            time.sleep(POLL_SECONDS)
        return bool(ready) or not ended

    def close(self) -> None:
        """Pass on what is left of a line."""
        for key in list(self._selector.get_map().values()):
            key.data.end()
        self._selector.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _out(self, line: str) -> None:
        sys.stdout.write(line)

    def _error(self, line: str) -> None:
        self.last.append(line.rstrip("\n"))
        sys.stderr.write(line)


class _Lines:
    """A pipe read line by line; a line that is too long in pieces."""

    def __init__(self, pipe: IO[bytes], write: Callable[[str], None]) -> None:
        self._pipe, self._write = pipe, write
        self._decoder = _Decoder(errors="replace")
        self._rest = ""

    def read(self) -> bool:
        """Read what is there; False at the end."""
        found = os.read(self._pipe.fileno(), 65536)
        *lines, self._rest = (self._rest + self._decoder.decode(found)).split("\n")
        for line in lines:
            self._write(f"{line}\n")
        if len(self._rest) > LONGEST_LINE or not found:
            self.end()
        return bool(found)

    def end(self) -> None:
        """Write what has no end of line."""
        rest, self._rest = self._rest, ""
        if rest:
            self._write(f"{rest}\n")
