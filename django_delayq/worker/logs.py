"""How log lines of the worker look: to be read by people or, as JSON, by machines. Secrets are hidden."""

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

from .. import tracing
from ..context import EXECUTING
from ..plain import iso, plain
from ..redaction import redact_text

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
