"""Formats the worker's log lines: for people or, as JSON, for machines. Hides secrets.

Note [The log never blocks a task]
A pipe that is not read, or a handler that waits for a server, must not block claims, renewals and records. So while a
worker runs, a `QueueHandler` replaces the handlers that each logger had at the start, and one thread calls them in
sequence, each in the context of its record. The thread also writes what tasks print. At most MOST_WAITING items wait.
At that limit, this package's own records are dropped at once; other loggers wait until nothing was written for
PATIENCE_SECONDS. The number of dropped records is logged later.
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
from ..calls.context import EXECUTING
from ..calls.side_channels import note_handler_failure
from ..text import escape_text, format_iso, redact_text

logger = logging.getLogger("django_delayq.worker")

#: Maximum number of waiting records and texts, of at most 8 KiB each for texts.
MOST_WAITING: Final = 10_000
#: Seconds without a write after which the log counts as blocked.
PATIENCE_SECONDS: Final = 1.0
#: Maximum seconds that the process waits for its log at the end.
END_SECONDS: Final = 1.0


class LogQueue(QueueListener):
    """A context, used once in a process. See Note [The log never blocks a task].

    On exit everything is written within END_SECONDS; the rest is lost. `direct`: the code that logs calls the handlers.
    """

    def __init__(self, *, direct: bool = False) -> None:
        # Reentrant: a signal handler or a finalizer may log at any moment.
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        super().__init__(self._waiting)
        self._direct, self._moved_at = direct, time.monotonic()
        self._dropped = 0
        self._ours: list[tuple[logging.Logger, _ForwardingHandler]] = []

    def __enter__(self) -> Self:
        for logger in (logging.root, *logging.root.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger) and logger.handlers:
                self._ours.append((logger, _ForwardingHandler(self, logger.handlers)))
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
            while not self._waiting.empty():  # records that arrived after the sentinel
                if (item := self._waiting.get_nowait()) is not None:
                    self.handle(item)

    @property
    def stuck(self) -> bool:
        """After the end: True if something could not be written."""
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
        context.run(current.set, None)  # the output of a handler is not the task's output
        self.put(lambda each: context.run(call, each), record, waits=waits)

    def put(self, call: Callable[[Any], object], arg: object, *, waits: bool = True) -> None:
        """Make a call, such as to write a text, in the thread of the log. See the note for a full queue."""
        if self._direct or threading.current_thread() is self._thread:  # the latter: a handler that logs
            self.handle((call, arg))
            return
        while self._waiting.qsize() >= MOST_WAITING:
            if not waits or time.monotonic() - self._moved_at > PATIENCE_SECONDS:
                self._dropped += 1
                return
            time.sleep(0.001)  # for a batch of records
        self._waiting.put((call, arg))

    def handle(self, item: Any) -> None:
        call, arg = item
        self._moved_at = time.monotonic()
        try:
            call(arg)
            if self._dropped and self._waiting.empty():
                dropped, self._dropped = self._dropped, 0
                text = "%d log records and printed texts were dropped: the log could not be written for a while."
                logger.warning(text, dropped)
        except BaseException as error:
            if self._direct and not isinstance(error, Exception):  # a `TaskTimeout` for the code that logs
                raise
            note_handler_failure(error)
        self._moved_at = time.monotonic()


class _ForwardingHandler(QueueHandler):
    """Replaces the handlers of a logger. Has no lock, which a `TaskTimeout` could leave locked."""

    def __init__(self, log: LogQueue, handlers: list[logging.Handler]) -> None:
        super().__init__(log.queue)
        self._log, self.handlers = log, handlers

    handle = QueueHandler.emit  # type: ignore[assignment]

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        if not record.args:
            return record
        copied = copy(record)
        with suppress(Exception):
            copied.msg, copied.args = record.getMessage(), None  # now, before its arguments change
        return copied

    def enqueue(self, record: logging.LogRecord) -> None:
        self._log.deliver(self._call, record, waits=not record.name.startswith("django_delayq"))

    def _call(self, record: logging.LogRecord) -> None:
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


_BREAK = re.compile(r"\s*[\r\n\t]\s*")


class TaskFilter(logging.Filter):
    """Adds the running task to log records: `task`, `queue`, `attempt`, `schedule` and `run` or `job`, trace ids."""

    def filter(self, record: logging.LogRecord) -> bool:
        held = EXECUTING.get()
        if held is not None:
            for name, value in (*held.labels.items(), *tracing.get_ids().items()):
                record.__dict__.setdefault(name, value)
        return True


#: The filter on Django's logger of tasks, which identifies the job in its messages about failures.
TASK_FILTER = TaskFilter()


class _Formatter(logging.Formatter):
    """`process` is the worker's number under a supervisor."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = process

    def _format_error(self, record: logging.LogRecord) -> str:
        return redact_text(record.exc_text or self.formatException(record.exc_info)) if record.exc_info else ""


class LineFormatter(_Formatter):
    """`2026-11-21 10:00:00.012 INFO  message`, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        mark = "" if self._process is None else f"[{self._process}] "
        text = redact_text(record.getMessage())
        if not text.isprintable():
            text = escape_text(_BREAK.sub(" ", text))
        line = f"{moment.isoformat(' ', 'milliseconds')[:23]} {record.levelname:<7} {mark}{text}"
        below = "" if hasattr(record, "delayq") else self._format_error(record)  # an outcome's is stored in the ledger
        return line + ("\n" + escape_text(below, keep="\n") if below else "")


class JsonFormatter(_Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, `process` if set, and an outcome's fields."""

    def format(self, record: logging.LogRecord) -> str:
        value: dict[str, Any] = {
            "time": format_iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **({} if self._process is None else {"process": self._process}),
            **tracing.get_ids(),
            **getattr(record, "delayq", {}),
        }
        if below := self._format_error(record):
            value["traceback"] = below
        return escape_text(json.dumps(value, ensure_ascii=False, default=str))
