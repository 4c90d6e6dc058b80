"""The process of an isolated task, as it is within: waits for one call, makes it, tells what came of it, and ends.

Started by `isolated.py` as `manage.py delayq_isolated`, under a guard. One thread only, so that tasks may fork.
"""

import faulthandler
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.db import connections

from .. import capture, conf, ledger, registry, tracing
from ..compat import AnyTask
from ..context import EXECUTING
from ..exceptions import TaskCancelled, TaskTimeout
from ..ledger import sqlite
from .calling import call_cancellable, take
from .children import end_as_child
from .crossing import decode, encode, pack_error, unpack_context
from .held import Held
from .isolated import CANCEL, LOST, TIMEOUT
from .logs import LogQueue
from .memory import MEBIBYTE

#: A pipe takes so many bytes at once, whoever else writes into it: POSIX' PIPE_BUF is 512 at least.
ATOMIC_BYTES = 512


@dataclass(slots=True, eq=False, kw_only=True)
class HeldElsewhere(Held):
    """What this process executes, whose lease and outcome are its worker's."""

    told_labels: dict[str, str | int] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str | int]:
        """See `Held.labels`."""
        return self.told_labels


class _Output(capture.Output):
    """Sends what is said to the worker at once: whatever ends this process, that was heard."""

    __slots__ = ("_pipe",)

    def __init__(self, pipe: int) -> None:
        super().__init__(0)
        self._pipe = pipe

    def add(self, text: str) -> None:
        """Send a text, whatever the thread or the forked process."""
        data = text.encode("utf-8", "replace")
        with suppress(OSError):  # the worker is gone
            for start in range(0, len(data), ATOMIC_BYTES):
                os.write(self._pipe, data[start : start + ATOMIC_BYTES])


class Interpreter:
    """One process, one call."""

    def __init__(self, channel: socket.socket, heard: int) -> None:
        """Take the two ends that the worker has passed on; the task's own children get neither."""
        os.set_inheritable(channel.fileno(), False)
        os.set_inheritable(heard, False)
        self._channel, self._output = channel, _Output(heard)
        self._words = b""
        self._held: HeldElsewhere | None = None
        self._is_async = False

    def serve(self) -> None:
        """Get ready, say so, and make the one call that comes, if one does."""
        sqlite.prepare(connections[ledger.database()])
        registry.get_tasks()
        connections.close_all()
        signal.signal(signal.SIGUSR1, self._interrupted)
        self._channel.sendall(b"\n")
        line = self._read_call()
        if line:
            faulthandler.enable()  # what ends it by a signal has it say where it was
            faulthandler.register(signal.SIGTERM, chain=True)
            outcome = self._make(decode(line))
            self._channel.sendall(encode(outcome))

    def _read_call(self) -> bytes:
        read = bytearray()
        while b"\n" not in read:
            found = self._channel.recv(65536)
            if not found:
                return b""
            read += found
        line, _, rest = bytes(read).partition(b"\n")
        self._words += rest
        return line

    def _make(self, call: dict[str, Any]) -> dict[str, Any]:
        """Make the call and return its outcome."""
        task = registry.get_task(call["task"])
        nothing: dict[str, Any] = dict.fromkeys(("shard", "entry", "claimed_at", "point"))
        own = {"member": call["title"], "lease": "", "deadline": 0.0, "fence": "", "worker": ""}
        held = HeldElsewhere(**nothing, **own, told_labels=call["labels"])
        self._is_async = iscoroutinefunction(task.func)
        args = call["args"]
        if task.takes_context:
            args = [unpack_context(call["context"], task, self._is_lease_lost), *args]
        process = os.getpid()
        value, error = None, None
        most_bytes = conf.get_config().max_output_bytes
        with LogQueue(direct=True), capture.listening(most_bytes), _limited(call["memory_mb"]):
            EXECUTING.set(held)
            capture.current.set(self._output if call["heard"] else None)
            _attach(call["trace"])
            try:
                try:
                    self._held = held  # from here on it may be interrupted
                    if TIMEOUT in self._words or CANCEL in self._words:  # it was a moment ago
                        self._interrupted()
                    value = self._call(held, task, args, call["kwargs"])
                finally:
                    self._held = None
            except BaseException as raised:
                error = raised
        if os.getpid() != process:
            end_as_child(error)
        connections.close_all()
        return _outcome(value, error, call["memory_mb"])

    def _call(self, held: HeldElsewhere, task: AnyTask, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self._is_async:
            return call_cancellable(held, task, *args, **kwargs)
        return task.call(*args, **kwargs)

    def _interrupted(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Do what the worker says, in the main thread, between two steps of Python."""
        cancelled, held = CANCEL in self._read_words(), self._held
        if held is None:
            return
        if not self._is_async:
            raise TaskCancelled if cancelled else TaskTimeout
        held.limit, held.stopped_by = 0.0, "" if cancelled else None
        if held.interrupt is not None:
            held.interrupt()

    def _is_lease_lost(self) -> bool:
        return LOST in self._read_words()

    def _read_words(self) -> bytes:
        with suppress(OSError):  # nothing new
            self._words += self._channel.recv(64, socket.MSG_DONTWAIT)
        return self._words


def _attach(carried: dict[str, str]) -> None:
    if tracing.is_on():
        from opentelemetry import context

        context.attach(tracing.context_of(carried))


@contextmanager
def _limited(memory_mb: int | None) -> Iterator[None]:
    """Allow this process, and what it starts, so much address space meanwhile."""
    import resource  # not on Windows, where nobody gets here

    before = resource.getrlimit(resource.RLIMIT_AS)
    if memory_mb is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb * MEBIBYTE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _outcome(value: Any, error: BaseException | None, memory_mb: int | None) -> dict[str, Any]:
    if error is None:
        value, unfit = take(value, conf.get_config().max_result_bytes)
        return {"value": value} if unfit is None else {"unfit": pack_error(unfit)}
    packed = pack_error(error)
    if memory_mb is not None and isinstance(error, MemoryError):
        packed["text"] = f"{packed['text']} The process of the task may have {memory_mb} MiB.".strip()
        packed["empty"] = False
    return {"error": packed}


def serve(channel: int, heard: int) -> None:
    """Serve as the process of an isolated task, on these two descriptors.

    Raises:
        OSError: They are none.
    """
    with socket.socket(fileno=channel) as ours:
        Interpreter(ours, heard).serve()
