"""The parts of a real worker, without its loop, its threads and its servers: executes one thing when it is told to.

Real are `judge`, the dispatcher, the executions, the ledger and the recorders. In memory is what Redis keeps.

Note [Side by side]
What takes its time (`lasting.py`) is called at its beginning and recorded at its end. In between the clock goes back,
and everything else has its turn, as in a worker with enough threads.
"""

import queue
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from django.db import Error

from ..backend.memory import MemoryJobs
from ..broker import Place
from ..compat import AnyTask
from ..exceptions import BrokerError, DelayQError
from ..timing import from_ms
from ..worker.connections import kept_connections
from ..worker.contexts import Contexts
from ..worker.dispatch import Dispatcher
from ..worker.entry import Finished, Held
from ..worker.execution import execute, give_up
from ..worker.jobs.entry import FinishedJob, HeldJob
from ..worker.jobs.execution import execute_job, give_up_job
from ..worker.jobs.recorder import JobRecorder
from ..worker.leases import LeaseKeeper
from ..worker.recorder import Recorder
from ..worker.slots import Slots
from ..worker.timeouts import Timeouts, Watch
from ..worker.trouble import Trouble
from .clock import FrozenClock
from .committing import as_committed
from .lasting import lasting
from .points import WORKER, MemoryBroker

#: No lease of a bench ends: seconds, by the monotonic clock.
FOREVER = 1e12
AnyHeld = Held | HeldJob
AnyFinished = Finished | FinishedJob


class Hand(Slots):
    """In place of the slots: keeps what was submitted, for the bench to call."""

    def __init__(self) -> None:
        super().__init__(0, lambda held, task: None, lambda finished: None)
        self.submitted: deque[tuple[AnyHeld, AnyTask]] = deque()

    def submit(self, held: AnyHeld, task: AnyTask) -> None:
        """Keep it."""
        self.submitted.append((held, task))

    def submit_many(self, items: Sequence[tuple[AnyHeld, AnyTask]]) -> None:
        """Keep them."""
        self.submitted.extend(items)

    @property
    def free(self) -> int:
        """There is always one."""
        return 1


class Loud(Trouble):
    """In a test, what fails shall be seen."""

    def redis_failed(self, error: BrokerError, place: Place | None = None) -> None:
        """Raise it."""
        raise error

    def database_failed(self, error: Error, *, writing: bool = False) -> None:
        """Raise it."""
        raise error


@dataclass(slots=True, order=True)
class Under:
    """What was begun and has not ended yet by the frozen clock."""

    end_ms: int
    number: int
    finished: AnyFinished


