"""What a task logs and prints while it runs: the end of it, kept in memory until its outcome is recorded. Pure.

Note [Heard beside the way]
In a worker process a handler of the root logger and stand-ins for `sys.stdout` and `sys.stderr` note what a task says,
by the context of its execution, and pass it on. A logger that does not propagate is not heard, and
`logging.basicConfig()` in a task finds a handler and does nothing. Where the project has no handler,
`logging.lastResort` is called, as without ours.
Heard is what has the execution's context: the task's thread, its coroutines, `asyncio.to_thread`, `sync_to_async`, and
threads that run in a copy of the context. What writes to the file descriptor itself, as child processes and code in C
do, or to a stream that was kept from before, is not heard. A task that says nothing costs a context variable.

Note [Nowhere to print]
A worker's standard output may be closed, full, or a pipe whose reader is gone. Then each `print` of a task would raise,
and each line of a command that is passed on. What cannot be written is dropped; what is noted is kept all the same.
So the streams are replaced also where nothing is noted.
"""

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, TextIO

from .side_channels import Guard

#: So many characters more are kept than are wanted, for what the beginning of a text loses: see `Output.end`.
MARGIN = 4096
#: Has a text be written by a call.
Put = Callable[[Callable[[str], object], str], object]
_formatter = logging.Formatter()
#: How much of an execution is kept in this process, in characters; 0 while nobody listens.
_most = 0


class Output:
    """The last texts of one execution, whole: `most` characters or a little more. 0 keeps nothing.

    A `TaskTimeout` that arrives in between leaves no lock locked (`with` on one of C does not), and drops nothing.
    """

    __slots__ = ("_lock", "_most", "_size", "_texts")

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._texts: deque[str] = deque()
        self._lock = RLock()

    def add(self, text: str) -> None:
        """Note a text, whatever the thread."""
        with self._lock:
            if self._most:
                self._texts.append(text[-self._most :])
                self._size += len(self._texts[-1])
                while self._size - len(self._texts[0]) >= self._most:
                    self._size -= len(self._texts[0])
                    self._texts.popleft()

    def end(self) -> str:
        """Return what was noted, and note nothing more.

        Where the beginning was dropped, so is the rest of its first line: half of a secret is not recognised as one.
        """
        with self._lock:
            most, self._most = self._most, 0
            text = "".join(self._texts)
        if len(text) < most or not most:
            return text
        line = text.find("\n", len(text) - most, len(text) - most + MARGIN)
        return text[line + 1 :] if line >= 0 else text[len(text) - most + MARGIN :]


#: That of the execution in whose context the code runs.
current: ContextVar[Output | None] = ContextVar("delayq_output", default=None)


def new_output() -> Output | None:
    """Return what an execution that begins now is to be heard with; None where nobody listens."""
    return Output(_most) if _most else None


def _at_once(write: Callable[[str], object], text: str) -> None:
    write(text)


@contextmanager
def listening(most_bytes: int, put: Put = _at_once) -> Iterator[None]:
    """Hear what tasks of this process say meanwhile, the last so many bytes; 0: nothing is noted.

    See Note [Heard beside the way] and Note [Nowhere to print].
    """
    global _most
    before, ear = _most, _Ear()
    _most = most_bytes and most_bytes + MARGIN
    if most_bytes:
        logging.root.addHandler(ear)
    out = _Stream(sys.stdout or nowhere(), "stdout", put)
    error = _Stream(sys.stderr or nowhere(), "stderr", put)
    try:
        with redirect_stdout(out), redirect_stderr(error):
            yield
    finally:
        logging.root.removeHandler(ear)
        _most = before


@cache
def nowhere() -> TextIO:
    """Return what stands for a standard stream in a process that was started without it."""
    return Path(os.devnull).open("w")


class _Stream:
    """In place of a standard stream: notes what is written, and has it be written; all else is the stream's own."""

    def __init__(self, stream: TextIO, name: str, put: Put) -> None:
        self.stream, self._put, self._guard = stream, put, Guard(f"Writing to {name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: Any) -> int:
        if not isinstance(text, str):
            return self.stream.write(text)  # which says what is wrong with it
        output = current.get()
        if output is not None:
            output.add(text)
        if text:
            self._put(self._write, text)
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


class _Ear(logging.Handler):
    """Notes records for the execution that logs them. Has no lock of its own: a `TaskTimeout` could leave it locked."""

    def handle(self, record: logging.LogRecord) -> bool:
        output = current.get()
        if output is not None:
            with suppress(Exception):  # its handlers say what is wrong with it
                output.add(_line(record))
        logger, last = logging.getLogger(record.name), logging.lastResort
        while not logger.handlers and logger.parent:
            logger = logger.parent
        if last and record.levelno >= last.level and logger.handlers == [self]:
            token = current.set(None)  # or it would be heard twice
            try:
                last.handle(record)
            finally:
                current.reset(token)
        return True


def _line(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    text = f"{moment:%H:%M:%S}.{int(record.msecs):03} {record.levelname:<7} {record.name}: {record.getMessage()}\n"
    if record.exc_info:
        text += f"{_formatter.formatException(record.exc_info)}\n"
    return text
