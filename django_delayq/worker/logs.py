"""Log lines of the worker: one per outcome, to be read by people or, as JSON, by machines. Secrets are hidden."""

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

from ..handover import REASON as REASON_HANDED_OVER
from ..models import Status
from ..plain import plain
from ..redaction import redact_text
from ..rows import RunRow

logger = logging.getLogger("django_delayq.worker")

_BREAK = re.compile(r"\s*[\r\n\t]\s*")
LEVELS = {
    Status.FAILED: logging.ERROR,
    Status.LOST: logging.ERROR,
    Status.RETRYING: logging.WARNING,
}


def log_run(run: RunRow) -> None:
    """Log what became of a due point."""
    level = LEVELS.get(Status(run.status), logging.INFO)
    if not logger.isEnabledFor(level):
        return
    event = run_event(run)
    logger.log(level, _line(event), extra={"delayq": event})


def run_event(run: RunRow) -> dict[str, Any]:
    """Return an outcome as flat JSON values; instants in ISO 8601 UTC, durations in ms."""
    event: dict[str, Any] = {
        "event": str(run.status),
        "schedule": run.schedule_name,
        "task": run.task,
        "queue": run.queue,
        "origin": str(run.origin),
        "due_at": _iso(run.due_at),
    }
    if run.lag is not None:
        event["lag_ms"] = round(run.lag.total_seconds() * 1000)
    if run.started_at is not None and run.duration is not None:
        event["duration_ms"] = round(run.duration.total_seconds() * 1000, 1)
    if run.attempt > 1 or run.status == Status.RETRYING:
        event["attempt"] = run.attempt
    if run.points != 1:
        event["points"] = run.points
    if run.last_due_at is not None:
        event["last_due_at"] = _iso(run.last_due_at)
    if run.reason:
        event["reason"] = redact_text(run.reason)
    if run.reason == REASON_HANDED_OVER and isinstance(run.result, dict):
        event["backend"], event["result_id"] = run.result.get("backend"), run.result.get("result_id")
    if run.error:
        event["traceback"] = redact_text(run.error)
    return event


def _iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _line(event: dict[str, Any]) -> str:
    parts = [f"{event['event']:<9} {event['schedule']}", f"due {event['due_at'][:19].replace('T', ' ')}"]
    if "last_due_at" in event:
        parts.append(f"to {event['last_due_at'][:19].replace('T', ' ')}")
    if "points" in event:
        parts.append(f"points {event['points'] or 'not known'}")
    if event["origin"] != "due":
        parts.append(event["origin"])
    if "lag_ms" in event:
        parts.append(f"lag {event['lag_ms']} ms")
    if "duration_ms" in event:
        parts.append(f"took {event['duration_ms']:g} ms")
    if "attempt" in event:
        parts.append(f"attempt {event['attempt']}")
    if "backend" in event:
        parts.append(f"handed over to {event['backend']} as {event['result_id']}")
    elif "reason" in event:
        parts.append(f"({event['reason']})")
    return "  ".join(parts).replace("\n", " ")


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
            "time": _iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **self._mark,
            **getattr(record, "delayq", {}),
        }
        if record.exc_info:
            value["traceback"] = redact_text(self.formatException(record.exc_info))
        return plain(json.dumps(value, ensure_ascii=False, default=str))
