"""How log lines of the worker look: to be read by people or, as JSON, by machines. Secrets are hidden.

Note [Nobody waits for the log]
A pipe that nobody reads, or a handler that waits for a server, holds up whoever logs, and an exception in a handler
reaches him. Who claims, renews and records must not depend on that. So while a worker runs, a `QueueHandler` stands in
place of the handlers that each logger had when it started, and one thread, a `QueueListener`, calls these: in the order
of the records, each in the context in which it was logged. That thread handles the records of this package as a whole,
so that a handler that a task adds, or Sentry, holds up no worker either. It also writes what tasks print, and what
commands and isolated tasks have printed: a task must not time out because standard output is a pipe that is full.
MOST_WAITING records and printed texts may wait. Then our own records are dropped at once. Whoever else logs waits while
the log moves on, as he would without a queue; once nothing was written for PATIENCE_SECONDS, his are dropped too. How
many were dropped is logged when the log has caught up.
"""

import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Final, Self

from ..calls import side_channels, tracing
from ..calls.capture import current
from ..calls.commands.process import LONGEST_LINE
from ..calls.context import EXECUTING
from ..calls.side_channels import note_handler_failure
from ..text import iso, plain, redact_text

logger = logging.getLogger("django_delayq.worker")

#: A KiB or so each.
MOST_WAITING: Final = 10_000
#: Longer texts are printed in pieces, so that what waits is bounded; a line of a command stays whole.
PIECE_CHARS: Final = LONGEST_LINE + 1
#: A log that writes nothing for so long does not move on.
PATIENCE_SECONDS: Final = 1.0
#: How long the process waits for its log when it ends.
END_SECONDS: Final = 1.0


class LogQueue(QueueListener):
    """A context, once in a process. See Note [Nobody waits for the log].

    What the handlers raise is printed to stderr, once for each cause. At the end all is written, or END_SECONDS have
    passed; then what is left is lost, and nothing more is written. `direct`: without the queue and its thread, as in a
    child that is forked meanwhile; whoever logs calls the handlers.
    """

    def __init__(self, *, direct: bool = False) -> None:
        # Reentrant: a signal handler or a finalizer may log at any moment.
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        super().__init__(self._waiting)
        self._direct, self._moved_at = direct, time.monotonic()
        self._counting, self._dropped = threading.RLock(), 0
        self._ours: list[tuple[logging.Logger, _Queued]] = []

    def __enter__(self) -> Self:
        for logger in (logging.root, *logging.root.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger) and logger.handlers:
                self._ours.append((logger, _Queued(self, logger.handlers)))
                logger.handlers = [self._ours[-1][1]]
        if not self._direct:
            self.start()
            side_channels.deliver = self.deliver
            os.register_at_fork(after_in_child=self.restore)
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self.enqueue_sentinel()
            self._thread.join(END_SECONDS)
        if not self.stuck:
            self.restore()
            while not self._waiting.empty():  # what came behind the end
                if (item := self._waiting.get_nowait()) is not None:
                    self.handle(item)

    @property
    def stuck(self) -> bool:
        """After the end: say whether something is left that could not be written."""
        return self._thread is not None and self._thread.is_alive()

    def restore(self) -> None:
        """Give the loggers their handlers back."""
        self._direct, side_channels.deliver = True, None
        for logger, ours in self._ours:
            if ours in logger.handlers:
                logger.handlers = [*ours.handlers, *(each for each in logger.handlers if each is not ours)]

    def deliver(
        self, call: Callable[[logging.LogRecord], object], record: logging.LogRecord, *, waits: bool = False
    ) -> None:
        """Let the thread call a function with a record, in the context of this call."""
        context = copy_context()
        context.run(current.set, None)  # what a handler prints is not said by the task
        self.put(lambda each: context.run(call, each), record, waits=waits)

    def print(self, write: Callable[[str], object], text: str) -> None:
        """Have a text be written; '' too."""
        for start in range(0, len(text) or 1, PIECE_CHARS):
            self.put(write, text[start : start + PIECE_CHARS])

    def put(self, call: Callable[[Any], object], arg: object, *, waits: bool = True) -> None:
        """Have the thread of the log call this, or drop it where there is no room. Waits for room, if it is to."""
        if self._direct or threading.current_thread() is self._thread:  # or: a handler that logs
            self.handle((call, arg))
            return
        while self._waiting.qsize() >= MOST_WAITING:
            if not waits or time.monotonic() - self._moved_at > PATIENCE_SECONDS:
                with self._counting:
                    self._dropped += 1
                return
            time.sleep(0.001)  # for a batch of records
        self._waiting.put((call, arg))

    def handle(self, item: Any) -> None:
        """Make a call that was put."""
        call, arg = item
        self._moved_at = time.monotonic()
        try:
            call(arg)
            if self._dropped and self._waiting.empty():
                with self._counting:
                    dropped, self._dropped = self._dropped, 0
                text = "%d log records and printed texts were dropped: the log could not be written for a while."
                logger.warning(text, dropped)
        except BaseException as error:
            if self._direct and not isinstance(error, Exception):  # a `TaskTimeout` of whoever logs
                raise
            note_handler_failure(error)
        self._moved_at = time.monotonic()


class _Queued(QueueHandler):
    """In place of the handlers of a logger. Has no lock, which a `TaskTimeout` could leave locked."""

    def __init__(self, log: LogQueue, handlers: list[logging.Handler]) -> None:
        super().__init__(log.queue)
        self._log, self.handlers = log, handlers

    handle = QueueHandler.emit  # type: ignore[assignment]

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Let it say what it says now, whatever becomes of its arguments; as it is, where these do not fit."""
        if not record.args:
            return record
        said = copy(record)
        with suppress(Exception):
            said.msg, said.args = record.getMessage(), None
        return said

    def enqueue(self, record: logging.LogRecord) -> None:
        self._log.deliver(self._call, record, waits=not record.name.startswith("django_delayq"))

    def _call(self, record: logging.LogRecord) -> None:
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


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
