"""Keeps what runs beside the work from deciding its outcome: logs, output, metrics, traces, pings, alerts, receivers.

Note [Cut off]
An error of a side channel is cut off: the work goes on, and its outcome stays its own. Each cause is logged once in a
process, since a broken span processor fails at each execution. The line has no traceback, which could show a secret.
It is logged in an empty context, so that it is no part of what the running task has said.
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

#: The loggers of this package: what their handlers raise reaches no caller.
LOGGERS = ("django_delayq", *(f"django_delayq.{name}" for name in ("sources", "sync", "worker")))
#: So many causes are told apart in a process; further ones are not logged.
MOST_CAUSES = 1000

logger = logging.getLogger("django_delayq.worker")
#: Passes a record of this package to a handling function; in a worker the log's thread calls it. None: called at once.
deliver: Callable[[Callable[[logging.LogRecord], object], logging.LogRecord], object] | None = None
_logged: set[tuple[str, type[BaseException]]] = set()


class Guard:
    """A context that cuts off what a side channel raises: see Note [Cut off]. May be used again and by any thread.

    It cuts off each `Exception`. Pass BaseException where no `TaskTimeout` and no KeyboardInterrupt can arrive.
    """

    __slots__ = ("_cut", "_what")

    def __init__(self, what: str, cut: type[BaseException] = Exception) -> None:
        """`what` failed, as the subject of a sentence."""
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
    """Send a signal to all its receivers; `name` is what people call it. See `Guard` for `cut`.

    Not by `send_robust`, which logs each failure with its traceback, and ends at a receiver without a `__qualname__`.
    """
    if signal.receivers:
        synchronous, asynchronous = signal._live_receivers(named["sender"])
        for receiver in (*synchronous, *asynchronous):
            path = f"{receiver.__module__}.{getattr(receiver, '__qualname__', type(receiver).__qualname__)}"
            with Guard(f"The receiver {path} of the signal {name}", cut):
                call = async_to_sync(receiver) if receiver in asynchronous else receiver
                call(signal=signal, **named)


def note_failure(what: str, error: BaseException, say: Callable[[str], object] | None = None) -> None:
    """Log a cause once in this process, or `say` it. Never raises."""
    cause = what, type(error)
    if cause in _logged or len(_logged) >= MOST_CAUSES:
        return
    _logged.add(cause)
    with suppress(Exception):
        text = f"{what} failed and is ignored; the work goes on. Logged once: {_described(error)}"
        Context().run(say or logger.error, text)


def _described(error: BaseException) -> str:
    try:
        said = redact_text(str(error))[:500]
    except Exception:
        said = "(its text cannot be read)"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {said}{where}"


def say_on_stderr(text: str) -> None:
    """Print a line, where stderr can be written."""
    with suppress(Exception):
        sys.stderr.write(f"{text}\n")


def note_handler_failure(error: BaseException) -> None:
    """Print what a log handler, filter or record factory raised, once for each cause: the log may be what is broken."""
    note_failure("A log handler", error, say_on_stderr)


def guard_loggers() -> None:
    """Cut off what log handlers, filters and record factories raise for records of this package, in each process."""
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
