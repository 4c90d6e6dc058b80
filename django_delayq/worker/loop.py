"""The worker's loop: claim what is due, have it judged, executed and recorded, sleep until the next point.

`round()` does what can be done now and returns the seconds until there may be more; `run()` is a short loop over it.

Note [Rounds]
Whatever a worker does again and again is a `round()`: of the loop, of `LeaseKeeper`, of `Upkeep`. A thread only calls
it, and waits in between. So whoever has a clock and a server of its own can play a worker in one thread, in any order
of rounds, without a thread or a second that passes.
"""

import logging
import math
import queue
import time
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import connections

from ..calls import tracing
from ..exceptions import BrokerError
from ..index import Broker, Shard
from ..monitoring import pings
from ..recurrence.point import utcnow
from . import spans
from .calling import execute, give_up
from .dispatch import Claims, Controls, Dispatcher
from .held import Held, LeaseKeeper
from .options import OK, RECYCLE, UNFINISHED, WorkerOptions
from .processes.process import resident_mb
from .recorder import Counting, Recorder
from .showing import Showing, Stops
from .slots import Contexts, Slots, forget_connections
from .timeouts import Timeouts
from .timers import Timers
from .trip import Trip
from .trouble import Trouble
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: Redis answers a claim within milliseconds; what takes longer is a server in trouble.
TIMEOUT_SECONDS = 5.0
#: While claimed entries wait for a slot, look again so soon: they may have to be handed back.
WAITING_SECONDS = 0.25
#: Threads without work end at once; one that hangs in a task is not waited for.
SLOTS_SECONDS = 1.0
#: Seconds between two looks in a drain: nothing wakes the loop when a receiver returns.
LITTLE_SECONDS = 0.005
WAKE = "wake"


