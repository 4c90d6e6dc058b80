"""Parts of a real worker, without its loop, threads and servers: executes one step at a time. The index is in memory.

Note [Timed executions overlap]
A task with a duration is called at its start and recorded at its end. In between the clock is set back and all other
work runs, as in a worker with enough threads.

Note [Each call has a savepoint]
A worker calls a task outside of any transaction. But Django's `TestCase` and pytest-django's `db` wrap a test in one
that never commits. So each call has a savepoint, which is rolled back only if the transaction was broken, and its
pending `on_commit` callbacks are called afterwards.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from datetime import timedelta
from itertools import count
from typing import Any

from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TestCase

from ..exceptions import BrokerError, DelayQError, TaskTimeout
from ..index import Shard
from ..worker.calling import execute, give_up
from ..worker.dispatch import Controls, Dispatcher
from ..worker.held import Lease, LeaseKeeper
from ..worker.recorder import Recorder
from ..worker.slots import Slots
from ..worker.timeouts import Timeouts
from ..worker.timers import Timers
from ..worker.trip import Trip
from ..worker.trouble import Trouble
from .clock import FrozenClock
from .memory import MemoryIndex

#: Seconds by the monotonic clock: leases of a bench do not end.
FOREVER = 1e12


class Inbox(Slots):
    """Replaces the slots: keeps submitted executions for the bench to call."""

    def __init__(self) -> None:
        super().__init__(0, lambda held: True, lambda held: None)
        self.submitted: deque[Lease] = deque()

    def submit(self, items: Sequence[Lease]) -> None:
        self.submitted.extend(items)

    @property
    def free(self) -> int:
        return 1


class RaisedTrouble(Trouble):
    def note_redis_failure(self, error: BrokerError, shard: Shard | None = None) -> None:
        raise error

    def note_database_failure(self, error: Error, *, writing: bool = False) -> None:
        raise error


class FrozenTimeouts(Timeouts):
    """Advances the clock by the duration of a task. One that exceeds its timeout is not called."""

    def __init__(self, clock: FrozenClock, **options: Any) -> None:
        super().__init__(**options)
        self.clock = clock
        #: By path of the task.
        self.durations: dict[str, timedelta] = {}

    def get_duration(self, held: Lease) -> timedelta:
        if held.task is None or held.outcome.call.backend:  # a task that is handed over takes no time here
            return timedelta(0)
        return self.durations.get(held.task.module_path, timedelta(0))

    def run(
        self, call: Callable[[], Any], held: Lease, seconds: float, *, interrupt: bool, spare_seconds: float = 0.0
    ) -> tuple[Any, BaseException | None]:
        duration = self.get_duration(held)
        if duration.total_seconds() > seconds:
            self.clock.advance(timedelta(seconds=seconds))
            return None, TaskTimeout()
        ended = super().run(call, held, seconds, interrupt=interrupt, spare_seconds=spare_seconds)
        if duration:
            self.clock.advance(duration)
        return ended


class Bench:
    """One worker for all queues. Used by the test's thread only."""

    def __init__(self, clock: FrozenClock) -> None:
        self.clock, self.index = clock, MemoryIndex()
        config = self.index.config
        self._given_up: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        # The connections belong to the test and its transaction, so `forget` does not close them.
        self.timeouts = FrozenTimeouts(
            clock,
            grace_seconds=config.timeout_grace_seconds,
            give_up=give_up,
            overdue=self._given_up.put,
            forget=lambda: None,
        )
        self.trip = Trip(self.index)
        self.inbox = Inbox()
        trouble = RaisedTrouble(self.index, [])
        timers = Timers(self.index, [], cap_seconds=FOREVER, alone=True)
        keeper = LeaseKeeper(self.trip.renew, lease_seconds=FOREVER, batch_size=config.batch_size)
        self.recorder = Recorder(self.trip, keeper, trouble, timers)
        self.dispatcher = Dispatcher(self.recorder, self.inbox, Controls(config), max_reclaims=config.max_reclaims)
        #: Executions not ended by the frozen clock, soonest first: end in ms, sequence number, execution.
        self.under_way: list[tuple[int, int, Lease]] = []
        self._numbers = count()

    def find_next_ms(self) -> int | None:
        """Return the time of the next step in ms, possibly in the past; None if there is no step."""
        found = [end_ms for end_ms, _, _ in self.under_way[:1]]
        found += [first[0]] if (first := self.index.find_first()) is not None else []
        return min(found, default=None)

    def step(self) -> None:
        """Do one due step: end an execution that is over, or else begin the first one that is due."""
        now_ms = self.clock.now_ms
        if self.under_way and self.under_way[0][0] <= now_ms:
            self._record([self.under_way.pop(0)[-1]])
        elif (first := self.index.find_first()) is not None and first[0] <= now_ms:
            _, entries = self.trip.claim(first[1], 1, 0, FOREVER)
            self.dispatcher.keeper.add(entries)
            self.dispatcher.dispatch(entries)
            if not self.inbox.submitted:
                self._record([])
            while self.inbox.submitted:
                self._call(self.inbox.submitted.popleft())

    def _call(self, held: Lease) -> None:
        began_ms = self.clock.now_ms
        if self.timeouts.get_duration(held):  # store that it runs, as a worker does after a second
            self.trip.show([held])
        with as_committed():
            concluded = copy_context().run(execute, held, self.timeouts, self.index.config.max_result_bytes)
        if not concluded:  # the watching thread has concluded it, and reports it
            self._given_up.get()
        if self.clock.now_ms <= began_ms:
            self._record([held])
            return
        self.under_way.append((self.clock.now_ms, next(self._numbers), held))
        self.under_way.sort()
        self.clock.set(began_ms)  # see Note [Timed executions overlap]

    def _record(self, ended: Sequence[Lease]) -> None:
        self.recorder.add(ended)
        self.recorder.flush()
        self.recorder.call_receivers()
        if self.recorder.refusals.rows or self.recorder.locked:
            raise DelayQError("An outcome could not be recorded; the log of django_delayq.worker says why.")


@contextmanager
def as_committed() -> Iterator[None]:
    """Emulate autocommit. See Note [Each call has a savepoint]."""
    with ExitStack() as stack:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                stack.enter_context(_committed(connection))
        yield


@contextmanager
def _committed(connection: BaseDatabaseWrapper) -> Iterator[None]:
    waiting = len(connection.run_on_commit)
    with TestCase.captureOnCommitCallbacks(using=connection.alias, execute=True):
        savepoint: Any = connection.savepoint()
        yield
        try:
            connection.savepoint_commit(savepoint)
        except DatabaseError:
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
            connection.savepoint_commit(savepoint)
    del connection.run_on_commit[waiting:]  # otherwise the test's own commit calls them again
