"""The last output of each execution (logs, stdout, stderr), kept in memory until its outcome is recorded.

Note [Output is captured by context]
A handler of the root logger and replacements of `sys.stdout` and `sys.stderr` copy the output of an execution and pass
it on. The output belongs to the execution in whose context the code runs, also in coroutines and in threads with a copy
of the context. Not captured: loggers that do not propagate, and output to the file descriptor (child processes, C code)
or to a stream saved earlier.

Note [Output that cannot be written is dropped]
A worker's standard output may be closed, full, or a pipe without a reader. Then each `print` of a task would raise. So
the streams are replaced even if nothing is captured. Captured output is kept in any case.
"""

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from copy import copy
from threading import RLock
from typing import Any, TextIO

from .side_channels import Guard

#: Extra characters that are kept, because the first line may be cut: see `CapturedOutput.end`.
MARGIN = 4096
#: Maximum characters of one text that is passed on, so that a queue of texts is bounded.
PIECE_CHARS = 8192
#: Calls a writing function with a text, now or later.
Put = Callable[[Callable[[str], object], str], object]
_formatter = logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
_formatter.converter = time.gmtime
#: Characters to keep of each execution that begins now; 0 if capturing is off.
most = 0


class CapturedOutput:
    """The last texts of one execution, whole: `most` characters or a little more. 0 keeps nothing.

    A `TaskTimeout` that arrives in a method leaves the lock unlocked (the lock is written in C), and drops no text.
    """

    __slots__ = ("_lock", "_most", "_size", "_texts")

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._texts: deque[str] = deque()
        self._lock = RLock()

    def add(self, text: str) -> None:
        with self._lock:
            if self._most:
                self._texts.append(text[-self._most :])
                self._size += len(self._texts[-1])
                while self._size - len(self._texts[0]) >= self._most:
                    self._size -= len(self._texts[0])
                    self._texts.popleft()

    def end(self) -> str:
        """Return the captured text, and end the capture. Drops the rest of a cut line: it may be half of a secret."""
        with self._lock:
            most, self._most = self._most, 0
            text = "".join(self._texts)
        if len(text) < most or not most:
            return text
        line = text.find("\n", len(text) - most, len(text) - most + MARGIN)
        return text[line + 1 :] if line >= 0 else text[len(text) - most + MARGIN :]


#: The output of the execution in whose context the code runs.
current: ContextVar[CapturedOutput | None] = ContextVar("delayq_output", default=None)


@contextmanager
def capture_output(most_bytes: int, put: Put = lambda write, text: write(text)) -> Iterator[None]:
    """Capture the output of this process' tasks, the last `most_bytes` of each; 0 captures nothing.

    See Notes [Output is captured by context] and [Output that cannot be written is dropped].
    """
    global most
    before, handler = most, _CaptureHandler()
    most = most_bytes and most_bytes + MARGIN
    if most_bytes:
        logging.root.addHandler(handler)
    stdout, stderr = _Stream(sys.stdout, "stdout", put), _Stream(sys.stderr, "stderr", put)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            yield
    finally:
        logging.root.removeHandler(handler)
        most = before


class _Stream:
    """Replaces a standard stream: captures what is written, and passes it on. All else is the stream's own."""

    def __init__(self, stream: TextIO, name: str, put: Put) -> None:
        self.stream, self._put, self._guard = stream, put, Guard(f"Writing to {name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: Any) -> int:
        if not isinstance(text, str):
            return self.stream.write(text)  # raises its own error
        output = current.get()
        if output is not None:
            output.add(text)
        for at in range(0, len(text), PIECE_CHARS):
            self._put(self._write, text[at : at + PIECE_CHARS])
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._put(self._write, "")

    def _write(self, text: str) -> None:
        with self._guard:
            if text:
                self.stream.write(text)
            else:
                self.stream.flush()


class _CaptureHandler(logging.Handler):
    """Captures records for the execution that logs them. Has no lock, which a `TaskTimeout` could leave locked."""

    def handle(self, record: logging.LogRecord) -> bool:
        output = current.get()
        if output is not None:
            with suppress(Exception):  # the project's handlers report it
                output.add(f"{_formatter.format(copy(record))}\n")  # formatting writes to the record
        logger, last = logging.getLogger(record.name), logging.lastResort
        while not logger.handlers and logger.parent:
            logger = logger.parent
        if last and record.levelno >= last.level and logger.handlers == [self]:
            token = current.set(None)  # it writes to stderr: do not capture it twice
            try:
                last.handle(record)
            finally:
                current.reset(token)
        return True
