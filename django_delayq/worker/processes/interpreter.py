"""Makes one call in the process of an isolated task, started by `isolated.py`. Single-threaded, so tasks may fork."""

import faulthandler
import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.db import connections

from ... import conf, ledger
from ...calls import capture, registry, tracing
from ...calls.context import EXECUTING
from ...exceptions import TaskCancelled, TaskTimeout
from ...ledger import bulk
from ..announcing import build_running_result
from ..calling import build_context, call_cancellable, take
from ..held import Lease
from ..isolated import pack_error, unpack_outcome
from ..logs import LogQueue
from ..process import end_as_child

#: Bytes that a pipe takes in one piece even with several writers: POSIX' PIPE_BUF is at least 512.
ATOMIC_BYTES = 512
#: The guard's signals: the timeout has passed, or a user stops the task.
INTERRUPTS = {signal.SIGUSR1: TaskTimeout, signal.SIGUSR2: TaskCancelled}


@dataclass(slots=True, eq=False, kw_only=True)
class _Lease(Lease):
    """The entry that this process executes; its lease and outcome belong to the worker."""

    channel: socket.socket

    def is_lost(self) -> bool:
        with suppress(BlockingIOError):
            return not self.channel.recv(1, socket.MSG_DONTWAIT)  # closed by the worker, which sends nothing before
        return False


class _Output(capture.CapturedOutput):
    """Sends output to the worker at once, so that it survives the end of this process."""

    __slots__ = ("_pipe",)

    def __init__(self, pipe: int) -> None:
        super().__init__(0)
        self._pipe = pipe

    def add(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        with suppress(OSError):  # the worker is gone
            for start in range(0, len(data), ATOMIC_BYTES):
                os.write(self._pipe, data[start : start + ATOMIC_BYTES])


def serve(channel: int, output: int) -> None:
    """Execute one call, on these two descriptors; the task's own children inherit neither."""
    os.set_inheritable(channel, False)
    os.set_inheritable(output, False)
    with socket.socket(fileno=channel) as ours:
        bulk.prepare(connections[ledger.get_database()])
        registry.get_tasks()
        connections.close_all()
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # they stay pending until the task begins
        ours.sendall(b"\n")
        line = ours.makefile("rb").readline()
        if line:
            faulthandler.enable()  # writes the stack if a signal ends the process
            faulthandler.register(signal.SIGTERM, chain=True)
            outcome = _make(json.loads(line), ours, output)
            ours.sendall(json.dumps(outcome).encode() + b"\n")


def _make(call: dict[str, Any], channel: socket.socket, output: int) -> dict[str, Any]:
    outcome, process = unpack_outcome(call["run"], call["schedule"]), os.getpid()
    task = registry.get_task(outcome.call.task)
    leased = ("shard", "member", "holder", "deadline", "entry", "fence", "worker", "claimed_at", "point")
    held = _Lease(**dict.fromkeys(leased), outcome=outcome, channel=channel)  # type: ignore[arg-type]
    result = None if outcome.job is None else build_running_result(held, task)
    context = [build_context(held, task, result)] if task.takes_context else []
    is_async = iscoroutinefunction(task.func)
    work: Callable[..., Any] = partial(call_cancellable, held, task) if is_async else task.call
    value, error = None, None

    def interrupt(number: int, frame: object) -> None:
        raised = INTERRUPTS[signal.Signals(number)]
        if not is_async:
            raise raised
        held.limit, held.stopped_by = 0.0, "" if raised is TaskCancelled else None
        if held.interrupt is not None:
            held.interrupt()

    with LogQueue(direct=True), capture.capture_output(conf.get_config().max_output_bytes):
        EXECUTING.set(held)
        capture.current.set(_Output(output) if call["captures"] else None)
        if tracing.is_on():
            from opentelemetry import context as traces

            traces.attach(tracing.read_context(call["trace"]))
        try:
            try:
                for number in INTERRUPTS:
                    signal.signal(number, interrupt)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
                value = work(*context, *outcome.call.args, **outcome.call.kwargs)
            finally:
                for number in INTERRUPTS:
                    signal.signal(number, signal.SIG_IGN)
        except BaseException as raised:
            error = raised
    if os.getpid() != process:
        end_as_child(error)
    connections.close_all()
    failed = error is not None
    if error is None:
        value, error = take(value, conf.get_config().max_result_bytes)
    return {"value": value, "error": error and pack_error(error), "raised": failed}
