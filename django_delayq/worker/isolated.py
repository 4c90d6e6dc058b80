"""Executes isolated tasks in processes of their own: starts one for each, sends it the call, receives its outcome.

Note [Isolated tasks get fresh interpreters]
The process is started like `manage.py`, under a guard (`calls/commands/child.py`, Note [A guard ends the command]). It
is not forked from the worker, whose threads and connections must not be copied. The task's timeout counts from when the
process is ready.

Note [The process and the worker exchange lines]
The process sends an empty line when it is ready, and one line of JSON at its end. The worker sends one line, the call,
and closes its side once the lease is lost. Captured output, standard output and error arrive over pipes.

Note [Exceptions cross as JSON]
Nothing is unpickled or imported by name. The worker creates a class that derives from the first imported base of the
original, and has its path, message and traceback. Attributes and frames do not cross.
"""

import json
import math
import os
import socket
import sys
import time
import traceback
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .. import conf
from ..calls import build_call, capture, tracing
from ..calls.commands import guard
from ..calls.commands.child import Process, ProcessDied, note_last
from ..calls.isolation import Isolation
from ..calls.registry import get_task
from ..exceptions import TaskCancelled, TaskTimeout
from ..ledger.rows import Outcome, RunRow, ScheduleRow, StateRow
from .held import Lease

COMMAND = ("delayq_worker", "--skip-checks", "--isolated")
#: Maximum seconds for the start of a process, which does not count towards the task's timeout.
START_SECONDS = 60.0
#: Maximum seconds for the end of a process after its outcome: exporters flush, threads and children end.
END_SECONDS = 5.0
#: Seconds added to the hard timeout, after which the thread is given up like that of any other task.
SPARE_SECONDS = START_SECONDS + END_SECONDS + 30.0
#: Maximum lines of stderr in the error of a killed process: they include the stacks of its threads.
LAST_LINES = 200
#: Maximum characters of a message, and of the end of a traceback, that cross.
MOST_TEXT, MOST_TRACEBACK = 10_000, 100_000


class Taken(NamedTuple):
    """A value read in the process that returned it, and the error of that: the result of `calling.take`."""

    value: Any
    error: BaseException | None


def is_on() -> bool:
    """Return True if isolated tasks get processes of their own: not in tests, whose database those cannot see."""
    return not (conf.is_test() or conf.explain_no_redis())


def call(held: Lease, isolation: Isolation) -> Taken:
    """Execute the task of an entry in its own process; raise what it raised. See Note [Exceptions cross as JSON].

    Raises TaskTimeout if it was stopped, ProcessDied if its process ended by itself, OSError if none could be started.
    """
    outcome = held.outcome
    message = {
        "run": pack_row(outcome.run),
        "schedule": None if outcome.schedule is None else pack_row(outcome.schedule),
        "captures": held.output is not None,
        "trace": tracing.build_carrier(),
    }
    token = capture.current.set(None)  # standard output was captured already
    try:
        reply = _execute(held, isolation, json.dumps(message).encode() + b"\n")
    finally:
        capture.current.reset(token)
    error = reply["error"] and unpack_error(reply["error"])
    if reply["raised"]:
        raise error
    return Taken(reply["value"], error)


