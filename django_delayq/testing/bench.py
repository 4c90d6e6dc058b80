"""Parts of a real worker, without its loop, threads and servers: executes one step at a time. The index is in memory.

Note [Timed executions overlap]
A task with a duration (`lasting.py`) is called at its start and recorded at its end. In between the clock is set back
and all other work runs, as in a worker with enough threads.
"""

import queue
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from datetime import timedelta
from itertools import count

from django.db import Error

from ..exceptions import BrokerError, DelayQError
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
from .committing import as_committed
from .index import MemoryIndex
from .lasting import lasting

#: Seconds by the monotonic clock: leases of a bench do not end.
FOREVER = 1e12


class Hand(Slots):
    """Replaces the slots: keeps submitted executions for the bench to call."""

    def __init__(self) -> None:
        super().__init__(0, lambda held: True, lambda held: None)
        self.submitted: deque[Lease] = deque()

    def submit(self, items: Sequence[Lease]) -> None:
        self.submitted.extend(items)

    @property
    def free(self) -> int:
        return 1


class Loud(Trouble):
    """Raises errors, so that the test fails."""

    def redis_failed(self, error: BrokerError, shard: Shard | None = None) -> None:
        raise error

    def database_failed(self, error: Error, *, writing: bool = False) -> None:
        raise error


class Bench:
    """One worker for all queues. Used by the test's thread only."""

    def __init__(self, clock: FrozenClock, index: MemoryIndex) -> None:
        self.clock, self.index = clock, index
        config = index.config
        self._given_up: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        # The connections belong to the test and its transaction, so `forget` does not close them.
        self.timeouts = Timeouts(
            grace_seconds=config.timeout_grace_seconds, give_up=give_up, overdue=self._given_up.put, forget=lambda: None
        )
        self.trip = Trip(index)
        self.hand = Hand()
        trouble = Loud(index, [])
        timers = Timers(index, [], cap_seconds=FOREVER, alone=True)
        keeper = LeaseKeeper(self.trip.renew, lease_seconds=FOREVER, batch_size=config.batch_size)
        self.recorder = Recorder(self.trip, keeper, trouble, timers)
        self.dispatcher = Dispatcher(self.recorder, self.hand, Controls(config), max_reclaims=config.max_reclaims)
        #: Durations of tasks, by path.
        self.durations: dict[str, timedelta] = {}
        #: Executions not ended by the frozen clock, soonest first: end in ms, sequence number, execution.
        self.under_way: list[tuple[int, int, Lease]] = []
        self._numbers = count()

    # -- one step

    def next_ms(self) -> int | None:
        """Return the time of the next step in ms, possibly in the past; None if there is no step."""
        found = [end_ms for end_ms, _, _ in self.under_way[:1]]
        found += [first[0]] if (first := self.index.first()) is not None else []
        return min(found, default=None)

    def step(self) -> None:
        """Do one due step: end an execution that is over, or else begin the first one that is due."""
        now_ms = self.clock.now_ms
        if self.under_way and self.under_way[0][0] <= now_ms:
            self._end(self.under_way.pop(0)[-1])
            return
        first = self.index.first()
        if first is not None and first[0] <= now_ms:
            self._begin(first[1])
        while self.hand.submitted:
            self._call(self.hand.submitted.popleft())

    def _begin(self, shard: Shard) -> None:
        _, entries = self.trip.claim(shard, 1, 0, FOREVER)
        self.dispatcher.keeper.add(entries)
        self.dispatcher.dispatch(entries)
        if not self.hand.submitted:
            self._record()
            self._check(entries[0])

    def _call(self, held: Lease) -> None:
        began_ms = self.clock.now_ms
        assert held.task is not None  # noqa: S101 - it was submitted
        duration = self.durations.get(held.task.module_path)
        limit = None if held.limit is None else timedelta(seconds=held.limit)
        if duration:  # store that it runs, as a worker does after a second
            self.trip.show([held])
        with as_committed(), lasting(held.task, duration, limit, self.clock):
            concluded = copy_context().run(execute, held, self.timeouts, self.index.config.max_result_bytes)
        if not concluded:  # but by the watching thread, which reports it
            self._given_up.get()
        if self.clock.now_ms <= began_ms:
            self._end(held)
            return
        self.under_way.append((self.clock.now_ms, next(self._numbers), held))
        self.under_way.sort()
        self.clock.set(began_ms)  # see Note [Timed executions overlap]

    def _end(self, held: Lease) -> None:
        self.recorder.add([held])
        self._record()
        self._check(held)

    def _record(self) -> None:
        self.recorder.flush()
        self.recorder.tell()

    def _check(self, held: Lease) -> None:
        standing = self.index.members.get((held.shard, held.member))
        if standing is not None and standing.holder == held.holder:
            raise DelayQError(
                f"The outcome of {held.member} could not be recorded; the log of django_delayq.worker says why."
            )
