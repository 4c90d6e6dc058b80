"""The log of a worker process: whoever logs hands the record over, one thread has it written.

Note [Nobody waits for the log]
A pipe that nobody reads, or a handler that waits for a server, holds up whoever logs, and an exception in a handler
reaches him. Who claims, renews and records must not depend on that. So in a worker process a thread of its own calls
the handlers, for all loggers, also handlers that are added later: with each record in its turn, with its level and
filters, in the context variables of whoever logged. MOST_RECORDS may wait. Then our own records are dropped at once.
Whoever else logs waits while the log moves on, as he would without a queue; once nothing was written for
PATIENCE_SECONDS, his are dropped too. How many were dropped is logged when the log has caught up.
"""

import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import date, datetime, timedelta
from types import NoneType
from typing import Final, Self

logger = logging.getLogger("django_delayq.worker")

#: A KiB or so each.
MOST_RECORDS: Final = 10_000
#: A log that writes nothing for so long does not move on.
PATIENCE_SECONDS: Final = 1.0
#: How long the process waits for its log when it ends.
END_SECONDS: Final = 1.0
#: What cannot change before it is written.
CONSTANT: Final = frozenset((str, int, float, bool, bytes, NoneType, date, datetime, timedelta))


class LogQueue:
    """A context, once in a process. See Note [Nobody waits for the log].

    What the handlers raise is printed to stderr. At the end all is written, or END_SECONDS have passed; then what is
    left is lost, and nothing more is written. A child that is forked meanwhile logs as any program does.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler or a finalizer may log at any moment.
        self._records: queue.SimpleQueue[tuple[logging.Logger, logging.LogRecord, Context] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="delayq-log", daemon=True)
        self._write_one: Callable[[logging.Logger, logging.LogRecord], None] = logging.Logger.callHandlers
        self._counting = threading.RLock()
        self._dropped = 0
        self._moved_at = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        logging.Logger.callHandlers = lambda logger, record: self._put(logger, record)  # type: ignore[method-assign, assignment]
        os.register_at_fork(after_in_child=self._write_directly)
        return self

    def __exit__(self, *error: object) -> None:
        self._records.put(None)
        self._thread.join(END_SECONDS)
        if not self.stuck:
            self._write_directly()

    @property
    def stuck(self) -> bool:
        """After the end: say whether something is left that could not be written."""
        return self._thread.is_alive()

    def _write_directly(self) -> None:
        logging.Logger.callHandlers = self._write_one  # type: ignore[method-assign, assignment]

    # -- in the thread of whoever logs

    def _put(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        if threading.current_thread() is self._thread:  # a handler that logs
            self._write_one(logger, record)
        elif self._has_room(logger.name):
            _freeze(record)
            self._records.put((logger, record, copy_context()))
        else:
            with self._counting:
                self._dropped += 1

    def _has_room(self, name: str) -> bool:
        waits = not name.startswith("django_delayq")
        while self._records.qsize() >= MOST_RECORDS:
            if not waits or time.monotonic() - self._moved_at > PATIENCE_SECONDS:
                return False
            time.sleep(0.001)  # for a batch of records
        return True

    # -- in the thread of the log

    def _write(self) -> None:
        while (item := self._records.get()) is not None:
            self._moved_at = time.monotonic()
            origin, record, context = item
            try:
                context.run(self._write_one, origin, record)
                if self._dropped and self._records.empty():
                    with self._counting:
                        dropped, self._dropped = self._dropped, 0
                    text = "%d log records were dropped: the log could not be written for a while."
                    logger.warning(text, dropped)
            except BaseException:
                with suppress(Exception):
                    traceback.print_exc()
            self._moved_at = time.monotonic()


def _freeze(record: logging.LogRecord) -> None:
    """Let a record say what it says now, whatever becomes of its arguments."""
    args = record.args or ()
    if type(record.msg) is str and type(args) is tuple and all(type(value) in CONSTANT for value in args):
        return
    with suppress(Exception):  # its handlers say what is wrong with it
        record.msg, record.args = record.getMessage(), None
