"""The threads that run tasks, and how much may be claimed for them. Knows no Redis and no ledger.

Note [A context of its own]
Each execution runs in a copy of its thread's context, which is empty, and the copy is thrown away: language, time zone,
decimal context and context variables last until the end of the execution that sets them, receivers of its signals
included. What Django keeps there on purpose are the clients of caches and the backends of tasks. Made anew for each
execution, they would connect each time; so each thread makes them once, before its first execution. The locale is the
whole process': a task that sets it changes it for what runs beside it, and it is put back when the next execution ends.
Out of reach is what a task stores in a `threading.local`, a module, the environment or the working directory.

Note [Left open]
What a task leaves of its connection would reach the next task of the thread. In a transaction that nobody ends the next
one's writes are never committed, and its locks hold up everybody; a driver's connection that is closed is an error of
the next one. Django's `close_old_connections` sees neither: it leaves alone what it takes for a block that will
be left, and tries out only what has failed. So a connection that is not idle after a task is given up.

Note [After the record]
Receivers of `task_finished` and `run_finished`, and span processors, run in the thread that has executed the task,
after its outcome was reported and, for receivers, recorded. They may block: so the thread takes no other entry before,
and counts as one that sleeps. A record that takes longer than RECORD_SECONDS (the database is away, its row is locked)
does not hold a thread up: then the loop calls the receivers, once it is written.
"""

import locale
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from django.core.cache import caches
from django.db import close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..calls.compat import task_backends
from . import spans
from .held import Held

logger = logging.getLogger("django_delayq.worker")

#: Work claimed ahead of free slots is at most this much of measured time.
AHEAD_SECONDS = 0.25
#: The weight of the newest duration in the running mean.
NEWEST = 0.2
#: For so long a thread waits for the record of what it has executed, to call receivers.
RECORD_SECONDS = 1.0


