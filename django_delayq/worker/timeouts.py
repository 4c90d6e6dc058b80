"""Ends executions that take longer than their schedule allows: first by an exception, then without the task's consent.

Note [Soft and hard timeouts]
Soft: after the schedule's `timeout` the exception `TaskTimeout` is raised in the task's thread. Python delivers it
between two steps of Python code: a task that sleeps, waits for a socket or computes in C sees it only afterwards. An
`async def` task is cancelled by its event loop instead (`calling.py`), because a loop that waits is such a C call.
Hard: what has not ended `timeout_grace_seconds` later cannot be stopped by any means that Python has. Its outcome is
recorded without it, and the process ends, because the thread is lost. Whichever of the two comes first, the end
of the task or the hard timeout, decides the outcome (`Held.conclude`); the other one is discarded. Whoever stops a task
while it runs has both done at once, with the grace between them, also where it has no timeout: so every execution is
watched.

Note [One exception at most]
An exception that is sent to a thread arrives some steps later, when the task may be over and the thread may be doing
something else. So the thread and the watcher compete for the watch's gate. Where the thread is first, nothing was sent
and nothing will be. Where the watcher is first, it sends exactly one exception, and the thread does not leave `run`
before that one is known to be sent and has either arrived or been replaced by `_Landed`, which the thread sends itself
and waits for. It is not taken back by sending None: before Python 3.13 the interpreter then looks for an exception at
each step for the rest of its life (a call took 27 % longer on 3.12), and on 3.11 the next function that is traced, as
by coverage or a debugger, never begins. One that arrives while Python collects garbage in that thread, within a
finalizer, is printed and lost, as any exception there: then the hard timeout ends the execution. The thread's side
takes no lock that it could leave locked when it is hit: only single calls into C, which no exception can interrupt.
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
from .held import Held

logger = logging.getLogger("django_delayq.worker")

#: The longest sleep of the watching thread: far below what the system's calls accept, far above what costs anything.
LONGEST_SECONDS = 3600.0
#: How long a thread sleeps between two looks whether the exception was sent. It is sent within microseconds.
BLINK_SECONDS = 0.0005


class _Landed(BaseException):
    """What a thread sends itself to be sure that nothing is on its way to it. See Note [One exception at most]."""


def _raise_in(ident: int, exception: type[BaseException]) -> None:
    """Have this raised in that thread at its next step, instead of what was sent and has not arrived yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(exception))


class Watch:
    """One execution, in the thread that made this; an infinite time has no end."""

    def __init__(
        self, held: Held, seconds: float, grace_seconds: float, *, interrupt: bool, spare_seconds: float = 0.0
    ) -> None:
        self.held, self.interrupts, self.spare_seconds = held, interrupt, spare_seconds
        self.ident = threading.get_ident()
        self.began = time.monotonic()
        self.soft_at = self.began + seconds if interrupt else math.inf
        self.hard_at = self.began + seconds + grace_seconds + spare_seconds
        self._gate = threading.Lock()  # never released: who acquires it is the first
        self._sent = False

    def interrupt(self, exception: type[TaskTimeout] = TaskTimeout) -> None:
        """Send the exception, unless the execution has ended or one was sent. Called by any other thread."""
        self.soft_at = math.inf
        if self._gate.acquire(blocking=False):
            try:
                _raise_in(self.ident, exception)
            finally:
                self._sent = True

    def close(self) -> None:
        """Return when no exception is on its way, or end by it. Called by the thread that is watched.

        Raises:
            TaskTimeout: It arrived only now.
        """
        if self._gate.acquire(blocking=False):
            return
        while not self._sent:
            time.sleep(BLINK_SECONDS)
        with suppress(_Landed):
            while True:  # before Python 3.13 another thread, where its own arrives, may take the signal of ours away
                _raise_in(self.ident, _Landed)
                time.sleep(0)

    def where(self) -> str:
        """Return where the thread is now, as a traceback shows it."""
        frame = sys._current_frames().get(self.ident)
        return "" if frame is None else "".join(traceback.format_stack(frame))


class Timeouts:
    """One thread that watches all executions; it sleeps while none has a timeout."""

    def __init__(
        self,
        *,
        grace_seconds: float,
        give_up: Callable[[Held, str], None],
        overdue: Callable[[Held], None],
        forget: Callable[[], None],
    ) -> None:
        """`give_up` fills in the outcome of what did not end in time, by where its thread is; `overdue` is told then.

        Both are called in the watching thread.

        `forget` is called in a thread whose task was cut off: its connections may be in the middle of something.
        """
        self.grace_seconds = grace_seconds
        self.forget = forget
        self._give_up, self._overdue = give_up, overdue
        self._watches: set[Watch] = set()
        self._nudge: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake_at = math.inf  # when the thread looks again by itself
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="delayq-timeouts", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._nudge.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def run(
        self, call: Callable[[], Any], held: Held, seconds: float, *, interrupt: bool, spare_seconds: float = 0.0
    ) -> tuple[Any, BaseException | None]:
        """Call, watched; return the value, or the exception that ended it. Never raises.

        `interrupt` says whether the exception is to be raised in this thread after so many seconds; `spare_seconds` are
        added to the grace. See Note [One exception at most].
        """
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

    def cancel(self, held: Held, by: str) -> bool:
        """Stop what runs as if its time were over, whatever that is; `by` says who wants it. False where it is not
        called yet, or has ended: then nothing was done.
        """
        watch = next((watch for watch in list(self._watches) if watch.held is held), None)
        if watch is None:
            return False
        held.stopped_by = by  # before it is interrupted, so that whoever is sees why
        watch.hard_at = min(watch.hard_at, time.monotonic() + self.grace_seconds + watch.spare_seconds)
        if watch.interrupts:
            watch.interrupt(TaskCancelled)
        elif held.interrupt is not None:
            held.interrupt()
        self._nudge.put(None)
        return True

    def _run(self) -> None:
        while not self._stopping:
            self._wake_at = math.inf  # whoever comes from here on nudges, in case the look below has missed it
            try:
                self._wake_at = self._look(time.monotonic())
            except Exception:
                logger.exception("Timeouts could not be watched; trying again.")
                self._wake_at = time.monotonic() + 1.0
            self._sleep()

    def _sleep(self) -> None:
        seconds = min(LONGEST_SECONDS, max(0.0, self._wake_at - time.monotonic()))
        try:
            self._nudge.get(timeout=None if self._wake_at == math.inf else seconds)
            while True:
                self._nudge.get_nowait()
        except queue.Empty:
            return

    def _look(self, now: float) -> float:
        """Act on what is due and return when to look again."""
        soonest = math.inf
        for watch in list(self._watches):
            if watch.soft_at <= now:
                watch.interrupt()
            if watch.hard_at <= now:
                self._watches.discard(watch)
                if watch.held.conclude():
                    watch.held.lost = True  # its context tells it that somebody else may execute the same
                    watch.held.hung, watch.held.seconds = True, time.monotonic() - watch.began
                    self._give_up(watch.held, watch.where())
                    self._overdue(watch.held)
            else:
                soonest = min(soonest, watch.soft_at, watch.hard_at)
        return soonest
