"""Has isolated tasks executed in processes of their own: keeps one that is warm, tells it the call, hears its end.

Note [A fresh interpreter for each]
Each execution has a process of its own that executes nothing else, before or after: whatever a task leaks, forks,
changes or breaks ends with it. The process is started as `manage.py` is, not forked from the worker, whose threads
and connections must not be copied; see `commands/process.py`, Note [The guard]. An interpreter with Django takes long
to start, so one waits ready in each worker where isolated tasks exist; when it is taken, the next one is started.

Note [What it says]
By a socket it says that it is ready, and one line of JSON at its end; the worker says the call, and single letters
meanwhile. What it logs and prints comes by a pipe as it is said (`capture.py`, Note [Heard beside the way]), and
standard output and error by two more, which go on to the worker's own: so each is heard once, up to the very moment
at which something kills it. Interrupted it is by a signal, which ends waiting too.
"""

import math
import os
import socket
import threading
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from .. import capture, conf, registry, tracing
from ..commands import guard
from ..commands.process import Process
from ..compat import AnyTask
from ..exceptions import ProcessDied, TaskCancelled, TaskTimeout, note_last
from ..isolation import Isolation, isolation_of
from .crossing import decode, encode, pack_context, unpack_error
from .held import Held

COMMAND = "delayq_isolated"
#: What is said while the task runs: its time is over, somebody stops it, its lease is lost.
TIMEOUT, CANCEL, LOST = b"t", b"c", b"l"
#: How long a process may take to start, which is no part of the task's time.
START_SECONDS = 60.0
#: How long a process may take to end once its outcome is there: exporters flush, threads and children end.
END_SECONDS = 5.0
#: So long after the hard timeout it must have ended, else its thread is given up as that of any other task.
SPARE_SECONDS = START_SECONDS + END_SECONDS + 30.0

#: So many lines of stderr are told where a process was ended: the stacks of its threads are among them.
LAST_LINES = 200

_lock = threading.Lock()
_waiting: deque["Elsewhere"] = deque()
_open = 0


class Taken(NamedTuple):
    """A value that was looked into where it was returned, and what it raised then: what `calling.take` returns."""

    value: Any
    error: BaseException | None


@contextmanager
def opened() -> Iterator[None]:
    """Have isolated tasks of this process executed in processes of their own meanwhile.

    Not in a test suite, whose database and settings such a process would not have; there nothing changes.
    """
    global _open
    if conf.is_test():
        yield
        return
    with _lock:
        _open += 1
    try:
        if any(map(isolation_of, registry.get_tasks().values())):
            _put_back()
        yield
    finally:
        with _lock:
            _open -= 1
        while not _open and _waiting:
            _waiting.popleft().close()


def is_open() -> bool:
    """Say whether isolated tasks are executed in processes of their own now."""
    return _open > 0