class Slots:
    """A fixed number of threads with one inbox. `report` is called in a slot's thread with each finished entry.

    Note [Claim ahead]
    A slot that waits for the next claim idles for a round trip, which is most of the time for tasks of microseconds. So
    more than the free slots may be claimed, as much as the measured mean says will start within AHEAD_SECONDS. Once no
    task has ended for that long, the mean is no longer to be trusted: nothing is claimed ahead, and what waits
    unstarted is handed back for other workers.
    """

    def __init__(
        self,
        threads: int,
        call: Callable[[Held], bool],
        report: Callable[[Held], None],
        after: Callable[[Held], None] = lambda held: None,
    ) -> None:
        """`call` executes an entry; where it says False, somebody else has reported the outcome already.

        `after` is called in the same thread once that is reported: see Note [After the record].
        """
        self.threads = threads
        self._call = call
        self._report = report
        self._after = after
        #: How many threads are in `after`.
        self.telling = 0
        self._inbox: queue.SimpleQueue[Held | None] = queue.SimpleQueue()  # None ends a thread
        self._lock = threading.Lock()
        #: How many were submitted, and have neither ended nor were taken back.
        self.busy = 0
        self._mean: float | None = None
        self._last_end = 0.0
        self._begun: list[tuple[Held, float] | None] = [None] * threads  # what each thread executes
        self._pool = [
            threading.Thread(target=self._run, args=(n,), name=f"delayq-slot-{n}", daemon=True) for n in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._pool:
            thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Let the threads end after what they run; say whether all did in time."""
        for _ in self._pool:
            self._inbox.put(None)
        end = time.monotonic() + timeout_seconds
        for thread in self._pool:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._pool)

    def submit(self, items: Sequence[Held]) -> None:
        """Queue entries for the next free slots, in this order."""
        with self._lock:
            self.busy += len(items)
        for held in items:
            self._inbox.put(held)

    @property
    def waiting(self) -> int:
        """Entries that did not start yet."""
        return self._inbox.qsize()

    @property
    def running(self) -> int:
        """Entries that run now."""
        return max(0, self.busy - self.waiting)

    @property
    def free(self) -> int:
        """Slots that would start another entry at once."""
        return max(0, self.threads - self.busy)

    def executing(self) -> list[tuple[Held, float]]:
        """Return what runs now, each with the monotonic second at which it began."""
        return [item for item in self._begun if item is not None]

    def stalled(self) -> bool:
        """Say whether all slots are busy and nothing has ended for a while. See Note [Claim ahead]."""
        return self.busy >= self.threads and time.monotonic() - self._last_end >= AHEAD_SECONDS

    def capacity(self) -> int:
        """Return how many entries to claim now. See Note [Claim ahead]."""
        room = self.threads
        if self._mean is not None and time.monotonic() - self._last_end < AHEAD_SECONDS:
            room = max(room, int(self.threads * AHEAD_SECONDS / max(self._mean, 1e-6)))
        return max(0, room - self.busy)

    def take_back(self) -> list[Held]:
        """Take everything that did not start out of the inbox again."""
        taken = list[Held]()
        with suppress(queue.Empty):
            while (held := self._inbox.get_nowait()) is not None:
                taken.append(held)
        with self._lock:
            self.busy -= len(taken)
        return taken

    # -- in a slot's thread

    def _run(self, number: int) -> None:
        prepare_thread()
        while (held := self._inbox.get()) is not None:
            self._begun[number] = held, time.monotonic()
            to_be_told = True
            try:
                if not held.lapsed():
                    to_be_told = self._call(held)
            except BaseException:  # neither the thread nor the entry may be lost by what nobody foresaw
                logger.exception("%s could not be executed; it comes due again when its lease ends.", held.member)
                held.executed = False
            self._begun[number] = None
            tells = to_be_told and (held.span is not None or held.after is not None)
            if tells:
                held.expect_record()
            with self._lock:
                self.busy -= 1
                self.telling += tells
                if held.executed and not held.hung:
                    self._last_end = time.monotonic()
                    mean = held.seconds if self._mean is None else self._mean
                    self._mean = mean + NEWEST * (held.seconds - mean)
            if to_be_told:  # the loop, which this wakes, is to find the slot free
                self._report(held)
            if tells:
                self._after(held)
                with self._lock:
                    self.telling -= 1
        forget_connections()


def prepare_thread() -> None:
    """Make what all executions of this thread share. See Note [A context of its own]."""
    for handler in (caches, task_backends):
        for alias in handler:
            with suppress(Exception):  # whoever uses it is told
                handler[alias]


def tidy_connections() -> None:
    """Leave each connection of this thread closed, or idle and as old as Django allows. See Note [Left open]."""
    for connection in connections.all(initialized_only=True):
        if not _is_left_open(connection):
            with suppress(Exception):
                connection.close_if_unusable_or_obsolete()
                continue
        _forget(connection)


def forget_connections() -> None:
    """Give this thread new database connections: an exception from outside may have left these in any state."""
    for connection in connections.all(initialized_only=True):
        _forget(connection)


def _forget(connection: BaseDatabaseWrapper) -> None:
    with suppress(Exception):
        connection.close()
    del connections[connection.alias]


def _is_left_open(connection: BaseDatabaseWrapper) -> bool:
    """Say whether a transaction is open, in Django's eyes or only in the driver's, or the driver's end is closed."""
    if connection.in_atomic_block:
        return True
    driver: Any = connection.connection
    try:
        if driver is not None and connection.vendor == "sqlite":
            return bool(driver.in_transaction)
        if driver is not None and connection.vendor == "postgresql":
            return bool(driver.info.transaction_status)  # 0 is idle; of a closed one it is "unknown"
    except Exception:  # closed
        return True
    return False


class Contexts:
    """Of one worker; made before its first execution, in the locale that all are to find."""

    def __init__(self, call: Callable[[Held], bool], *, traces: bool = False) -> None:
        self._call = partial(spans.execute, call=call) if traces else call
        self._locale = locale.setlocale(locale.LC_ALL)

    def execute(self, held: Held) -> bool:
        """Execute an entry in a context of its own. See Note [A context of its own] and `calling.py`."""
        close_old_connections()
        try:
            return copy_context().run(self._call, held)
        finally:
            tidy_connections()
            if locale.setlocale(locale.LC_ALL) != self._locale:
                logger.warning("A task has changed the locale of the whole process; it is put back.")
                with suppress(locale.Error):
                    locale.setlocale(locale.LC_ALL, self._locale)

    def after(self, held: Held) -> None:
        """See Note [After the record]."""
        spans.finish(held)
        if held.wait_for_record(RECORD_SECONDS) and held.after is not None:
            close_old_connections()
            try:
                held.after()
            finally:
                tidy_connections()
