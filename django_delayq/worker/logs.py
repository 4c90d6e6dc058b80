"""How log lines of the worker look: to be read by people or, as JSON, by machines. Secrets are hidden.

Note [Nobody waits for the log]
A pipe that nobody reads, or a handler that waits for a server, holds up whoever logs, and an exception in a handler
reaches him. Who claims, renews and records must not depend on that. So in a worker process a thread of its own calls
the handlers, for all loggers, also handlers that are added later: with each record in its turn, with its level and
filters, in the context variables of whoever logged. It also writes what tasks print, and what commands and isolated
tasks have printed: a task must not time out because standard output is a pipe that is full.
MOST_RECORDS may wait. Then our own records are dropped at once.
Whoever else logs waits while the log moves on, as he would without a queue; once nothing was written for
PATIENCE_SECONDS, his are dropped too. How many were dropped is logged when the log has caught up.
"""

import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import UTC, date, datetime, timedelta
from types import NoneType
from typing import Any, Final, Self, TextIO

from .. import tracing
from ..capture import Stream
from ..context import EXECUTING
from ..plain import iso, plain
from ..redaction import redact_text
from ..side_channels import note_handler_failure

logger = logging.getLogger("django_delayq.worker")

#: A KiB or so each.
MOST_RECORDS: Final = 10_000
#: Of what is printed, so many characters may wait.
MOST_CHARS: Final = 10_000_000
#: A log that writes nothing for so long does not move on.
PATIENCE_SECONDS: Final = 1.0
#: How long the process waits for its log when it ends.
END_SECONDS: Final = 1.0
#: What cannot change before it is written.
CONSTANT: Final = frozenset((str, int, float, bool, bytes, NoneType, date, datetime, timedelta))


class LogQueue:
    """A context, once in a process. See Note [Nobody waits for the log].

    What the handlers raise is printed to stderr, once for each cause. At the end all is written, or END_SECONDS have
    passed; then what is left is lost, and nothing more is written. A child that is forked meanwhile logs as any program
    does.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler or a finalizer may log at any moment.
        self._waiting: queue.SimpleQueue[tuple[Context | None, Callable[..., object], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="delayq-log", daemon=True)
        self._write_one: Callable[[logging.Logger, logging.LogRecord], None] = logging.Logger.callHandlers
        self._counting = threading.RLock()
        self._dropped = 0
        self._chars = 0
        self._streams: dict[str, _Stream] = {}
        #: True where this process' thread of the log is not there: it has ended, or was left behind by a fork.
        self.direct = False
        self._moved_at = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        logging.Logger.callHandlers = lambda logger, record: self._put(logger, record)  # type: ignore[method-assign, assignment]
        self._streams = {name: _Stream(getattr(sys, name), name, self) for name in ("stdout", "stderr")}
        for name, stream in self._streams.items():
            setattr(sys, name, stream)
        os.register_at_fork(after_in_child=self._write_directly)
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting.put(None)
        self._thread.join(END_SECONDS)
        if not self.stuck:
            self._write_directly()

    @property
    def stuck(self) -> bool:
        """After the end: say whether something is left that could not be written."""
        return self._thread.is_alive()

    def _write_directly(self) -> None:
        self.direct = True
        logging.Logger.callHandlers = self._write_one  # type: ignore[method-assign, assignment]
        for name, stream in self._streams.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)

    # -- in the thread of whoever logs or prints

    def _put(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.current_thread() is self._thread:  # a handler that logs
            self._write_one(logger, record)
        elif self._has_room(waits=not logger.name.startswith("django_delayq")):
            _freeze(record)
            self._waiting.put((copy_context(), self._write_one, (logger, record)))

    def print(self, stream: "_Stream", text: str) -> None:
        """Have a text be written to a stream; flush it where there is none."""
        if self.direct or threading.current_thread() is self._thread:
            stream.print(text)
        elif self._has_room():
            with self._counting:
                self._chars += len(text)
            self._waiting.put((None, stream.print, (text,)))

    def _has_room(self, *, waits: bool = True) -> bool:
        """Wait for room, if need be; say whether there is some, and count what has to be dropped."""
        while self._waiting.qsize() >= MOST_RECORDS or self._chars >= MOST_CHARS:
            if not waits or time.monotonic() - self._moved_at > PATIENCE_SECONDS:
                with self._counting:
                    self._dropped += 1
                return False
            time.sleep(0.001)  # for a batch of records
        return True

    # -- in the thread of the log

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._moved_at = time.monotonic()
            context, write, args = item
            try:
                if context is not None:
                    context.run(write, *args)
                else:
                    with self._counting:
                        self._chars -= len(args[0])
                    write(*args)
                if self._dropped and self._waiting.empty():
                    with self._counting:
                        dropped, self._dropped = self._dropped, 0
                    text = "%d log records and printed texts were dropped: the log could not be written for a while."
                    logger.warning(text, dropped)
            except BaseException as error:
                note_handler_failure(error)
            self._moved_at = time.monotonic()


class _Stream(Stream):
    """Is written by the thread of the log."""

    def __init__(self, stream: TextIO, name: str, log: LogQueue) -> None:
        super().__init__(stream, name)
        self._log = log

    def _write(self, text: str) -> None:
        self._log.print(self, text)

    def flush(self) -> None:
        """Have it be flushed."""
        self._log.print(self, "")


def _freeze(record: logging.LogRecord) -> None:
    """Let a record say what it says now, whatever becomes of its arguments."""
    args = record.args or ()
    if type(record.msg) is str and type(args) is tuple and all(type(value) in CONSTANT for value in args):
        return
    with suppress(Exception):  # its handlers say what is wrong with it
        record.msg, record.args = record.getMessage(), None


_BREAK = re.compile(r"\s*[\r\n\t]\s*")


class TaskFilter(logging.Filter):
    """Adds to what is logged while a task runs which one that is: `task`, `queue`, `attempt`, `run` and `schedule` of a
    due point, `job` of a job, and the ids of its trace. For handlers of your own; filters nothing out.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the record does not have."""
        held = EXECUTING.get()
        if held is not None:
            for name, value in (*held.labels.items(), *tracing.ids().items()):
                record.__dict__.setdefault(name, value)
        return True


#: The one on the logger of Django's tasks, whose line of a failed job so tells which one it was.
TASK_FILTER = TaskFilter()


class _Formatter(logging.Formatter):
    """`process` is the worker's number under a supervisor, if it has one."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = process

    def _below(self, record: logging.LogRecord) -> str:
        """Return the traceback, '' where there is none."""
        return redact_text(record.exc_text or self.formatException(record.exc_info)) if record.exc_info else ""


class LineFormatter(_Formatter):
    """`2026-11-21 10:00:00.012 INFO  message`, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with a traceback below where there is one; that of an outcome stands in the ledger."""
        moment = datetime.fromtimestamp(record.created, UTC)
        mark = "" if self._process is None else f"[{self._process}] "
        text = redact_text(record.getMessage())
        if not text.isprintable():
            text = plain(_BREAK.sub(" ", text))
        line = f"{moment.isoformat(' ', 'milliseconds')[:23]} {record.levelname:<7} {mark}{text}"
        below = "" if hasattr(record, "delayq") else self._below(record)
        return line + ("\n" + plain(below, keep="\n") if below else "")


class JsonFormatter(_Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, perhaps `process`, and an outcome's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        value: dict[str, Any] = {
            "time": iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **({} if self._process is None else {"process": self._process}),
            **tracing.ids(),
            **getattr(record, "delayq", {}),
        }
        if below := self._below(record):
            value["traceback"] = below
        return plain(json.dumps(value, ensure_ascii=False, default=str))
