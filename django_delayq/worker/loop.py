"""The worker's loop: claims due entries, has them judged, executed and recorded, and sleeps until the next point.

Note [Each activity is a round]
Each repeated activity is a `run_round()`, which its thread only calls, so that a test can run rounds in any sequence.
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
from ..index import Broker
from ..monitoring import pings
from ..recurrence.point import utcnow
from . import spans
from .calling import execute, give_up
from .dispatch import Claims, Controls, Dispatcher
from .held import Lease, LeaseKeeper
from .options import OK, RECYCLE, UNFINISHED, WorkerOptions
from .process import read_resident_mb
from .recorder import Counting, Recorder
from .showing import Showing
from .slots import Slots, forget_connections
from .timeouts import Timeouts
from .timers import Timers
from .trip import Trip
from .trouble import Trouble
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: Timeout of Redis calls in seconds.
TIMEOUT_SECONDS = 5.0
#: Seconds between two looks while claimed entries wait for a slot: they may have to be handed back.
WAITING_SECONDS = 0.25
#: Maximum seconds to wait for idle threads at the end; a thread that hangs in a task is not waited for.
SLOTS_SECONDS = 1.0
#: Seconds between two looks in a drain: nothing wakes the loop when a receiver returns.
LITTLE_SECONDS = 0.005
WAKE = "wake"


class Worker:
    """One process' work on some queues. `run()` returns an exit status of `options.py`.

    Raises PendingMigrations, and what `Upkeep.begin` does. An unfinished entry comes due again when its lease ends.
    """

    def __init__(self, options: WorkerOptions, *, slots: type[Slots] = Slots) -> None:
        self.options = options
        self.broker = Broker(timeout_seconds=TIMEOUT_SECONDS, worker=options.name)
        self.config = self.broker.config
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.shards = self.broker.list_shards(options.queues)
        self.timers = Timers(self.broker, self.shards, cap_seconds=self.config.idle_cap_seconds, alone=options.burst)
        grace_seconds = self.config.timeout_grace_seconds
        self.timeouts = Timeouts(
            grace_seconds=grace_seconds, give_up=give_up, overdue=self.inbox.put, forget=forget_connections
        )
        self.trip = Trip(self.broker)
        call = partial(execute, timeouts=self.timeouts, most_bytes=self.config.max_result_bytes)
        self.slots = slots(options.threads, call, self.inbox.put, traces=self.config.traces)
        self.trouble = Trouble(self.broker, self.shards)
        lease_seconds, batch_size = self.config.lease_seconds, self.config.batch_size
        self.keeper = LeaseKeeper(
            self.trip.renew, lease_seconds=lease_seconds, batch_size=batch_size, call_later=self.inbox.put
        )
        self.recorder = Recorder(self.trip, self.keeper, self.trouble, self.timers)
        self.controls = Controls(self.config)
        max_reclaims = self.config.max_reclaims
        self.dispatcher = Dispatcher(self.recorder, self.slots, self.controls, max_reclaims=max_reclaims)
        after_seconds = self.config.running_after_seconds
        self.showing = Showing(self.recorder, self.slots, self.timeouts, after_seconds=after_seconds)
        self.upkeep = Upkeep(
            self.broker, self.shards, wake=self.wake, hinted=self.inbox.put, fail=self.fail, describe=self.describe
        )
        self.claims = Claims(self.dispatcher, self.upkeep)
        self.counting = Counting(self.broker, self.trip.counted, self.timers)
        self.trip.counted.since = utcnow()
        self.trip.counted.paused_at = self.controls.paused_at
        self.moved_at = 0.0  # monotonic second at which the loop last ran, or must run again; 0 before it begins
        self.stopping = self.aborted = False
        self.grace_ends_at = 0.0  # monotonic second, set by the drain
        self.leaving = ""
        self.failure: Exception | None = None

    def wake(self) -> None:
        """Make the loop look again. Safe in a signal handler: SimpleQueue.put is reentrant."""
        self.inbox.put(WAKE)

    def stop(self) -> None:
        """Request a drain; a second call ends it at once. Safe in a signal handler."""
        self.aborted = self.stopping
        self.stopping = True
        self.wake()

    def fail(self, error: Exception) -> None:
        """Drain this worker because it must not go on; `run` then raises the error."""
        logger.error("%s This worker drains and ends.", error)
        self.failure = error
        self.stopping = True
        self.wake()

    def describe(self) -> dict[str, Any]:
        """Return the details of its heartbeat, except its queues. Called by another thread."""
        details = {"threads": self.options.threads, "running": self.slots.running, "held": len(self.keeper)}
        with suppress(OSError):
            details["memory_mb"] = round(read_resident_mb())
        return details

    @tracing.quiet()
    def run(self) -> int:
        """Work until stopped or due for replacement, in burst mode until nothing is due; then drain."""
        try:
            self.upkeep.begin(burst=self.options.burst, stopping=lambda: self.stopping)
            self.keeper.start()
            self.timeouts.start()
            self.slots.start()
            seconds = 0.0
            while not self.stopping and not self.leaving:
                seconds = self.run_round(seconds)
            exit_status = self.drain()
            if self.failure is not None:
                raise self.failure
            return exit_status
        finally:
            self.keeper.stop()  # first, so that other workers can take over unfinished entries
            self.upkeep.end()
            pings.flush()
            self.timeouts.stop()
            self.broker.close()
            connections.close_all()

    def run_round(self, wait_seconds: float = 0.0) -> float:
        """Wait at most this long for messages, then do what is due; return the seconds until the next round."""
        self._wait(wait_seconds)
        if self.stopping or self.leaving:
            return 0.0
        try:
            seconds = self.tick()
            if self.trip.untold:
                self.recorder.call_receivers()
            return seconds
        except Exception:  # an unexpected error must not end the worker
            if self.options.burst:
                raise
            logger.exception("An unexpected error. The worker continues.")
            return 1.0

    def _wait(self, seconds: float) -> None:
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
                if isinstance(item, Lease):
                    ended.append(item)
                elif isinstance(item, tuple):
                    self.timers.note_due(*item)
                elif callable(item):
                    self.trip.untold.append(item)
                item = self.inbox.get_nowait()
        if ended:
            self.recorder.add([held for held in ended if held.executed])
        for held in ended:
            if not held.executed:  # its lease had ended, or it could not be executed
                self.keeper.discard([held])
            if held.hung:
                self.trip.untold.append(partial(spans.finish, held))
                self.leaving = self.leaving or f"{held.title} hangs in it"

    def tick(self) -> float:
        """Record, claim and start entries; return the seconds until the next tick is due."""
        self._write()
        refused = len(self.recorder.refusals.rows)
        if self.options.max_runs is not None and self.recorder.runs + refused >= self.options.max_runs:
            self.stopping = True
            return 0.0
        now = time.monotonic()
        if self.trouble.until > now or self.recorder.full:
            self.trip.counted.since = utcnow()  # points due in an outage are not overload
        if self.trouble.until > now:
            return self.trouble.until - now
        turns = self.timers.list_turns(now)
        self.dispatcher.hand_back(claims=bool(turns))
        room = self.dispatcher.count_room(self.options.max_runs)
        try:
            for shard in turns:
                if room <= 0:
                    break
                if not self.claims.claim(shard, room):
                    return max(0.0, self.trouble.until - time.monotonic())
                room = self.dispatcher.count_room(self.options.max_runs)
            if self.timers.ask_at <= now and (empty := self.timers.look(now)) is not None:
                if None in self.broker.read_epochs(empty):
                    self.upkeep.rebuild_soon()
                if self.trouble.until and self.trouble.note_redis_success():
                    self.upkeep.check_soon()
        except BrokerError as error:
            self.trouble.note_redis_failure(error)
            return max(0.0, self.trouble.until - time.monotonic())
        return self._get_seconds_left(now, room)

    def _write(self) -> None:
        now = time.monotonic()
        if self.trouble.until <= now:
            runs = self.recorder.runs
            self.recorder.flush()
            if self.claims.limited and self.recorder.runs > runs:
                self.claims.note_end()
            if self.trip.counted and self.counting.again <= now:
                self.counting.write()
            if self.showing.look_at <= now:
                self.showing.run_round()

    def _get_seconds_left(self, began: float, room: int) -> float:
        """Return the seconds until the next tick; in burst mode, stop if nothing is left."""
        now, cap = time.monotonic(), self.config.idle_cap_seconds
        showing = self.showing.look_at if self.slots.busy else math.inf
        counting = self.counting.again if self.trip.counted else math.inf
        again = min(self.recorder.again, counting, showing)
        if self.dispatcher.isolation.waiting:  # the end of what runs wakes us
            seconds = min(cap, self.dispatcher.isolation.get_seconds_left())
        elif room <= 0:  # the end of a task wakes us
            seconds = WAITING_SECONDS if self.slots.busy > self.options.threads else cap
        else:
            seconds = self.timers.get_seconds_left(now)
        if self.options.burst and self.recorder.idle and not self.claims.unanswered:
            self.stopping = self.timers.is_idle(began)
        return 0.0 if self.stopping else min(seconds, max(0.0, max(again, self.trouble.until) - now))

    def drain(self) -> int:
        """Release unstarted entries, finish and record running ones within the grace, and return the exit status."""
        if self.leaving and not self.stopping:
            logger.warning("This process is to be replaced by a fresh one: %s.", self.leaving)
        self.dispatcher.release_all()
        end = self.grace_ends_at = time.monotonic() + self.config.drain_seconds
        if len(self.keeper) and not self.aborted:
            logger.info("Stopping: %d still running, up to %g s.", self.slots.running, self.config.drain_seconds)
        while not self.aborted and time.monotonic() < end:
            if not (len(self.keeper) or self.recorder.again < math.inf or self.slots.telling):
                break
            self._wait(0.1 if len(self.keeper) else LITTLE_SECONDS)
            self._write()
            if self.trip.untold:
                self.recorder.call_receivers()
        left = len(self.keeper)
        if left:
            logger.warning("Stopped with %d unfinished; they come due again when their leases end.", left)
        self.slots.stop(0.0 if left else SLOTS_SECONDS)
        if not self.trouble.until:
            self.counting.write()
        self.upkeep.sign_off()
        logger.info("Stopped after %d runs.", self.recorder.runs)
        if self.leaving and not self.stopping:
            return RECYCLE
        return UNFINISHED if left else OK