def _execute(held: Lease, isolation: Isolation, call: bytes) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    output, output_end = (os.fdopen(end, mode, buffering=0) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    with ours, theirs, output, output_end:
        ends = theirs.fileno(), output_end.fileno()
        command, memory_mb = [*COMMAND, *map(str, ends)], isolation.memory_mb
        process = Process(command, memory_mb=memory_mb, pass_fds=ends, last_lines=LAST_LINES)
        theirs.close()
        output_end.close()
        channel = _Channel(ours, call)
        process.add_source(ours, channel.take)
        if held.output is not None:
            add, decoder = held.output.add, getincrementaldecoder("utf-8")(errors="replace")
            process.add_source(output, lambda found: add(decoder.decode(found)))
        try:
            interrupted = _watch(held, process, channel)
        finally:
            if not process.ended:
                process.send_order(guard.KILL)
            process.end()
    if channel.ended:
        reply: dict[str, Any] = json.loads(channel.reply)
        return reply
    died = ProcessDied(process.status, process.last)
    if not channel.began:
        died.add_note(f"It ended before it was ready for the task. The limit for that is {START_SECONDS:g} s.")
    if not interrupted:
        raise died
    killed = f"its process was killed within {conf.get_config().timeout_grace_seconds:g} s"
    if held.stopped_by is None:
        error = TaskTimeout(f"its timeout of {held.limit:g} s was over; {killed}")
    else:
        error = TaskCancelled(f"stopped by a user; {killed}")
    note_last(error, process.last)
    raise error from died


def _watch(held: Lease, process: Process, channel: "_Channel") -> bool:
    """Serve a process until it ends or must be killed; return whether it was interrupted."""
    limit, grace = math.inf if held.limit is None else held.limit, conf.get_config().timeout_grace_seconds
    kill_at, interrupted = time.monotonic() + START_SECONDS, False
    while process.pass_output():
        now, began = time.monotonic(), channel.began
        if began and not interrupted:
            kill_at = began + limit + grace
        if channel.ended:
            kill_at = min(kill_at, channel.ended + END_SECONDS)
        elif not interrupted and (held.stopped_by is not None or (began and now >= began + limit)):
            interrupted, kill_at = True, now + grace if began else now
            if began:
                process.send_order(guard.TIMEOUT if held.stopped_by is None else guard.CANCEL)
        if held.lost and began:
            with suppress(OSError):  # it has ended
                channel.socket.shutdown(socket.SHUT_WR)
        if now >= kill_at:
            break
    return interrupted


class _Channel:
    """The worker's side of the socket. See Note [The process and the worker exchange lines]."""

    def __init__(self, ours: socket.socket, call: bytes) -> None:
        self.socket, self._call, self.reply = ours, call, b""
        self.began = self.ended = 0.0  # monotonic seconds: ready, and outcome received; 0 before

    def take(self, found: bytes) -> None:
        if found and not self.began:
            self.began = time.monotonic()
            with suppress(OSError):  # it has ended
                self.socket.sendall(self._call)
            return
        self.reply += found
        if found.endswith(b"\n"):
            self.ended = time.monotonic()


def pack_row(row: RunRow | ScheduleRow) -> dict[str, Any]:
    """Return a row as plain JSON; a schedule without its state, which is read when it is needed."""
    values = {item.name: getattr(row, item.name) for item in fields(row) if item.init and item.name != "state"}
    instants = {name: value.isoformat() for name, value in values.items() if isinstance(value, datetime)}
    spans = {name: value.total_seconds() for name, value in values.items() if isinstance(value, timedelta)}
    return {"plain": {**values, **dict.fromkeys((*instants, *spans))}, "instants": instants, "spans": spans}


def unpack_outcome(run: dict[str, Any], schedule: dict[str, Any] | None) -> Outcome:
    """Return the outcome for packed rows, of a due point or, without a schedule, of a job."""
    row = RunRow(**_unpack_values(run))
    if schedule is not None:
        return Outcome(row, ScheduleRow(state=StateRow(row.schedule_id or 0, stored=False), **_unpack_values(schedule)))
    return Outcome(row, None, job=build_call(row, get_task(row.task)))


def _unpack_values(packed: dict[str, Any]) -> dict[str, Any]:
    instants = {name: datetime.fromisoformat(text) for name, text in packed["instants"].items()}
    return {**packed["plain"], **instants, **{name: timedelta(seconds=span) for name, span in packed["spans"].items()}}


def pack_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain JSON, as far as it can be read. See Note [Exceptions cross as JSON]."""
    kind = type(error)
    text = format_safely(lambda: str(error), "")
    trace = format_safely(lambda: "".join(traceback.format_exception(error)), "")
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
        with suppress(Exception):  # no exception of this kind can be made: the next base
            kind = type(name.rpartition(".")[2], (_find_loaded(*path),), values)
            error: BaseException = kind.__new__(kind, *args)
            error.args = args
            return error
    raise AssertionError(packed["classes"])  # the last base, BaseException, always works


def _find_loaded(module: str, name: str) -> Any:
    """Return an exception class if this process has already imported it, else None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def get_remote_traceback(error: BaseException) -> str:
    """Return the traceback of an exception that has crossed, '' for any other one."""
    return str(getattr(error, "delayq_traceback", ""))


def format_safely(make: Callable[[], str], otherwise: str) -> str:
    """Return a text made by foreign code; if that raises, return `otherwise`."""
    try:
        return make()
    except BaseException:
        return otherwise
