"""What crosses between a worker and the process of an isolated task, as plain JSON: contexts and exceptions.

Note [An exception that crosses]
Nothing is unpickled, and nothing imported by name. Of an exception its class' path, its bases' paths, its message and
its traceback cross. In the worker it becomes an exception of a class that is made for it: it derives from the first of
these bases that the worker has imported already, has the path and says the message of the original. So whoever looks
at its type, its path, its message or its traceback finds what he finds of a task in the worker's own process. Its
attributes do not cross, nor do its frames: a log handler that reads them, such as Sentry's, has the worker's.
"""

import json
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ..compat import AnyTask, TaskError, TaskResult, TaskResultStatus
from ..context import ExecutionContext, JobContext, RunContext
from ..jobs.results import JobResult
from ..jobs.task import as_enqueued
from ..ledger import database
from ..models import Schedule

#: So much of a message, and of the end of a traceback, crosses.
MOST_TEXT, MOST_TRACEBACK = 10_000, 100_000
_TASK = ("priority", "backend", "queue_name")
_RESULT = ("id", "status", "args", "kwargs", "backend", "worker_ids")
_INSTANTS = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")


def encode(value: Any) -> bytes:
    """Return a line of JSON."""
    return json.dumps(value).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return what `encode` was given."""
    value: dict[str, Any] = json.loads(line)
    return value


# -- contexts


def pack_context(context: ExecutionContext) -> dict[str, Any]:
    """Return a context as plain JSON."""
    result, task = context.task_result, context.task_result.task
    packed: dict[str, Any] = {
        "task": {name: getattr(task, name) for name in _TASK},
        "run_after": _iso(task.run_after),
        "result": {name: getattr(result, name) for name in _RESULT},
        "instants": {name: _iso(getattr(result, name)) for name in _INSTANTS},
        "errors": [(error.exception_class_path, error.traceback) for error in result.errors],
        "key": context.idempotency_key,
    }
    if isinstance(context, RunContext):
        loaded = [field for field in Schedule._meta.concrete_fields if field.attname in context.schedule.__dict__]
        values = [(field, getattr(context.schedule, field.attname)) for field in loaded]
        packed["schedule"] = {
            field.attname: None if value is None else field.value_to_string(context.schedule) for field, value in values
        }
        packed["due_at"], packed["attempt"] = _iso(context.due_at), context.attempt_number
    return packed


def unpack_context(packed: dict[str, Any], task: AnyTask, lease_lost: Callable[[], bool]) -> ExecutionContext:
    """Return the context that was packed, for this task of the registry."""
    in_chain = "schedule" in packed
    values = {**packed["result"], **{name: _instant(text) for name, text in packed["instants"].items()}}
    values["status"] = TaskResultStatus(values["status"])
    errors = [TaskError(exception_class_path=path, traceback=text) for path, text in packed["errors"]]
    called = as_enqueued(task, **packed["task"], run_after=_instant(packed["run_after"]))
    result: Any = (TaskResult if in_chain else JobResult)(task=called, errors=errors, **values)
    common = {"task_result": result, "idempotency_key": packed["key"], "_lease_lost": lease_lost}
    if not in_chain:
        return JobContext(**common)
    fields = {field.attname: field for field in Schedule._meta.concrete_fields}
    told: dict[str, Any] = packed["schedule"]
    row = {name: None if value is None else fields[name].to_python(value) for name, value in told.items()}
    schedule = Schedule.from_db(database(), list(row), list(row.values()))
    due_at = datetime.fromisoformat(packed["due_at"])
    return RunContext(**common, schedule=schedule, due_at=due_at, attempt_number=packed["attempt"])


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


# -- exceptions


def pack_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain JSON, as far as it can be looked into. See Note [An exception that crosses]."""
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
    """Return what stands for the exception that was packed. See Note [An exception that crosses]."""
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
    raise AssertionError(packed["classes"])  # BaseException can


def _loaded(module: str, name: str) -> type[BaseException] | None:
    """Return an exception's class, if this process has imported it already."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def remote_traceback(error: BaseException) -> str:
    """Return the traceback of an exception that has crossed; '' of any other one."""
    return str(getattr(error, "delayq_traceback", ""))


def said_or(make: Callable[[], str], otherwise: str) -> str:
    """Return the text, or the other one where it cannot be made: foreign code makes it."""
    try:
        return make()
    except BaseException:
        return otherwise
