"""Isolates work from failures of side channels: logs, output, metrics, traces, pings, alerts, receivers.

Note [Side channels never fail work]
Errors of side channels do not affect the work or its outcome. Each cause is logged once per process: without a
traceback, which could show a secret, and in an empty context, so that the output of the task does not capture it.
"""

import logging
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any

from asgiref.sync import async_to_sync
from django.dispatch import Signal

from ..text import redact_text

#: The loggers of this package: exceptions of their handlers reach no caller.
LOGGERS = ("django_delayq", *(f"django_delayq.{name}" for name in ("sources", "sync", "worker")))
#: Maximum causes logged per process.
MOST_CAUSES = 1000

logger = logging.getLogger("django_delayq.worker")
#: Passes a record to a handling function; in a worker, through the log's thread. None: handled in the calling thread.
deliver: Callable[[Callable[[logging.LogRecord], object], logging.LogRecord], object] | None = None
_logged: set[tuple[str, type[BaseException]]] = set()


class Guard:
    """Suppresses exceptions in a `with`: see Note [Side channels never fail work]. Reusable and thread-safe."""

    __slots__ = ("_cut", "_what")

    def __init__(self, what: str, cut: type[BaseException] = Exception) -> None:
        """`what` is the subject of "... failed"; `cut` may be BaseException where no `TaskTimeout` can arrive."""
        self._what, self._cut = what, cut

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, self._cut):
            return False
        note_failure(self._what, error)
        return True


def send(signal: Signal, name: str, *, cut: type[BaseException] = Exception, **named: Any) -> None:
    """Send a signal to all its receivers. `send_robust` would log tracebacks, and requires a `__qualname__`."""
    if signal.receivers:
        synchronous, asynchronous = signal._live_receivers(named["sender"])
        for receiver in (*synchronous, *asynchronous):
            path = f"{receiver.__module__}.{getattr(receiver, '__qualname__', type(receiver).__qualname__)}"
            with Guard(f"The receiver {path} of the signal {name}", cut):
                call = async_to_sync(receiver) if receiver in asynchronous else receiver
                call(signal=signal, **named)


def note_failure(what: str, error: BaseException, say: Callable[[str], object] | None = None) -> None:
    """Log a cause once in this process, or pass it to `say`. Never raises."""
    cause = what, type(error)
    if cause in _logged or len(_logged) >= MOST_CAUSES:
        return
    _logged.add(cause)
    reason = "(its text cannot be read)"
    with suppress(Exception):
        reason = redact_text(str(error))[:500]
    with suppress(Exception):
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        text = f"{what} failed and is ignored; the work goes on. Logged once: {type(error).__name__}: {reason}{where}"
        Context().run(say or logger.error, text)


def note_handler_failure(error: BaseException) -> None:
    """Print the exception of a log handler, filter or record factory, once per cause; the log itself may be broken."""
    note_failure("A log handler", error, lambda text: sys.stderr.write(f"{text}\n"))


def guard_loggers() -> None:
    """Suppress exceptions of log handlers, filters and record factories for records of this package."""
    for name in LOGGERS:
        _guard_logger(logging.getLogger(name))


def _guard_logger(own: logging.Logger) -> None:
    def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        try:
            return type(own).makeRecord(own, *args, **kwargs)
        except Exception as error:
            note_handler_failure(error)
            return logging.LogRecord(*args[:7])

    def handle(record: logging.LogRecord) -> None:
        plainly = partial(type(own).handle, own)
        try:
            if deliver is None:
                plainly(record)
            else:
                deliver(plainly, record)
        except Exception as error:
            note_handler_failure(error)

    own.makeRecord, own.handle = make_record, handle  # type: ignore[method-assign]
