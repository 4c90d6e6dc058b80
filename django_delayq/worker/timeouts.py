"""Ends executions that exceed their timeout: first by an exception, then without the task's cooperation.

Note [A hard timeout follows each soft one]
Soft: after the schedule's `timeout`, `TaskTimeout` is raised in the task's thread, between two steps of Python code. An
`async def` task is cancelled by its event loop instead. Hard: a task that has not ended `timeout_grace_seconds` later
cannot be stopped; its outcome is recorded without it, and the process ends, because the thread is lost. The first of
the two ends decides the outcome (`Lease.conclude`). A user's request to stop a task triggers both.

Note [One exception at most]
An exception sent to a thread arrives some steps later, when the task may be over. So the thread and the watcher
compete for the watch's gate. If the thread is first, no exception is sent. If the watcher is first, it sends exactly
one, and the thread stays in `run` until that one has arrived or been replaced by `_Landed`, which the thread sends to
itself. It is not withdrawn by sending None, which slows each later step before Python 3.13. One that arrives in a
finalizer is lost; then the hard timeout ends the execution. The thread takes no lock that an exception could leave
locked: it makes only single calls into C.
"""

import ctypes
import logging
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..exceptions import TaskCancelled, TaskTimeout
from .held import Lease

logger = logging.getLogger("django_delayq.worker")

#: Maximum sleep of the watching thread in seconds, below the limits of system calls.
LONGEST_SECONDS = 3600.0
#: Seconds between two checks of a thread whether the exception was sent, which takes microseconds.
BLINK_SECONDS = 0.0005


class _Landed(BaseException):
    """Sent by a thread to itself to ensure that no other exception is pending. See Note [One exception at most]."""


def _raise_in(ident: int, exception: type[BaseException]) -> None:
    """Raise this in that thread at its next step; it replaces an exception that has not arrived yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(exception))


class Watch:
    """One execution, in the thread that created this; `seconds` may be infinite."""

    def __init__(
        self, held: Lease, seconds: float, grace_seconds: float, *, interrupt: bool, spare_seconds: float = 0.0
    ) -> None:
        self.held, self.interrupts, self.spare_seconds = held, interrupt, spare_seconds
        self.ident = threading.get_ident()
        self.began = time.monotonic()
        self.soft_at = self.began + seconds if interrupt else math.inf
        self.hard_at = self.began + seconds + grace_seconds + spare_seconds
        self._gate = threading.Lock()  # never released: the first to acquire it wins
        self._sent = False

    def interrupt(self, exception: type[TaskTimeout] = TaskTimeout) -> None:
        """Send the exception, unless the execution has ended or one was sent. Called by another thread."""
        self.soft_at = math.inf
        if self._gate.acquire(blocking=False):
            try:
                _raise_in(self.ident, exception)
            finally:
                self._sent = True

    def close(self) -> None:
        """Return once no exception is pending, or raise it. Called by the watched thread."""
        if self._gate.acquire(blocking=False):
            return
        while not self._sent:
            time.sleep(BLINK_SECONDS)
        with suppress(_Landed):
            while True:  # before Python 3.13, one that arrives in another thread may clear the signal of this one
                _raise_in(self.ident, _Landed)
                time.sleep(0)


class Timeouts:
    """One thread that watches all executions; it sleeps while none has a timeout."""

    def __init__(
        self,
        *,
        grace_seconds: float,
        give_up: Callable[[Lease, str], None],
        overdue: Callable[[Lease], None],
        forget: Callable[[], None],
    ) -> None:
        """`give_up` fills in the outcome of a task that hangs, `overdue` gets its entry, `forget` drops connections."""
        self.grace_seconds = grace_seconds
        self.forget = forget
        self._give_up, self._overdue = give_up, overdue
        self._watches: set[Watch] = set()
        self._nudge: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake_at = math.inf  # monotonic second of the next look
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="delayq-timeouts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._nudge.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def run(
        self, call: Callable[[], Any], held: Lease, seconds: float, *, interrupt: bool, spare_seconds: float = 0.0
    ) -> tuple[Any, BaseException | None]:
        """Call and watch a function; return its value, or the exception that ended it. Never raises."""
        watch = Watch(held, seconds, self.grace_seconds, interrupt=interrupt, spare_seconds=spare_seconds)
        try:
            try:
                self._watches.add(watch)
                if min(watch.soft_at, watch.hard_at) < self._wake_at:
                    self._nudge.put(None)
                return call(), None
            finally:
                watch.close()
        except BaseException as error:
            if issubclass(type(error), TaskTimeout) or held.stopped_by is not None:
                self.forget()
            return None, error
        finally:
            self._watches.discard(watch)

    def cancel(self, held: Lease, by: str) -> bool:
        """Stop an execution as if its timeout had passed, for the user `by`; return False if it is not being called."""
        watch = next((watch for watch in list(self._watches) if watch.held is held), None)
        if watch is None:
            return False
        held.stopped_by = by  # before the interrupt, so that the interrupted code finds the reason
        watch.hard_at = min(watch.hard_at, time.monotonic() + self.grace_seconds + watch.spare_seconds)
        if watch.interrupts:
            watch.interrupt(TaskCancelled)
        elif held.interrupt is not None:
            held.interrupt()
        self._nudge.put(None)
        return True

    def _run(self) -> None:
        while not self._stopping:
            self._wake_at = math.inf  # new watches nudge from here on, in case the look below misses them
            try:
                self._wake_at = self._look(time.monotonic())
            except Exception:
                logger.exception("Timeouts could not be watched; trying again.")
                self._wake_at = time.monotonic() + 1.0
            seconds = min(LONGEST_SECONDS, max(0.0, self._wake_at - time.monotonic()))
            with suppress(queue.Empty):
                self._nudge.get(timeout=None if self._wake_at == math.inf else seconds)
                while True:
                    self._nudge.get_nowait()

    def _look(self, now: float) -> float:
        """Act on expired timeouts; return the monotonic second of the next look."""
        soonest = math.inf
        for watch in list(self._watches):
            if watch.soft_at <= now:
                watch.interrupt()
            if watch.hard_at <= now:
                self._watches.discard(watch)
                if watch.held.conclude():
                    watch.held.lost = True  # its context reports that another worker may execute the same entry
                    watch.held.hung, watch.held.seconds = True, time.monotonic() - watch.began
                    frame = sys._current_frames().get(watch.ident)
                    self._give_up(watch.held, "".join(traceback.format_stack(frame)) if frame else "")
                    self._overdue(watch.held)
            else:
                soonest = min(soonest, watch.soft_at, watch.hard_at)
        return soonest