def call(held: Held, task: AnyTask, isolation: Isolation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Taken:
    """Call a task in a process of its own, within its time; the first of `args` may be its context.

    Raises:
        TaskTimeout: Its time was over, or somebody has stopped it; by itself, or its process was killed.
        ProcessDied: Its process ended by itself.
        OSError: No process could be started.
        BaseException: What the task raised, see `crossing.py`.
    """
    context, rest = (args[0], args[1:]) if task.takes_context else (None, args)
    message = {
        "task": task.module_path,
        "args": rest,
        "kwargs": kwargs,
        "context": None if context is None else pack_context(context),
        "title": held.title,
        "labels": held.labels,
        "memory_mb": isolation.memory_mb,
        "heard": held.output is not None,
        "trace": tracing.carrier(),
    }
    token = capture.current.set(None)  # what comes by standard output was heard already
    try:
        return _taken(_take().execute(held, encode(message)))
    finally:
        capture.current.reset(token)


def _taken(outcome: dict[str, Any]) -> Taken:
    if "error" in outcome:
        raise unpack_error(outcome["error"])
    unfit = outcome.get("unfit")
    return Taken(outcome.get("value"), unfit and unpack_error(unfit))


def _take() -> "Elsewhere":
    """Return one that waits, or else a new one, and have the next one wait."""
    while _waiting:
        try:
            elsewhere = _waiting.popleft()
        except IndexError:  # another thread was faster
            break
        if not elsewhere.process.ended:
            _put_back()
            return elsewhere
        elsewhere.close()
    elsewhere = Elsewhere()
    _put_back()
    return elsewhere


def _put_back() -> None:
    """Have one wait. Where none can be started, the next execution says why."""
    with suppress(OSError), _lock:
        if _open and not _waiting:
            _waiting.append(Elsewhere())


class Elsewhere:
    """A process that makes one call. Used by one thread, from `execute` or `close` on."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            OSError: None can be started.
        """
        self._channel, theirs = socket.socketpair()
        heard, hear = os.pipe()
        self._heard = os.fdopen(heard, "rb", buffering=0)
        try:
            words = [COMMAND, str(theirs.fileno()), str(hear)]
            self.process = Process(words, pass_fds=(theirs.fileno(), hear), last_lines=LAST_LINES)
        except BaseException:
            self._channel.close()
            self._heard.close()
            raise
        finally:
            theirs.close()
            os.close(hear)
        self._call = b""
        self._began = self._ended = 0.0  # monotonic, when it was called, and when its outcome came; 0 before
        self._outcome: dict[str, Any] | None = None

    def execute(self, held: Held, call: bytes) -> dict[str, Any]:
        """Have it make this call, and return the outcome once it has ended. Raises what the function `call` does."""
        self._call = call
        self.process.hear(self._channel, _Replies(self._channel, self._replied))
        if held.output is not None:
            self.process.hear(self._heard, _Text(self._heard.fileno(), held.output.add))
        try:
            interrupted = self._watch(held)
        finally:
            self.close()
        if self._outcome is not None:
            return self._outcome
        died = ProcessDied(self.process.status, self.process.last)
        if not self._began:
            died.add_note(f"It was not ready for the task, for which it had {START_SECONDS:g} s.")
        if not interrupted:
            raise died
        raise self._killed(held) from died

    def close(self) -> None:
        """End it, if it has not ended, with all that it has started."""
        if not self.process.ended:
            self.process.order(guard.KILL)
        self.process.end()
        self._channel.close()
        self._heard.close()

    def _watch(self, held: Held) -> bool:
        """Hear it until it has ended; say whether it was interrupted."""
        grace = conf.get_config().timeout_grace_seconds
        limit = math.inf if held.limit is None else held.limit
        kill_at, interrupted, lost = time.monotonic() + START_SECONDS, False, False
        while self.process.round():
            now = time.monotonic()
            if self._began and not interrupted:
                kill_at = self._began + limit + grace
            if self._outcome is not None:
                kill_at = min(kill_at, self._ended + END_SECONDS)
            elif not interrupted and (held.stopped_by is not None or (self._began and now >= self._began + limit)):
                interrupted, kill_at = True, now + grace if self._began else now
                self._say(TIMEOUT if held.stopped_by is None else CANCEL)
                self.process.order(guard.INTERRUPT)
            if held.lost and not lost:
                lost = True
                self._say(LOST)
            if now >= kill_at:
                return interrupted  # to be closed
        return interrupted

    def _killed(self, held: Held) -> TaskTimeout:
        grace = conf.get_config().timeout_grace_seconds
        if held.stopped_by is not None:
            error: TaskTimeout = TaskCancelled(f"stopped by somebody; its process was killed within {grace:g} s")
        else:
            error = TaskTimeout(f"its timeout of {held.limit:g} s was over; its process was killed within {grace:g} s")
        note_last(error, self.process.last)
        return error

    def _replied(self, line: bytes) -> None:
        """Take a line: the first one is empty, and says that it is ready."""
        if line:
            self._outcome, self._ended = decode(line), time.monotonic()
        else:
            self._say(self._call)
            self._began = time.monotonic()

    def _say(self, words: bytes) -> None:
        with suppress(OSError):  # it has ended
            self._channel.sendall(words)


class _Replies:
    """Reads lines from a socket."""

    def __init__(self, channel: socket.socket, take: Callable[[bytes], None]) -> None:
        self._channel, self._take = channel, take
        self._read = bytearray()

    def read(self) -> bool:
        """See `Reader.read`."""
        try:
            found = self._channel.recv(65536)
        except OSError:  # reset
            found = b""
        self._read += found
        while b"\n" in self._read:
            line, _, self._read = self._read.partition(b"\n")
            self._take(bytes(line))
        return bool(found)

    def end(self) -> None:
        """See `Reader.end`."""


class _Text:
    """Reads a pipe as text, in whatever pieces it comes."""

    def __init__(self, pipe: int, write: Callable[[str], None]) -> None:
        self._pipe, self._write = pipe, write
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> bool:
        """See `Reader.read`."""
        found = os.read(self._pipe, 65536)
        self._write(self._decoder.decode(found))
        return bool(found)

    def end(self) -> None:
        """See `Reader.end`."""