class Bench:
    """One worker for all queues. Used by the test's thread only."""

    def __init__(self, clock: FrozenClock) -> None:
        self.clock = clock
        self.points = MemoryBroker(clock)
        self.jobs = MemoryJobs(self.points)
        config = self.points.config
        keeper = LeaseKeeper(self.points, self.jobs, lease_seconds=FOREVER)
        self.recorder = Recorder(self.points, keeper, due_at_ms=_nothing, due_in_ms=_nothing)
        self.job_recorder = JobRecorder(self.jobs, keeper, due_in_ms=_nothing)
        self.hand = Hand()
        self.contexts = Contexts()
        self.timeouts = Timeouts(grace_seconds=config.timeout_grace_seconds, overdue=self._overdue)
        self.dispatcher = Dispatcher(
            self.points, keeper, self.recorder, self.hand, Loud(self.points, []), self.jobs, self.job_recorder,
            name=WORKER, due_in_ms=_nothing, stand_back=lambda place: False,
        )  # fmt: skip
        #: How long tasks take, by their paths.
        self.durations: dict[str, timedelta] = {}
        #: What has begun and not ended, soonest first.
        self.under_way: list[Under] = []
        self._numbers = count()
        self._given_up: queue.SimpleQueue[AnyFinished] = queue.SimpleQueue()

    # -- one step

    def next_ms(self) -> int | None:
        """Return when there is something to do, which may have passed; None for never."""
        point, job = self.points.head(), self.jobs.head()
        found = [under.end_ms for under in self.under_way[:1]]
        if point is not None:
            found.append(self.points.members[point].wake_ms)
        if job is not None:
            found.append(self.jobs.jobs[job].wake_ms)
        return min(found, default=None)

    def step(self) -> None:
        """Do one thing that is due by the clock: end what ends, or else begin a point, or else a job."""
        now_ms = self.clock.now_ms
        if self.under_way and self.under_way[0].end_ms <= now_ms:
            self._end(self.under_way.pop(0).finished)
            return
        point = self.points.head()
        if point is not None and self.points.members[point].wake_ms <= now_ms:
            self._begin_point(*point)
        else:
            job = self.jobs.head()
            if job is not None and self.jobs.jobs[job].wake_ms <= now_ms:
                self._begin_job(*job)
        while self.hand.submitted:
            self._call(*self.hand.submitted.popleft())

    def _begin_point(self, place: Place, member: str) -> None:
        entry, fence = self.points.lease(place, member)
        held = Held(place, entry, fence, from_ms(self.clock.now_ms), FOREVER)
        self.dispatcher.keeper.add([held])
        self.dispatcher.dispatch([held])
        if not self.hand.submitted:
            self.recorder.flush()
            self._check(held)

    def _begin_job(self, place: Place, member: str) -> None:
        holder = f"{self.points.next_fence()} {WORKER}"
        held = HeldJob(place, self.jobs.lease(place, member, holder), holder, FOREVER)
        self.dispatcher.keeper.add([held])
        self.dispatcher.dispatch_jobs([held])
        if not self.hand.submitted:
            self.job_recorder.flush()

    def _call(self, held: AnyHeld, task: AnyTask) -> None:
        began_ms = self.clock.now_ms
        duration = self.durations.get(task.module_path)
        with kept_connections(), as_committed(), lasting(task, duration, _limit(held), self.clock):
            finished: AnyFinished | None
            if isinstance(held, HeldJob):
                finished = self.contexts.call(execute_job, held, task, WORKER, self.timeouts)
            else:
                finished = self.contexts.call(execute, held, task, WORKER, self.timeouts)
        if finished is None:  # the watching thread has concluded it, and is about to tell
            finished = self._given_up.get()
        if self.clock.now_ms <= began_ms:
            self._end(finished)
            return
        self.under_way.append(Under(self.clock.now_ms, next(self._numbers), finished))
        self.under_way.sort()
        self.clock.set(began_ms)  # see Note [Side by side]

    def _end(self, finished: AnyFinished) -> None:
        if isinstance(finished, FinishedJob):
            self.job_recorder.add(finished)
            self.job_recorder.flush()
        else:
            self.recorder.add([finished])
            self.recorder.flush()
            self._check(finished.held)

    def _check(self, held: Held) -> None:
        standing = self.points.members.get((held.place, held.member))
        if standing is not None and standing.fence == held.fence:
            raise DelayQError(
                f"The outcome of {held.member} could not be recorded; the log of django_delayq.worker says why."
            )

    def _overdue(self, watch: Watch) -> None:
        """Take the place of a task that does not react to its timeout. Called in the watching thread."""
        seconds = watch.hard_at - watch.began
        if isinstance(watch.held, HeldJob):
            self._given_up.put(give_up_job(watch.held, seconds, watch.where()))
        else:
            self._given_up.put(give_up(watch.held, seconds, watch.where()))


def _limit(held: AnyHeld) -> timedelta | None:
    if isinstance(held, HeldJob):
        return timedelta(seconds=held.retries.timeout) if held.retries.timeout else None
    return None if held.outcome is None else held.outcome.schedule.timeout


def _nothing(place: Place, ms: int) -> None:
    """There is no loop to be woken."""