class Worker:
    """One process' worth of work on some queues. `run()` returns one of `options.py`.

    It raises `ForeignLayout` where the prefix is, or becomes, another database's, and `OutdatedRelease` where the
    database is, or becomes, that of a later release.

    Guarantees: an entry that this worker cannot finish (killed, cut off) comes due again when its lease ends. Does not
    guarantee that a task runs only once; its outcome is recorded once.
    """

    def __init__(self, options: WorkerOptions, *, slots: type[Slots] = Slots) -> None:
        """`slots`: what executes; by default threads."""
        self.options = options
        self.broker = Broker(timeout_seconds=TIMEOUT_SECONDS, worker=options.name)
        self.config = self.broker.config
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.shards = self.broker.shards(options.queues)
        self.timers = Timers(self.broker, self.shards, cap_seconds=self.config.idle_cap_seconds, alone=options.burst)
        self.timeouts = Timeouts(
            grace_seconds=self.config.timeout_grace_seconds,
            give_up=give_up,
            overdue=self.inbox.put,
            forget=forget_connections,
        )
        self.trip = Trip(self.broker)
        contexts = Contexts(
            partial(execute, timeouts=self.timeouts, most_bytes=self.config.max_result_bytes), traces=self.config.traces
        )
        self.slots = slots(options.threads, contexts.execute, self.inbox.put, contexts.after)
        self.trouble = Trouble(self.broker, self.shards)
        self.keeper = LeaseKeeper(
            self.trip.renew,
            lease_seconds=self.config.lease_seconds,
            batch_size=self.config.batch_size,
            wake=self.wake,
        )
        self.recorder = Recorder(self.trip, self.keeper, self.trouble, self.timers)
        self.controls = Controls(self.config)
        max_reclaims = self.config.max_reclaims
        self.dispatcher = Dispatcher(self.recorder, self.slots, self.controls, max_reclaims=max_reclaims)
        after_seconds = self.config.running_after_seconds
        stops = Stops(self.timeouts)
        self.showing = Showing(self.trip, self.slots, self.keeper, self.trouble, stops, after_seconds=after_seconds)
        self.upkeep = Upkeep(
            self.broker,
            self.shards,
            wake=self.wake,
            hinted=self.inbox.put,
            fail=self.fail,
            describe=self.describe,
        )
        self.claims = Claims(self.dispatcher, self.upkeep)
        self.counting = Counting(self.broker, self.trip.counted, self.timers)
        self.trip.counted.since = utcnow()
        self.trip.counted.paused_at = self.controls.paused_at
        self.moved_at = 0.0  # monotonic, when the loop came by last, or comes at the latest; 0 before it begins
        self.stopping = self.aborted = False
        self.grace_ends_at = 0.0  # monotonic, once it drains
        self.leaving = ""  # why this process is to be replaced
        self.failure: Exception | None = None

    # -- life

    def wake(self) -> None:
        """Make the loop look again. Safe in a signal handler: SimpleQueue.put is reentrant."""
        self.inbox.put(WAKE)

    def stop(self) -> None:
        """Ask for a drain; a second call ends it at once. Safe in a signal handler."""
        self.aborted = self.stopping
        self.stopping = True
        self.wake()

    def fail(self, error: Exception) -> None:
        """End this worker: it must not go on. `run` raises the error after the drain."""
        logger.error("%s This worker drains and ends.", error)
        self.failure = error
        self.stopping = True
        self.wake()

    def describe(self) -> dict[str, Any]:
        """Return what its heartbeat tells of it beside its queues. Called by another thread."""
        told = {"threads": self.options.threads, "running": self.slots.running, "held": len(self.keeper)}
        with suppress(OSError):
            told["memory_mb"] = round(resident_mb())
        return told

    @tracing.quiet()
    def run(self) -> int:
        """Work until stopped or to be replaced, in burst mode until nothing is due; then drain."""
        try:
            self.upkeep.begin(burst=self.options.burst, stopping=lambda: self.stopping)
            self.keeper.start()
            self.timeouts.start()
            self.slots.start()
            seconds = 0.0
            while not self.stopping and not self.leaving:
                seconds = self.round(seconds)
            exit_status = self.drain()
            if self.failure is not None:
                raise self.failure
            return exit_status
        finally:
            self.keeper.stop()  # first: what did not end is not to be kept from others while the rest ends
            self.upkeep.end()
            pings.flush()
            self.timeouts.stop()
            self.broker.close()
            connections.close_all()

    def round(self, wait_seconds: float = 0.0) -> float:
        """Wait at most so long for what is reported or told, and do what can be done then; see Note [Rounds].

        Returns the seconds until there may be more.
        """
        self._wait(wait_seconds)
        if self.stopping or self.leaving:
            return 0.0
        try:
            seconds = self.tick()
            self.recorder.tell()
            return seconds
        except Exception:  # one thing that nobody foresaw must not end what everything else depends on
            if self.options.burst:
                raise
            logger.exception("Something unforeseen; going on.")
            return 1.0

    def _wait(self, seconds: float) -> None:
        """Take all that is reported and told by now; wait for the first of it."""
        self.moved_at = time.monotonic() + max(0.0, seconds)
        try:
            item = self.inbox.get(timeout=seconds) if seconds > 0 else self.inbox.get_nowait()
        except queue.Empty:
            return
        finally:
            self.moved_at = time.monotonic()
        ended = []
        with suppress(queue.Empty):
            while True:
                if isinstance(item, Held):
                    ended.append(item)
                elif isinstance(item, tuple):
                    self.timers.due(*item)
                item = self.inbox.get_nowait()
        if ended:
            self.recorder.add([held for held in ended if held.executed])
        for held in ended:
            if not held.executed:  # its lease was over, or it could not be executed
                self.keeper.discard([held])
            if held.hung:
                self.recorder.untold.append(partial(spans.finish, held))
                self.leaving = self.leaving or f"{held.title} hangs in it"

    @property
    def runs(self) -> int:
        """How many executions were recorded or lost, each attempt is one; what was never called is none."""
        return self.recorder.runs

    # -- one round

    def tick(self) -> float:
        """Record, claim and start what can be now; return the seconds until the next look is due."""
        self._write()
        refused = len(self.recorder.refusals.rows)
        if self.options.max_runs is not None and self.recorder.runs + refused >= self.options.max_runs:
            self.stopping = True
            return 0.0
        now = time.monotonic()
        if self.trouble.until > now or self.recorder.full:
            self.trip.counted.since = utcnow()  # what falls due in an outage is no overload
        if self.trouble.until > now:
            return self.trouble.until - now
        turns = self.timers.turns(now)
        self.dispatcher.hand_back(claims=bool(turns))
        room = self.dispatcher.room(self.options.max_runs)
        try:
            for shard in turns:
                if room <= 0:
                    break
                if not self.claims.claim(shard, room):
                    return max(0.0, self.trouble.until - time.monotonic())
                room = self.dispatcher.room(self.options.max_runs)
            if self.timers.ask_at <= now and (empty := self.timers.look(now)) is not None:
                self._looked(empty)
        except BrokerError as error:
            self.trouble.redis_failed(error)
            return max(0.0, self.trouble.until - time.monotonic())
        return self._until_next(now, room)

    def _write(self) -> None:
        """Record what has ended, and show what runs, unless a server is in trouble."""
        now = time.monotonic()
        if self.trouble.until <= now:
            runs = self.recorder.runs
            self.recorder.flush()
            if self.claims.limited and self.recorder.runs > runs:
                self.claims.one_has_ended()
            if self.trip.counted and self.counting.again <= now:
                self.counting.write()
            if self.showing.look_at <= now:
                self.showing.round()

    def _looked(self, empty: list[Shard]) -> None:
        """Redis answers; what is empty there may have been flushed."""
        if None in self.broker.epochs(empty):
            self.upkeep.rebuild_soon()
        if self.trouble.until and self.trouble.redis_worked():
            self.upkeep.redis_is_back()

    def _until_next(self, began: float, room: int) -> float:
        """Return the seconds until there may be something to do; in burst mode, stop where nothing is left."""
        now, cap = time.monotonic(), self.config.idle_cap_seconds
        showing = self.showing.look_at if self.slots.busy else math.inf
        counting = self.counting.again if self.trip.counted else math.inf
        again = min(self.recorder.again, counting, showing)
        if self.dispatcher.isolation.waiting:  # the end of what runs wakes us
            seconds = min(cap, self.dispatcher.isolation.seconds_left())
        elif room <= 0:  # the end of a task wakes us
            seconds = WAITING_SECONDS if self.slots.busy > self.options.threads else cap
        else:
            seconds = self.timers.until(now)
        if self.options.burst and self.recorder.idle and self.claims.answered:
            self.stopping = self.timers.nothing_now(began)
        return 0.0 if self.stopping else min(seconds, max(0.0, max(again, self.trouble.until) - now))

    # -- the end

    def _is_unfinished(self) -> bool:
        return bool(len(self.keeper) or self.recorder.again < math.inf or self.slots.telling)

    def drain(self) -> int:
        """Release what did not start, finish and record what runs, within the grace. Returns the exit status."""
        if self.leaving and not self.stopping:
            logger.warning("This process is to be replaced by a fresh one: %s.", self.leaving)
        self.dispatcher.release_all()
        end = self.grace_ends_at = time.monotonic() + self.config.drain_seconds
        if len(self.keeper) and not self.aborted:
            logger.info("Stopping: %d still running, up to %g s.", self.slots.running, self.config.drain_seconds)
        while self._is_unfinished() and not self.aborted and time.monotonic() < end:
            self._wait(0.1 if len(self.keeper) else LITTLE_SECONDS)
            self._write()
            self.recorder.tell()
        left = len(self.keeper)
        if left:
            logger.warning("Stopped with %d unfinished; they come due again when their leases end.", left)
        self.slots.stop(0.0 if left else SLOTS_SECONDS)
        if not self.trouble.until:
            self.counting.write()
        self.upkeep.farewell()
        logger.info("Stopped after %d runs.", self.runs)
        if self.leaving and not self.stopping:
            return RECYCLE
        return UNFINISHED if left else OK
