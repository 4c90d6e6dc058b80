"""The worker's loop: claim what is due, have it judged, executed and recorded, sleep until the next point.

`tick()` does what can be done now and returns the seconds until there may be more; `run()` is a short loop over it.
"""

import logging
import queue
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from django.db import DatabaseError, connections

from .. import ledger, mirror
from ..broker import Broker, Claim, Place
from ..compat import AnyTask
from ..exceptions import BrokerError, DamagedKeys, ForeignLayout
from ..ledger import Won, version_of
from ..models import Run, Status
from ..timing import from_ms
from .backoff import Backoff
from .entry import Finished, Held
from .execution import execute
from .judge import Verdicts, judge
from .leases import LeaseKeeper
from .options import WorkerOptions
from .recorder import Recorder, announce
from .slots import Slots
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: Redis answers a claim within milliseconds; what takes longer is a server in trouble.
TIMEOUT_SECONDS = 5.0
UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS = 30_000, 600_000
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
        self._unknown_ms: dict[str, int] = {}
        self._redis, self._database = Backoff(), Backoff()

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
        self.upkeep.begin(burst=self.options.burst, stopping=lambda: self.stopping)
        self.keeper.start()
        self.slots.start()
        try:
            while not self.stopping:
                self._wait(self.tick())
            status = self._drain()
            if self.failure is not None:
                raise self.failure
            return status
        finally:
            self.upkeep.end()
            self.keeper.stop()
            self.broker.close()
            connections.close_all()

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
        if max(self._redis.until, self._database.until) > now:
            return max(self._redis.until, self._database.until) - now
        self._hand_back_stalled()
        for place in sorted(self.places, key=self._next.__getitem__):
            if self._next[place] > now or (room := self._room()) <= 0:
                break
            if not self._claim(place, room):
                return self._redis.until - time.monotonic()
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
            return max(0.0, max(self._redis.until, self._database.until) - now)
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
            self._redis_failed(error, place)
            return False
        self._replay.discard(place)
        if self._redis.worked():
            logger.info("Redis answers again.")
            self.upkeep.redis_is_back()
        self._note_head(place, claim, room)
        entries = [
            Held(place, entry, claim.fence, from_ms(claim.now_ms), sent + self.config.lease_seconds)
            for entry in claim.entries
        ]
        self.keeper.add(entries)
        if not self._same_index(place, claim.epoch):
            self._release(entries, 0)
            return not self.stopping
        return self._dispatch(entries) if entries else True

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
            except (BrokerError, DatabaseError) as error:
                logger.warning("The layout could not be checked: %s", error)
                return False
            self._epochs[place] = build
        return True

    def fail(self, error: Exception) -> None:
        """End this worker: it must not go on. `run` raises the error after the drain."""
        self.failure = error
        self.stopping = True
        self.wake()

    def _note_head(self, place: Place, claim: Claim, room: int) -> None:
        now = time.monotonic()
        self._offset_ms = claim.now_ms - now * 1000
        cap = now + 3600
        self._next[place] = cap if claim.head_ms is None else min(cap, self._monotonic(claim.head_ms))

    def _dispatch(self, entries: list[Held]) -> bool:
        try:
            verdicts = judge(entries, self.options.name)
            self._note(verdicts)
        except DatabaseError as error:
            self._database_failed(error)
            self._release(entries, 1000)
            return False
        self._carry_out(verdicts)
        suspects = [held for held, _ in verdicts.suspects]
        try:
            self._start_suspects(verdicts)
        except DatabaseError as error:
            self._database_failed(error)
            self._release(suspects, 1000)
        except BrokerError as error:
            self._redis_failed(error)
            self.keeper.discard(suspects)
        if self._database.worked():
            logger.info("The database answers again.")
        for held, task in verdicts.execute:
            self.slots.submit(held, task)
        return True

    def _note(self, verdicts: Verdicts) -> None:
        """Write what belongs into the database before anything is started or settled."""
        if verdicts.stretches:
            for outcome, won in zip(verdicts.stretches, ledger.record(verdicts.stretches), strict=True):
                if won is Won.YES:
                    announce(outcome)
        for run in verdicts.orphans:
            ledger.close_orphan(run, "the schedule was deleted")
        if verdicts.park:
            mirror.note_parked([int(held.member[1:]) for held in verdicts.park])

    def _carry_out(self, verdicts: Verdicts) -> None:
        self.recorder.add(Finished(held, 0.0) for held in verdicts.record)
        for held, point in verdicts.settle:
            self.recorder.settle(held, point)
        for held in verdicts.park:
            self.recorder.settle(held, None)
        for held in verdicts.unknown:
            delay = min(self._unknown_ms.get(held.member, UNKNOWN_TASK_FIRST_MS // 2) * 2, UNKNOWN_TASK_MOST_MS)
            self._unknown_ms[held.member] = delay
            self._release([held], delay)

    def _start_suspects(self, verdicts: Verdicts) -> None:
        """Rule R2b: prove the lease after the row was read, write a running row, only then execute."""
        tasks: dict[Held, AnyTask] = dict(verdicts.suspects)
        places: dict[Place, list[Held]] = {}
        for held in tasks:
            places.setdefault(held.place, []).append(held)
        for place, entries in places.items():
            kept = self.keeper.prove(place, entries)
            self.keeper.discard(set(entries) - set(kept))
            poisoned = [held for held in kept if self._take_over(held)]
            starting = [held for held in kept if held not in poisoned]
            self.recorder.add(Finished(held, 0.0) for held in poisoned)
            outcomes = [held.outcome for held in starting if held.outcome is not None]
            for held, outcome, won in zip(starting, outcomes, ledger.start(outcomes), strict=True):
                if won is Won.YES:
                    outcome.seen = version_of(outcome.run)
                    self.slots.submit(held, tasks[held])
                else:
                    self.recorder.lost(held, outcome.run)

    def _take_over(self, held: Held) -> bool:
        """Fill in the running row; True where this point has killed its workers too often (rule R6)."""
        outcome = held.outcome
        assert outcome is not None  # noqa: S101 - suspects are judged
        run: Run = outcome.run
        held.before = {"status": run.status, "reclaims": run.reclaims, "fence": run.fence, "worker": run.worker}
        if run.status == Status.RUNNING:
            run.reclaims += 1
        run.fence, run.worker = held.fence, self.options.name
        run.claimed_at = run.claimed_at or held.claimed_at
        run.status = Status.RUNNING
        if run.reclaims <= self.config.max_reclaims:
            run.started_at = held.claimed_at
            return False
        run.status, run.reason, run.finished_at = Status.LOST, "poison", held.claimed_at
        return True

    # -- trouble

    def _flush(self) -> None:
        if self.recorder.idle or max(self._redis.until, self._database.until) > time.monotonic():
            return
        try:
            self.recorder.flush()
        except DatabaseError as error:
            self._database_failed(error)
        except BrokerError as error:
            self._redis_failed(error)

    def _redis_failed(self, error: BrokerError, place: Place | None = None) -> None:
        if self._redis.failed(time.monotonic()):
            logger.error("%s Trying again; nothing is lost.", error)
        if isinstance(error, DamagedKeys):
            with suppress(BrokerError):
                for bad in self.places if place is None else [place]:
                    names = self.broker.repair(bad)
                    if names:
                        logger.error("Deleted %s, which something else wrote; it is rebuilt.", ", ".join(names))

    def _database_failed(self, error: DatabaseError) -> None:
        if self._database.failed(time.monotonic()):
            logger.error("The database cannot be used now: %s. Trying again; nothing is lost.", str(error).strip())
        connections[ledger.database()].close()

    def _release(self, entries: Sequence[Held], delay_ms: int) -> None:
        places: dict[Place, list[Held]] = {}
        for held in entries:
            places.setdefault(held.place, []).append(held)
        self.keeper.discard(entries)
        self._undo_starts(entries)
        try:
            for place, group in places.items():
                self.broker.release(place, [held.lease(delay_ms) for held in group])
                self._due_in_ms(place, delay_ms)
        except BrokerError as error:
            self._redis_failed(error)

    def _undo_starts(self, entries: Sequence[Held]) -> None:
        """What did not start must count no reclaim, although its row says that it runs."""
        begun = [(held.outcome, held.before) for held in entries if held.outcome and held.before]
        if begun:
            try:
                ledger.undo_start([outcome for outcome, _ in begun], [before for _, before in begun])
            except DatabaseError as error:
                self._database_failed(error)

    def _hand_back_stalled(self) -> None:
        if self.slots.stalled():
            self._release(self.slots.take_back(), 0)

    def _look(self, now: float) -> None:
        """Ask all places for their head and epoch: a hint may have been lost, Redis may have been flushed."""
        self._check_at = now + self.config.idle_cap_seconds
        try:
            looks = self.broker.peek(self.places)
        except BrokerError as error:
            self._redis_failed(error)
            return
        for place, (head_ms, epoch) in zip(self.places, looks, strict=True):
            if epoch is None:
                self.upkeep.rebuild_soon()
            if head_ms is not None:
                self._due_at_ms(place, head_ms)

    # -- the end

    def _drain(self) -> int:
        """Release what did not start, finish and record what runs, within the grace. Returns the exit status."""
        self._release(self.slots.take_back(), 0)
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
        return 1 if left else 0
