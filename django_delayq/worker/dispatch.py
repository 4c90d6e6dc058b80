"""Moves claimed entries to the slots, to the recorder or back to Redis, as the verdicts say.

Note [Pauses and limits are rows]
Pauses and limits are rows (`models/control.py`), so a flush of Redis does not remove them. While the database does not
answer, the last known ones apply. A task is known only after the claim, so entries of a paused task are handed back
for TASK_MS, repeatedly; to hold back many, pause their queue. The claiming script enforces the limit.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db import DatabaseError, Error, connections

from .. import ledger, sync
from ..conf import Config
from ..exceptions import BrokerError
from ..index import Shard
from ..index.keys import group_by
from ..ledger import HeldBack
from ..recurrence.point import utcnow
from ..sync.layout import ForeignLayout
from .held import AGAIN_MS, Lease, Verdicts
from .recorder import Recorder
from .slots import Slots
from .suspects import REFUSED_MS, Suspects
from .trouble import Backoff, Delays
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: Maximum age of the known controls in seconds.
FRESH_SECONDS = 0.5
#: Seconds before a paused queue is looked at again, and a queue at its limit unless one of our own runs ends.
PAUSED_SECONDS, LIMITED_SECONDS = 1.0, 0.5
#: Delay in ms before an entry of a paused queue or task comes due again.
TASK_MS = 5_000


class Controls:
    """See Note [Pauses and limits are rows]."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.known = HeldBack()
        #: The time at which each queue or task was last known to be paused, by its name.
        self.paused_at: dict[str, datetime] = {}
        self._read_at = -math.inf
        self._backoff = Backoff()

    def refresh(self) -> bool:
        """Read the controls if that is due; return True if anything is paused that was not before."""
        now = time.monotonic()
        if now < max(self._read_at + FRESH_SECONDS, self._backoff.until):
            return False
        self._read_at = now
        try:
            found = ledger.read_held_back()
        except Error as error:
            if self._backoff.note_failure(now):
                text = "Pauses and limits cannot be read; the last known ones apply. %s"
                logger.warning(text, str(error).strip())
            connections.close_all()
            return False
        self._backoff.note_success()
        before, self.known = self.known, found
        was, is_now = set(before.paused), set(found.paused)
        self.paused_at |= dict.fromkeys((name for _, name in was | is_now), utcnow())
        for kind, name in sorted(was ^ is_now):
            logger.info("%s: %s %s.", "Paused" if (kind, name) in is_now else "Resumed", kind, name)
        return bool(is_now - was)

    def is_held(self, held: Lease) -> bool:
        """Return True if this entry must not start because its queue or its task is paused."""
        task = held.task.module_path if held.task is not None else None
        return held.shard.queue in self.known.queues or task in self.known.tasks

    def get_most(self, shard: Shard) -> int | None:
        """Return the maximum number of leases in a shard; None if its queue has no limit."""
        most = self.known.most.get(shard.queue)
        return most and max(1, most // self._config.get_shard_count(shard.queue))


#: First and longest delay in ms before an entry whose task this worker does not know comes due again.
UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS = 1_000, 600_000


class Dispatcher:
    """Carries out verdicts. Used by the loop's thread only."""

    def __init__(self, recorder: Recorder, slots: Slots, controls: Controls, *, max_reclaims: int) -> None:
        self.recorder, self.slots, self.controls = recorder, slots, controls
        self.trip, self.keeper = recorder.trip, recorder.keeper
        self.trouble, self.timers = recorder.trouble, recorder.timers
        self.isolation = Suspects(recorder, max_reclaims=max_reclaims)
        self._taken_over: deque[Lease] = deque()  # to start as slots become free, see `go_on`
        self._unknown = Delays(UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS)

    def _is_isolating(self) -> bool:
        return bool(self.isolation.waiting or self.isolation.alone) and self.isolation.is_active()

    def count_room(self, max_runs: int | None = None) -> int:
        """Return how many entries to claim now: at most a batch, and at most the rest of `max_runs`."""
        if self.recorder.full or self._is_isolating():
            return 0
        free = self.slots.free - len(self._taken_over) if self._taken_over else self.slots.get_capacity()
        left = free if max_runs is None else max_runs - self.recorder.runs - len(self.keeper)
        return max(0, min(free, left, self.keeper.batch_size))

    def dispatch(self, entries: list[Lease]) -> bool:
        """Judge claimed entries and process each by its verdict; return False if they could not be read."""
        verdicts = self.trip.judge(entries)
        if self.controls.known.queues or self.controls.known.tasks:
            verdicts.hold_back((verdicts.start, verdicts.suspects), self.controls.is_held, TASK_MS)
        self._carry_out(verdicts)
        at_once = self._sort(verdicts.suspects) if verdicts.suspects else []
        if self._is_isolating():
            self.release(dict.fromkeys([*at_once, *verdicts.start], 0))
        else:
            if at_once:
                self._begin(at_once)
            self.slots.submit(verdicts.start)
        if verdicts.suspects:
            self.go_on()
        return verdicts.error is None

    def _carry_out(self, verdicts: Verdicts) -> None:
        if verdicts.error is not None:
            self.trouble.note_database_failure(verdicts.error)
        elif self.trouble.until:
            self.trouble.note_database_success()
        if verdicts.decided:
            self.recorder.add(verdicts.decided)
        if verdicts.settle:
            self.recorder.settle(verdicts.settle)
        if verdicts.gone:
            self.keeper.discard(verdicts.gone)
        for held in verdicts.unknown:
            verdicts.back[held] = self._unknown.get_next(held.member, time.monotonic())
        if back := verdicts.back | dict.fromkeys(verdicts.locked, AGAIN_MS):
            self.release(back)
        if self._unknown.members:
            for held in (*verdicts.start, *verdicts.suspects):
                self._unknown.forget(held.member)

    def _sort(self, suspects: Sequence[Lease]) -> list[Lease]:
        """Return the suspects to start at once. A take-over waits for a free slot: only executions are counted."""
        at_once: list[Lease] = []
        for held in suspects:
            if self.isolation.is_suspect(held):  # see `suspects.py`, Note [Suspects run alone]
                self.isolation.add(held)
            elif held.take_overs:
                self._taken_over.append(held)
            else:
                at_once.append(held)
        return at_once

    def go_on(self) -> None:
        """Start the entries whose turn has come."""
        if self.isolation.waiting:
            self._isolate()
        elif self._taken_over and not self._is_isolating():
            count = min(self.slots.free, len(self._taken_over))
            self._begin([self._taken_over.popleft() for _ in range(count)])

    def _isolate(self) -> None:
        self.release_waiting()
        held = self.isolation.take_next()
        if held is not None:
            self.release(dict.fromkeys(self.isolation.take_waiting(), 0))
            verdicts = self.trip.judge([held])
            self._carry_out(verdicts)
            self._begin(verdicts.suspects)
            self.slots.submit(verdicts.start)
        elif self.isolation.get_seconds_left() == 0:
            self.release(dict.fromkeys(self.isolation.take_waiting(), REFUSED_MS))

    def _begin(self, suspects: Sequence[Lease]) -> None:
        if not suspects:
            return
        try:
            verdicts = self.trip.begin(suspects)
        except DatabaseError as error:
            self.trouble.note_database_failure(error, writing=True)
            self.release(dict.fromkeys(suspects, AGAIN_MS))
        else:
            self._carry_out(verdicts)
            self.slots.submit(verdicts.start)

    def release(self, delays_ms: Mapping[Lease, int]) -> None:
        """Hand entries back unstarted, to come due again after these delays. If this fails, their leases run out."""
        if not delays_ms:
            return
        self.keeper.discard(delays_ms)
        try:
            self.trip.give_back(delays_ms)
        except DatabaseError as error:
            self.trouble.note_database_failure(error)
        try:
            for shard, group in group_by(delays_ms, lambda held: held.shard).items():
                for due in self.trip.settle(shard, group):
                    self.timers.note_due(*due)
        except BrokerError as error:
            self.trouble.note_redis_failure(error)

    def hand_back(self, *, claims: bool) -> None:
        """Hand back entries that wait for busy slots or were paused in the meantime. `claims`: a claim follows."""
        waiting = self.slots.waiting + len(self._taken_over) if self.slots.busy or self._taken_over else 0
        if waiting and self.slots.is_stalled():
            self.release_waiting()
        if (claims or waiting or self.isolation.waiting) and self.controls.refresh():
            self.release_all()
        if self._taken_over or self.isolation.waiting:
            self.go_on()

    def release_waiting(self) -> None:
        """Hand back all entries that wait for a slot, due at once."""
        waiting = [*self.slots.take_back(), *self._taken_over]
        self._taken_over.clear()
        self.release(dict.fromkeys(waiting, 0))

    def release_all(self) -> None:
        """Hand back all entries that have not started, including those that wait to run alone, due at once."""
        self.release_waiting()
        self.release(dict.fromkeys(self.isolation.take_waiting(), 0))


#: Delay in ms before entries come due again after an unexpected error.
UNFORESEEN_MS = 30_000


class Claims:
    """Claims entries from Redis and passes them to the dispatcher. Used by the loop's thread only.

    Note [A lost reply is repeated]
    A claim whose reply is lost may have leased members that the worker does not know; they would count as taken over.
    So the next claim has the same request number, and Redis repeats the reply, except for leases that have ended.
    """

    def __init__(self, dispatcher: Dispatcher, upkeep: Upkeep) -> None:
        self.dispatcher, self.upkeep = dispatcher, upkeep
        self.timers, self.trouble, self.controls = dispatcher.timers, dispatcher.trouble, dispatcher.controls
        self.limited: set[Shard] = set()
        self._known: dict[Shard, str] = {}  # the epoch of each shard when its layout was last checked
        self._request: dict[Shard, int] = {}
        #: Shards whose reply to a claim is missing.
        self.unanswered: set[Shard] = set()

    def note_end(self) -> None:
        """Claim again from shards at their limit, because an entry was settled."""
        while self.limited:
            self.timers.put_off(self.limited.pop(), 0.0)

    def claim(self, shard: Shard, limit: int) -> bool:
        """Claim and dispatch up to `limit` due entries; return False if a server failed or the worker ends."""
        controls = self.controls.known
        if shard.queue in controls.queues and shard not in self.unanswered:
            self.timers.put_off(shard, PAUSED_SECONDS)
            return True
        if shard not in self.unanswered:
            self._request[shard] = self._request.get(shard, 0) + 1
        deadline = time.monotonic() + self.dispatcher.keeper.lease_seconds  # before the request: see `held.py`
        try:
            most = self.controls.get_most(shard) if controls.most else None
            claim, entries = self.dispatcher.trip.claim(shard, limit, self._request[shard], deadline, most)
        except BrokerError as error:
            self.unanswered.add(shard)
            self.timers.put_off(shard, 0.0)
            self.trouble.note_redis_failure(error, shard)
            return False
        self.unanswered.discard(shard)
        if self.trouble.until and self.trouble.note_redis_success():
            self.upkeep.check_soon()
        self.timers.note_due(shard, claim.head_ms, claim.now_ms, known=True)
        if most is not None and len(entries) < limit and (claim.head_ms or math.inf) <= claim.now_ms:
            self.limited.add(shard)
            self.timers.put_off(shard, LIMITED_SECONDS)
        self.dispatcher.keeper.add(entries)
        is_known = claim.epoch is not None and claim.epoch == self._known.get(shard)
        if not is_known and not self._is_ours(shard, claim.epoch):
            self.dispatcher.release(dict.fromkeys(entries, 0))
            return False
        try:
            return self.dispatcher.dispatch(entries) if entries else True
        except Exception:
            self.dispatcher.release(dict.fromkeys(entries, UNFORESEEN_MS))
            raise

    def _is_ours(self, shard: Shard, epoch: str | None) -> bool:
        """Return False if the shard may belong to another database; checked at first and after a flush."""
        if not (epoch or "").removeprefix("building:"):
            self.upkeep.rebuild_soon()
            self.timers.note_flush(shard)
            return True
        if epoch is None or epoch.startswith("building:"):
            return True
        try:
            sync.check_layout(self.upkeep.broker)
            self._known[shard] = epoch
            return True
        except ForeignLayout as error:
            self.upkeep.fail(error)
        except BrokerError as error:
            self.trouble.note_redis_failure(error, shard)
        except DatabaseError as error:
            self.trouble.note_database_failure(error)
        return False
