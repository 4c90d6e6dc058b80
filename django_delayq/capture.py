"""What a task logs and prints while it runs: the end of it, kept in memory until its outcome is recorded. Pure.

Note [Heard beside the way]
In a worker process `logging.Logger.callHandlers`, `sys.stdout` and `sys.stderr` are wrapped: what passes through is
noted for the execution in whose context it is said, and goes on as ever. So handlers, levels and formats are the
project's, no handler is added that would change what `basicConfig` or `lastResort` do, and loggers that do not
propagate are heard too. While handlers are called nothing is noted, or one that prints would say all twice.
Heard is what has the execution's context: the task's thread, its coroutines, `asyncio.to_thread`, `sync_to_async`, and
threads that run in a copy of the context. What writes to the file descriptor itself, as child processes and code in C
do, or to a stream that was kept from before, is not heard. A task that says nothing costs a context variable.

Note [Nowhere to print]
A worker's standard output may be closed, full, or a pipe whose reader is gone. Then each `print` of a task would raise,
and each line of a command that is passed on. What cannot be written is dropped; what is noted is kept all the same.
So the streams are wrapped also where nothing is noted.

Note [Two generations]
Several threads of one task may write at once, and an exception may be raised in them at any step (`TaskTimeout`), so
there is no lock that one could leave locked: a text is added by one call into C. Once the newest generation is full it
becomes the former one, and the one before that is dropped. So the last `most` characters are there whatever was
written, never more than four times as many, and nothing is moved.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from .side_channels import Guard, note_handler_failure

#: So many characters more are kept than are wanted, for what the beginning of a text loses: see `Output.end`.
MARGIN = 4096
_formatter = logging.Formatter()
#: How much of an execution is kept in this process, in characters; 0 while nobody listens.
_most = 0


class Output:
    """What one execution has said. See Note [Two generations]."""

    __slots__ = ("_former", "_most", "_newest")

    def __init__(self, most: int) -> None:
        """`most` characters from the end are wanted; 0 for none."""
        self._most = most
        self._former: StringIO | None = None
        self._newest: StringIO | None = None

    def add(self, text: str) -> None:
        """Note a text, whatever the thread."""
        most = self._most
        if not most:
            return
        newest = self._newest or self._begin(None)
        newest.write(text[-most:])
        if newest.tell() >= most:
            self._begin(newest)

    def _begin(self, newest: StringIO | None) -> StringIO:
        """Begin a generation, unless another thread has; between look and change is no step at which it could."""
        fresh = StringIO()
        if self._newest is newest:
            self._former, self._newest = newest, fresh
        return self._newest or fresh

    def end(self) -> str:
        """Return what was noted, and note nothing more.

        Where the beginning was dropped, so is the rest of its first line: half of a secret is not recognised as one.
        """
        most, self._most = self._most, 0
        if self._newest is None:
            return ""
        former = "" if self._former is None else self._former.getvalue()
        text = former + self._newest.getvalue()
        if len(text) < most:
            return text
        line = text.find("\n", len(text) - most, len(text) - most + MARGIN)
        return text[line + 1 :] if line >= 0 else text[MARGIN - most :]


#: That of the execution in whose context the code runs.
current: ContextVar[Output | None] = ContextVar("delayq_output", default=None)


def new_output() -> Output | None:
    """Return what an execution that begins now is to be heard with; None where nobody listens."""
    return Output(_most) if _most else None


@contextmanager
def listening(most_bytes: int) -> Iterator[None]:
    """Hear what tasks of this process say meanwhile, the last so many bytes; 0: nothing is noted.

    What a log handler or a stream raises reaches nobody who logs or prints. See Note [Heard beside the way] and Note
    [Nowhere to print].
    """
    global _most
    call_handlers, before = logging.Logger.callHandlers, _most
    streams = {name: _Heard(getattr(sys, name) or nowhere(), name) for name in ("stdout", "stderr")}

    def hear(logger: logging.Logger, record: logging.LogRecord) -> None:
        output = current.get()
        if output is not None:
            with suppress(Exception):  # its handlers say what is wrong with it
                output.add(_line(record))
        token = current.set(None)
        try:
            call_handlers(logger, record)
        except Exception as error:
            note_handler_failure(error)
        finally:
            current.reset(token)

    logging.Logger.callHandlers = hear  # type: ignore[method-assign, assignment]
    for name, stream in streams.items():
        setattr(sys, name, stream)
    _most = most_bytes and most_bytes + MARGIN
    try:
        yield
    finally:
        _most = before
        if logging.Logger.callHandlers is hear:
            logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
        for name, stream in streams.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)


@cache
def nowhere() -> TextIO:
    """Return what stands for a standard stream in a process that was started without it."""
    return Path(os.devnull).open("w")


class Stream:
    """In place of a standard stream: guards what is written to it; everything else is the stream's own."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self._guard = stream, Guard(f"Writing to {name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stream)

    def write(self, text: Any) -> int:
        """Write it."""
        if not isinstance(text, str):
            return self.stream.write(text)  # which says what is wrong with it
        if text:
            self._write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush it."""
        self.print("")

    def print(self, text: str) -> None:
        """Write a text now; flush where there is none. Never raises."""
        with self._guard:
            if text:
                self.stream.write(text)
            else:
                self.stream.flush()

    _write = print


class _Heard(Stream):
    """Notes texts for the execution that writes them."""

    def _write(self, text: str) -> None:
        output = current.get()
        if output is not None:
            output.add(text)
        self.print(text)


def _line(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    text = f"{moment:%H:%M:%S}.{int(record.msecs):03} {record.levelname:<7} {record.name}: {record.getMessage()}\n"
    if record.exc_info:
        text += f"{_formatter.formatException(record.exc_info)}\n"
    return text
