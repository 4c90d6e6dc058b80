"""The threads that run tasks, and how many entries may be claimed for them. Uses neither Redis nor the ledger.

Note [Each execution has its own context]
Each execution, with the receivers of its signals, runs in a copy of its thread's empty context, so that language and
context variables do not outlast it. Caches and task backends are in the context too, so each thread creates them once,
before its first execution.

Note [Busy connections are replaced]
A connection that a task leaves closed or in an open transaction would affect the thread's next task. Django's
`close_old_connections` does not detect this, so a connection that is not idle after a task is replaced.

Note [Receivers run after the record, in the task's thread]
Span processors and, once the outcome is settled, receivers of end signals run in the thread that executed the task. It
counts as idle but takes no entry until they return. After RECORD_SECONDS without a record the loop calls receivers.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from django.core.cache import caches
from django.db import close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..calls.compat import task_backends
from . import spans
from .held import Lease

logger = logging.getLogger("django_delayq.worker")

#: Maximum work claimed ahead of free slots, in seconds of measured time.
AHEAD_SECONDS = 0.25
#: Weight of the newest duration in the running mean.
NEWEST = 0.2
#: Maximum seconds that a thread waits for the record before the loop calls the receivers.
RECORD_SECONDS = 1.0


class Slots:
    """A fixed number of threads with one inbox. `report` is called in a slot's thread with each finished entry.

    Note [Entries are claimed ahead]
    A slot idles while it waits for the next claim. So as many entries may be claimed ahead as will start within
    AHEAD_SECONDS by the measured mean. If no task ends for that long, unstarted entries are handed back.
    """

    def __init__(
        self,
        threads: int,
        call: Callable[[Lease], bool],
        report: Callable[[Lease], None],
        *,
        traces: bool = False,
    ) -> None:
        """`call` executes an entry; it returns False if another thread has reported the outcome."""
        self.threads, self._report = threads, report
        self._call = partial(spans.execute, call=call) if traces else call
        #: Number of threads in `_call_receivers`.
        self.telling = 0
        self._inbox: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()  # None ends a thread
        self._lock = threading.Lock()
        #: Number of entries that were submitted, and have neither ended nor been taken back.
        self.busy = 0
        self._mean: float | None = None
        self._last_end = 0.0
        self._begun: list[tuple[Lease, float] | None] = [None] * threads  # what each thread executes, since when
        self._pool = [
            threading.Thread(target=self._run, args=(n,), name=f"delayq-slot-{n}", daemon=True) for n in range(threads)
        ]

    def start(self) -> None:
        for thread in self._pool:
            thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Let the threads end after their current entries; return True if all ended in time."""
        for _ in self._pool:
            self._inbox.put(None)
        end = time.monotonic() + timeout_seconds
        for thread in self._pool:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._pool)

    def submit(self, items: Sequence[Lease]) -> None:
        """Queue entries for the next free slots, in this sequence."""
        with self._lock:
            self.busy += len(items)
        for held in items:
            self._inbox.put(held)

    @property
    def waiting(self) -> int:
        return self._inbox.qsize()

    @property
    def running(self) -> int:
        return max(0, self.busy - self.waiting)

    @property
    def free(self) -> int:
        return max(0, self.threads - self.busy)

    def list_executing(self) -> list[tuple[Lease, float]]:
        """Return the running entries, each with the monotonic second of its start."""
        return [item for item in self._begun if item is not None]

    def is_stalled(self) -> bool:
        """Return True if all slots are busy and no task ended recently. See Note [Entries are claimed ahead]."""
        return self.busy >= self.threads and time.monotonic() - self._last_end >= AHEAD_SECONDS

    def get_capacity(self) -> int:
        """Return how many entries to claim now. See Note [Entries are claimed ahead]."""
        room = self.threads
        if self._mean is not None and time.monotonic() - self._last_end < AHEAD_SECONDS:
            room = max(room, int(self.threads * AHEAD_SECONDS / max(self._mean, 1e-6)))
        return max(0, room - self.busy)

    def take_back(self) -> list[Lease]:
        """Remove and return all entries that have not started."""
        taken = list[Lease]()
        with suppress(queue.Empty):
            while (held := self._inbox.get_nowait()) is not None:
                taken.append(held)
        with self._lock:
            self.busy -= len(taken)
        return taken

    def _run(self, number: int) -> None:
        for handler in (caches, task_backends):  # see Note [Each execution has its own context]
            for alias in handler:
                with suppress(Exception):  # raised again for the code that uses it
                    handler[alias]
        while (held := self._inbox.get()) is not None:
            self._begun[number] = held, time.monotonic()
            to_announce = True
            try:
                if not held.is_lapsed():
                    to_announce = self.execute(held)
            except BaseException:  # an unexpected error must lose neither the thread nor the entry
                logger.exception("%s could not be executed; it comes due again when its lease ends.", held.member)
                held.executed = False
            self._begun[number] = None
            tells = to_announce and (held.span is not None or held.after is not None)
            if tells and held.after is not None:
                held.awaited = Future()
            with self._lock:
                self.busy -= 1
                self.telling += tells
                if held.executed and not held.hung:
                    self._last_end = time.monotonic()
                    mean = held.seconds if self._mean is None else self._mean
                    self._mean = mean + NEWEST * (held.seconds - mean)
            if to_announce:  # this wakes the loop, which must find the slot free
                self._report(held)
            if tells:
                self._call_receivers(held)
                with self._lock:
                    self.telling -= 1
        forget_connections()

    def execute(self, held: Lease) -> bool:
        """Execute an entry in this thread. See Note [Each execution has its own context]."""
        close_old_connections()
        try:
            return copy_context().run(self._call, held)
        finally:
            tidy_connections()

    def _call_receivers(self, held: Lease) -> None:  # see Note [Receivers run after the record, in the task's thread]
        spans.finish(held)
        if held.awaited is None:
            return
        try:
            call = held.awaited.result(RECORD_SECONDS)
        except TimeoutError:
            if held.awaited.cancel():
                return
            call = held.awaited.result()
        if call is not None:
            close_old_connections()
            try:
                call()
            finally:
                tidy_connections()


def tidy_connections() -> None:
    """Close connections of this thread that are left open or too old. See Note [Busy connections are replaced]."""
    for connection in connections.all(initialized_only=True):
        if not _is_left_open(connection):
            with suppress(Exception):
                connection.close_if_unusable_or_obsolete()
                continue
        _forget(connection)


def forget_connections() -> None:
    """Replace this thread's database connections: an asynchronous exception may have left them in any state."""
    for connection in connections.all(initialized_only=True):
        _forget(connection)


def _forget(connection: BaseDatabaseWrapper) -> None:
    with suppress(Exception):
        connection.close()
    del connections[connection.alias]


def _is_left_open(connection: BaseDatabaseWrapper) -> bool:
    driver: Any = connection.connection
    if connection.in_atomic_block or driver is None:
        return connection.in_atomic_block
    try:
        if connection.vendor == "sqlite":
            return bool(driver.in_transaction)
        return bool(driver.info.transaction_status)  # 0 is idle; a closed connection has "unknown"
    except Exception:  # closed
        return True
