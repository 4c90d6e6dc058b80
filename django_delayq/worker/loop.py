"""The worker's loop: claim what is due, have it judged, executed and recorded, sleep until the next point.

`tick()` does what can be done now and returns the seconds until there may be more; `run()` is a short loop over it.
"""

import logging
import queue
import time
from contextlib import suppress
from functools import partial

from django.db import DatabaseError, connections

from .. import mirror
from ..broker import Broker, Claim, Place
from ..exceptions import BrokerError, ForeignLayout
from ..timing import from_ms
from .dispatch import Dispatcher
from .entry import Finished, Held
from .execution import execute
from .leases import LeaseKeeper
from .options import WorkerOptions
from .recorder import Recorder
from .slots import Slots
from .trouble import Trouble
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: Redis answers a claim within milliseconds; what takes longer is a server in trouble.
TIMEOUT_SECONDS = 5.0
#: After an error that nobody foresaw, its entries come back after so long.
UNFORESEEN_MS = 30_000
WAKE = "wake"


class Worker:
    """One process' worth of work on some queues. `run()` returns the exit status: 0 after a clean drain.

    It raises `ForeignLayout` where the prefix is, or becomes, another database's.

    Guarantees: an entry that this worker cannot finish (killed, cut off) comes due again when its lease ends. Does not
    guarantee that a task runs only once; its outcome is recorded once.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.broker = Broker(timeout_seconds=TIMEOUT_SECONDS, worker=options.name)
        self.config = self.broker.config
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.keeper = LeaseKeeper(self.broker, lease_seconds=self.config.lease_seconds)
        self.recorder = Recorder(self.broker, self.keeper, due_at_ms=self._due_at_ms, due_in_ms=self._due_in_ms)
        self.slots = Slots(options.threads, partial(execute, worker=options.name), self.inbox.put)
        self.places = self.broker.places(options.queues)
        self.trouble = Trouble(self.broker, self.places)
        self.dispatcher = Dispatcher(
            self.broker,
            self.keeper,
            self.recorder,
            self.slots,
            self.trouble,
            name=options.name,
            due_in_ms=self._due_in_ms,
        )
        self.upkeep = Upkeep(self.broker, self.places, wake=self.wake, hinted=self.inbox.put, fail=self.fail)
        self.stopping = False
        self.aborted = False
        self._next = dict.fromkeys(self.places, 0.0)  # monotonic second of the next claim
        self._check_at = 0.0  # monotonic second of the next look at all places, against lost hints
        self._offset_ms = 0.0  # the server's clock less the monotonic one
        self._request = dict.fromkeys(self.places, 0)
        self._epochs: dict[Place, str] = {}
        self.failure: Exception | None = None
        self._replay: set[Place] = set()  # places whose last claim had no reply

    # -- life

    def wake(self) -> None:
        """Make the loop look again. Safe in a signal handler: SimpleQueue.put is reentrant."""
        self.inbox.put(WAKE)

    def stop(self) -> None:
        """Ask for a drain; a second call ends it at once. Safe in a signal handler."""
        self.aborted = self.stopping
        self.stopping = True
        self.wake()

    def run(self) -> int:
        """Work until stopped, or until nothing is due in burst mode; then drain."""
        try:
            self.upkeep.begin(burst=self.options.burst, stopping=lambda: self.stopping)
            self.keeper.start()
            self.slots.start()
            while not self.stopping:
                self._wait(self._guarded_tick())
            status = self._drain()
            if self.failure is not None:
                raise self.failure
            return status
        finally:
            self.upkeep.end()
            self.keeper.stop()
            self.broker.close()
            connections.close_all()

    def _guarded_tick(self) -> float:
        try:
            return self.tick()
        except Exception:  # one thing that nobody foresaw must not end what everything else depends on
            if self.options.burst:
                raise
            logger.exception("Something unforeseen; going on.")
            return 1.0

    def _wait(self, seconds: float) -> None:
        with suppress(queue.Empty):
            item = self.inbox.get(timeout=max(0.0, seconds)) if seconds > 0 else self.inbox.get_nowait()
            while True:
                self._receive(item)
                item = self.inbox.get_nowait()

    def _receive(self, item: object) -> None:
        if isinstance(item, Finished):
            self.recorder.add([item])
        elif isinstance(item, tuple):
            self._due_at_ms(*item)

    def _due_at_ms(self, place: Place, server_ms: int) -> None:
        if place in self._next:
            self._next[place] = min(self._next[place], self._monotonic(server_ms))

    def _due_in_ms(self, place: Place, delay_ms: int) -> None:
        if place in self._next:
            self._next[place] = min(self._next[place], time.monotonic() + delay_ms / 1000)

    def _monotonic(self, server_ms: float) -> float:
        return (server_ms - self._offset_ms) / 1000

    # -- one round

    def tick(self) -> float:
        """Record, claim and start what can be now; return the seconds until the next look is due."""
        self._flush()
        now = time.monotonic()
        if self._finished_enough():
            self.stopping = True
            return 0.0
        if self.trouble.until > now:
            return self.trouble.until - now
        if self.slots.stalled():
            self.dispatcher.release_waiting()
        for place in sorted(self.places, key=self._next.__getitem__):
            if self._next[place] > now or (room := self._room()) <= 0:
                break
            if not self._claim(place, room):
                return self.trouble.until - time.monotonic()
        if now >= self._check_at:
            self._look(now)
        if self.options.burst and self._nothing_left(now):
            self.stopping = True
            return 0.0
        return self._until_next()

    def _room(self) -> int:
        room = min(self.slots.capacity(), self.config.batch_size)
        if self.options.max_runs is not None:
            room = min(room, self.options.max_runs - self.recorder.runs - len(self.keeper))
        return room

    def _until_next(self) -> float:
        now = time.monotonic()
        if not self.recorder.idle:
            return max(0.0, self.trouble.until - now)
        if self._room() <= 0:  # the end of a task wakes us
            return self.config.idle_cap_seconds if self.slots.waiting == 0 else 0.25
        return max(0.0, min(self._check_at, *self._next.values()) - now)

    def _finished_enough(self) -> bool:
        return self.options.max_runs is not None and self.recorder.runs >= self.options.max_runs

    def _nothing_left(self, now: float) -> bool:
        later = all(when > now for when in self._next.values())
        return later and len(self.keeper) == 0 and self.recorder.idle and not self._replay

    # -- Redis to slots

    def _claim(self, place: Place, room: int) -> bool:
        """Claim and dispatch; False where Redis or the database failed and the loop must back off."""
        if place not in self._replay:
            self._request[place] += 1
        sent = time.monotonic()
        try:
            claim = self.broker.claim(
                place, limit=room, lease_ms=int(self.config.lease_seconds * 1000), request=self._request[place]
            )
        except BrokerError as error:
            self._replay.add(place)
            self.trouble.redis_failed(error, place)
            return False
        self._replay.discard(place)
        if self.trouble.redis_worked():
            self.upkeep.redis_is_back()
        self._note_head(place, claim)
        entries = [
            Held(place, entry, claim.fence, from_ms(claim.now_ms), sent + self.config.lease_seconds)
            for entry in claim.entries
        ]
        self.keeper.add(entries)
        if not self._same_index(place, claim.epoch):
            self.dispatcher.release(entries, 0)
            return not self.stopping
        try:
            return self.dispatcher.dispatch(entries) if entries else True
        except Exception:
            self.dispatcher.release(entries, UNFORESEEN_MS)
            raise

    def _same_index(self, place: Place, epoch: str | None) -> bool:
        """Say whether the shard is the one we know. After a flush it may be another database's: then stop at once."""
        if epoch is None:
            self.upkeep.rebuild_soon()
            self._next[place] = time.monotonic() + 0.2
            return True
        build = epoch.removeprefix("building:")
        if self._epochs.setdefault(place, build) != build:
            try:
                mirror.check_layout(self.broker)
            except ForeignLayout as error:
                self.fail(error)
                return False
            except BrokerError as error:
                self.trouble.redis_failed(error, place)
                return False
            except DatabaseError as error:
                self.trouble.database_failed(error)
                return False
            self._epochs[place] = build
        return True

    def fail(self, error: Exception) -> None:
        """End this worker: it must not go on. `run` raises the error after the drain."""
        self.failure = error
        self.stopping = True
        self.wake()

    def _note_head(self, place: Place, claim: Claim) -> None:
        now = time.monotonic()
        self._offset_ms = claim.now_ms - now * 1000
        cap = now + 3600
        self._next[place] = cap if claim.head_ms is None else min(cap, self._monotonic(claim.head_ms))

    # -- trouble

    def _flush(self) -> None:
        if self.recorder.idle or self.trouble.until > time.monotonic():
            return
        try:
            self.recorder.flush()
        except DatabaseError as error:
            self.trouble.database_failed(error)
        except BrokerError as error:
            self.trouble.redis_failed(error)

    def _look(self, now: float) -> None:
        """Ask all places for their head and epoch: a hint may have been lost, Redis may have been flushed."""
        self._check_at = now + self.config.idle_cap_seconds
        try:
            looks = self.broker.peek(self.places)
        except BrokerError as error:
            self.trouble.redis_failed(error)
            return
        for place, (head_ms, epoch) in zip(self.places, looks, strict=True):
            if epoch is None:
                self.upkeep.rebuild_soon()
            if head_ms is not None:
                self._due_at_ms(place, head_ms)

    # -- the end

    def _drain(self) -> int:
        """Release what did not start, finish and record what runs, within the grace. Returns the exit status."""
        self.dispatcher.release_waiting()
        end = time.monotonic() + self.config.drain_seconds
        if len(self.keeper) and not self.aborted:
            logger.info("Stopping: %d still running, up to %g s.", self.slots.running, self.config.drain_seconds)
        while (len(self.keeper) or not self.recorder.idle) and not self.aborted and time.monotonic() < end:
            self._wait(0.1)
            self._flush()
        left = len(self.keeper)
        if left:
            logger.warning("Stopped with %d unfinished; they come due again when their leases end.", left)
        self.upkeep.farewell()
        logger.info("Stopped after %d runs.", self.recorder.runs)
        return 1 if left else 0
