"""Serializes rows and exceptions as plain JSON, between a worker and the process of an isolated task.

Note [Exceptions cross as JSON]
Nothing is unpickled or imported by name. The paths of an exception's class and bases, its message and its traceback
cross. The worker creates a class that derives from the first of these bases that it has already imported, and has the
path and the message of the original, so that code finds the same type, path, message and traceback as in the task's
process. Attributes and frames do not cross: a handler that reads frames, such as Sentry's, gets the worker's.
"""

import sys
import traceback
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from ...calls import call_of
from ...calls.registry import get_task
from ...ledger.rows import Outcome, RunRow, ScheduleRow, StateRow

#: Maximum characters of a message, and of the end of a traceback, that cross.
MOST_TEXT, MOST_TRACEBACK = 10_000, 100_000


def pack_row(row: RunRow | ScheduleRow) -> dict[str, Any]:
    """Return a row as plain JSON; a schedule without its state, which is read when it is needed."""
    values = {item.name: getattr(row, item.name) for item in fields(row) if item.init and item.name != "state"}
    instants = {name: value.isoformat() for name, value in values.items() if isinstance(value, datetime)}
    spans = {name: value.total_seconds() for name, value in values.items() if isinstance(value, timedelta)}
    return {"plain": {**values, **dict.fromkeys((*instants, *spans))}, "instants": instants, "spans": spans}


def unpack_outcome(run: dict[str, Any], schedule: dict[str, Any] | None) -> Outcome:
    """Return the outcome for packed rows, of a due point or, without a schedule, of a job."""
    row = RunRow(**_values(run))
    if schedule is not None:
        return Outcome(row, ScheduleRow(state=StateRow(row.schedule_id or 0, stored=False), **_values(schedule)))
    return Outcome(row, None, job=call_of(row, get_task(row.task)))


def _values(packed: dict[str, Any]) -> dict[str, Any]:
    instants = {name: datetime.fromisoformat(text) for name, text in packed["instants"].items()}
    return {**packed["plain"], **instants, **{name: timedelta(seconds=span) for name, span in packed["spans"].items()}}


def pack_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain JSON, as far as it can be read. See Note [Exceptions cross as JSON]."""
    kind = type(error)
    text = said_or(lambda: str(error), "")
    trace = said_or(lambda: "".join(traceback.format_exception(error)), "")
    trace = trace or "".join(traceback.format_tb(error.__traceback__))
    return {
        "classes": [(str(base.__module__), str(base.__qualname__)) for base in kind.__mro__[:-1]],
        "text": text[:MOST_TEXT],
        "empty": not text and not error.args,
        "traceback": trace[-MOST_TRACEBACK:],
    }


def unpack_error(packed: dict[str, Any]) -> BaseException:
    """Return an exception that represents the packed one. See Note [Exceptions cross as JSON]."""
    module, name = packed["classes"][0]
    text, args = packed["text"], () if packed["empty"] else (packed["text"],)
    values = {
        "__module__": module,
        "__qualname__": name,
        "__str__": lambda self: text,
        "__init__": lambda self, *args: None,
        "delayq_traceback": packed["traceback"],
    }
    for path in packed["classes"]:
        base = _loaded(*path)
        if base is None:
            continue
        try:
            kind = type(name.rpartition(".")[2], (base,), values)
            error: BaseException = kind.__new__(kind, *args)
            error.args = args
            return error
        except Exception:  # noqa: S112 - it cannot be made like this: the next one
            continue
    raise AssertionError(packed["classes"])  # the last base, BaseException, always works


def _loaded(module: str, name: str) -> type[BaseException] | None:
    """Return an exception class if this process has already imported it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def remote_traceback(error: BaseException) -> str:
    """Return the traceback of an exception that has crossed, '' for any other one."""
    return str(getattr(error, "delayq_traceback", ""))


def said_or(make: Callable[[], str], otherwise: str) -> str:
    """Return a text made by foreign code; if that raises, return `otherwise`."""
    try:
        return make()
    except BaseException:
        return otherwise
