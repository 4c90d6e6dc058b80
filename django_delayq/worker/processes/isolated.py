"""Executes isolated tasks in processes of their own: starts one for each, sends it the call, receives its outcome.

Note [A fresh interpreter for each]
Each execution has its own process, which executes nothing else: whatever a task leaks, forks, changes or breaks ends
with it. The process is started like `manage.py`, not forked from the worker, whose threads and connections must not
be copied; see `calls/commands/process.py`, Note [The guard]. The task's timeout counts from when it is ready.

Note [What it says]
Over a socket, the process sends an empty line when it is ready, and one line of JSON at its end. The worker sends one
line, the call, and closes its side once the lease is lost. Captured output arrives over a pipe as it is written
(`capture.py`, Note [Heard beside the way]); standard output and error arrive over two more and are passed on to the
worker's own, so each text is captured once, until the process dies. A signal interrupts it, even while it waits.
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
from ..held import Lease
from .crossing import pack_row, unpack_error

COMMAND = ("delayq_worker", "--skip-checks", "--isolated")
#: Maximum seconds for the start of a process, which does not count towards the task's timeout.
START_SECONDS = 60.0
#: Maximum seconds for the end of a process after its outcome: exporters flush, threads and children end.
END_SECONDS = 5.0
#: Seconds added to the hard timeout, after which the thread is given up like that of any other task.
SPARE_SECONDS = START_SECONDS + END_SECONDS + 30.0
#: Maximum lines of stderr in the error of a killed process: they include the stacks of its threads.
LAST_LINES = 200


class Taken(NamedTuple):
    """A value read in the process that returned it, and the error of that: the result of `calling.take`."""

    value: Any
    error: BaseException | None


def is_on() -> bool:
    """Return True if isolated tasks get processes of their own: not in tests, whose database those cannot see."""
    return not (conf.is_test() or conf.why_no_redis())


def call(held: Lease, isolation: Isolation) -> Taken:
    """Execute the task of an entry in a process of its own, within its time.

    Raises:
        TaskTimeout: Its timeout passed, or a user stopped it: it was interrupted, or its process was killed.
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
    token = capture.current.set(None)  # standard output was captured already
    try:
        reply = _execute(held, json.dumps(message).encode() + b"\n")
    finally:
        capture.current.reset(token)
    if "error" in reply:
        raise unpack_error(reply["error"])
    unfit = reply.get("unfit")
    return Taken(reply.get("value"), unfit and unpack_error(unfit))


def _execute(held: Lease, call: bytes) -> dict[str, Any]:
    """Return the reply of a process to this call, once it has ended. Raises the same as `call`."""
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


def _watch(held: Lease, process: Process, channel: "_Channel") -> bool:
    """Serve a process until it ends or must be killed; return whether it was interrupted."""
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
        self.began = self.ended = 0.0  # monotonic seconds: ready, and outcome received; 0 before

    def take(self, found: bytes) -> None:
        """Take a piece of the process' messages."""
        if found and not self.began:
            self.began = time.monotonic()
            with suppress(OSError):  # it has ended
                self.socket.sendall(self._call)
            return
        self.reply += found
        if found.endswith(b"\n"):
            self.ended = time.monotonic()
