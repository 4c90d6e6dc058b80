"""How log lines of the worker look: to be read by people or, as JSON, by machines. Secrets are hidden."""

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

from ..plain import iso, plain
from ..redaction import redact_text

_BREAK = re.compile(r"\s*[\r\n\t]\s*")


class LineFormatter(logging.Formatter):
    """`2026-11-21 10:00:00.012 INFO  message`, in UTC. `process` is the worker's place under a supervisor, if any."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._mark = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with a traceback below where there is one."""
        moment = datetime.fromtimestamp(record.created, UTC)
        text = self._mark + plain(_BREAK.sub(" ", redact_text(record.getMessage())))
        line = f"{moment:%Y-%m-%d %H:%M:%S}.{int(record.msecs):03d} {record.levelname:<7} {text}"
        below = redact_text(self.formatException(record.exc_info)) if record.exc_info else ""
        return line + ("\n" + plain(below, keep="\n") if below else "")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, `process` as above, and an outcome's fields."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._mark = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        value: dict[str, Any] = {
            "time": iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **self._mark,
            **getattr(record, "delayq", {}),
        }
        if record.exc_info:
            value["traceback"] = redact_text(self.formatException(record.exc_info))
        return plain(json.dumps(value, ensure_ascii=False, default=str))
