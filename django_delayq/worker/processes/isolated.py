"""Has isolated tasks executed in processes of their own: starts one for each, tells it the call, hears its end.

Note [A fresh interpreter for each]
Each execution has a process of its own that executes nothing else, before or after: whatever a task leaks, forks,
changes or breaks ends with it. The process is started as `manage.py` is, not forked from the worker, whose threads
and connections must not be copied; see `calls/commands/process.py`, Note [The guard]. Its start takes long, so the time
of the task counts from when it is ready.

Note [What it says]
By a socket it says an empty line once it is ready, and one line of JSON at its end. The worker says one line, the
call, and ends its side once the lease is lost. What the task logs and prints comes by a pipe as it is said
(`capture.py`, Note [Heard beside the way]), and standard output and error by two more, which go on to the worker's
own: so each is heard once, until something kills it. A signal interrupts it, also while it waits.
"""

import json
import math
import os
import socket
import time
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Any, NamedTuple

from ... import conf
from ...calls import capture, tracing
from ...calls.commands import guard
from ...calls.commands.process import Process, ProcessDied, note_last
from ...calls.isolation import Isolation
from ...exceptions import TaskCancelled, TaskTimeout
from ..held import Held
from .crossing import pack_row, unpack_error

COMMAND = ("delayq_worker", "--skip-checks", "--isolated")
#: How long a process may take to start, which is no part of the task's time.
START_SECONDS = 60.0
#: How long a process may take to end once its outcome is there: exporters flush, threads and children end.
END_SECONDS = 5.0
#: So long after the hard timeout it must have ended, else its thread is given up as that of any other task.
SPARE_SECONDS = START_SECONDS + END_SECONDS + 30.0
#: So many lines of stderr are told where a process was ended: the stacks of its threads are among them.
LAST_LINES = 200


class Taken(NamedTuple):
    """A value that was looked into where it was returned, and what it raised then: what `calling.take` returns."""

    value: Any
    error: BaseException | None


def is_on() -> bool:
    """Say whether isolated tasks have processes of their own: not in tests, whose database those would not have."""
    return not (conf.is_test() or conf.why_no_redis())


def call(held: Held, isolation: Isolation) -> Taken:
    """Execute the task of an entry in a process of its own, within its time.

    Raises:
        TaskTimeout: Its time was over, or somebody has stopped it; by itself, or its process was killed.
        ProcessDied: Its process ended by itself.
        OSError: No process could be started.
        BaseException: What the task raised, see `crossing.py`.
    """
    outcome = held.outcome
    message = {
        "run": pack_row(outcome.run),
        "schedule": None if outcome.schedule is None else pack_row(outcome.schedule),
        "memory_mb": isolation.memory_mb,
        "heard": held.output is not None,
        "trace": tracing.carrier(),
    }
    token = capture.current.set(None)  # what comes by standard output was heard already
    try:
        reply = _execute(held, json.dumps(message).encode() + b"\n")
    finally:
        capture.current.reset(token)
    if "error" in reply:
        raise unpack_error(reply["error"])
    unfit = reply.get("unfit")
    return Taken(reply.get("value"), unfit and unpack_error(unfit))


def _execute(held: Held, call: bytes) -> dict[str, Any]:
    """Return what a process replied to this call, once it has ended. Raises what the function `call` does."""
    ours, theirs = socket.socketpair()
    heard, hear = (os.fdopen(end, mode, buffering=0) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    with ours, theirs, heard, hear:
        ends = theirs.fileno(), hear.fileno()
        process = Process([*COMMAND, *map(str, ends)], pass_fds=ends, last_lines=LAST_LINES)
        theirs.close()
        hear.close()
        channel = _Channel(ours, call)
        process.hear(ours, channel.take)
        if held.output is not None:
            add, decoder = held.output.add, getincrementaldecoder("utf-8")(errors="replace")
            process.hear(heard, lambda found: add(decoder.decode(found)))
        try:
            interrupted = _watch(held, process, channel)
        finally:
            if not process.ended:
                process.order(guard.KILL)
            process.end()
    if channel.ended:
        reply: dict[str, Any] = json.loads(channel.reply)
        return reply
    died = ProcessDied(process.status, process.last)
    if not channel.began:
        died.add_note(f"It was not ready for the task, for which it had {START_SECONDS:g} s.")
    if not interrupted:
        raise died
    stopped, grace = held.stopped_by is not None, conf.get_config().timeout_grace_seconds
    over = "stopped by somebody" if stopped else f"its timeout of {held.limit:g} s was over"
    error = (TaskCancelled if stopped else TaskTimeout)(f"{over}; its process was killed within {grace:g} s")
    note_last(error, process.last)
    raise error from died


def _watch(held: Held, process: Process, channel: "_Channel") -> bool:
    """Hear a process until it has ended or is to be killed; say whether it was interrupted."""
    limit, grace = math.inf if held.limit is None else held.limit, conf.get_config().timeout_grace_seconds
    kill_at, interrupted = time.monotonic() + START_SECONDS, False
    while process.round():
        now, began = time.monotonic(), channel.began
        if began and not interrupted:
            kill_at = began + limit + grace
        if channel.ended:
            kill_at = min(kill_at, channel.ended + END_SECONDS)
        elif not interrupted and (held.stopped_by is not None or (began and now >= began + limit)):
            interrupted, kill_at = True, now + grace if began else now
            if began:
                process.order(guard.TIMEOUT if held.stopped_by is None else guard.CANCEL)
        if held.lost and began:
            with suppress(OSError):  # it has ended
                channel.socket.shutdown(socket.SHUT_WR)
        if now >= kill_at:
            break
    return interrupted


class _Channel:
    """The worker's side of the socket. See Note [What it says]."""

    def __init__(self, ours: socket.socket, call: bytes) -> None:
        self.socket, self._call, self.reply = ours, call, b""
        self.began = self.ended = 0.0  # monotonic, when it was ready, and when its outcome came; 0 before

    def take(self, found: bytes) -> None:
        """Take a piece of what the process says."""
        if found and not self.began:
            self.began = time.monotonic()
            with suppress(OSError):  # it has ended
                self.socket.sendall(self._call)
            return
        self.reply += found
        if found.endswith(b"\n"):
            self.ended = time.monotonic()
