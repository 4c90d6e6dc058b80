"""Moves claimed entries to the slots, to the recorder or back to Redis, as the verdicts say.

Note [Held back]
Pauses and limits are rows (`models/control.py`), so a flush of Redis does not remove them. A worker reads them again,
once they are older than FRESH_SECONDS, before it claims and while entries wait to start; if the database does not
answer, the last known ones apply. Members of a paused queue stay in Redis, and claimed entries that have not started
are handed back; only a claim whose reply was lost is repeated. A task is known only after the claim, so entries of a
paused task are handed back for TASK_MS, repeatedly; to hold back many, pause their queue. The claiming script enforces
the limit.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from django.db import DatabaseError, Error, connections

from .. import ledger, sync
from ..conf import Config
from ..exceptions import BrokerError
from ..index import Shard
from ..index.keys import grouped
from ..ledger import HeldBack
from ..recurrence.point import utcnow
from ..sync.layout import ForeignLayout
from .held import AGAIN_MS, Held, Verdicts
from .isolation import REFUSED_MS, Isolation
from .recorder import Recorder
from .slots import Slots
from .trouble import Backoff, Delays
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: Maximum age of the known controls in seconds.
FRESH_SECONDS = 0.5
#: Seconds between claims from a paused queue, and from a queue at its limit unless one of our own runs ends.
PAUSED_SECONDS, LIMITED_SECONDS = 1.0, 0.5
#: Delay in ms before an entry of a paused queue or task comes due again.
TASK_MS = 5_000


class Controls:
    """See Note [Held back]."""

    def __init__(self, config: Config, *, read: Callable[[], HeldBack] = ledger.read_held_back) -> None:
        self._config, self._read = config, read
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
            found = self._read()
        except Error as error:
            if self._backoff.failed(now):
                text = "What people have paused or limited cannot be read. What was known last holds: %s"
                logger.warning(text, str(error).strip())
            connections.close_all()
            return False
        self._backoff.worked()
        before, self.known = self.known, found
        self.paused_at |= dict.fromkeys((name for _, name in (*before.paused, *found.paused)), utcnow())
        for kind, name in sorted(set(found.paused) ^ set(before.paused)):
            held = found.queues if kind == "queue" else found.tasks
            if name in held:
                logger.warning("Paused: nothing of %s %s starts (%s).", kind, name, held[name] or "no reason given")
            else:
                logger.info("Resumed: %s %s.", kind, name)
        for name in sorted(found.most.keys() | before.most.keys()):
            if found.most.get(name) != before.most.get(name):
                logger.info("Of queue %s at most %s run at a time.", name, found.most.get(name, "as many as can"))
        return not set(found.paused) <= set(before.paused)

    def holds(self, held: Held) -> bool:
        """Return True if this entry must not start because its queue or its task is paused."""
        task = held.task.module_path if held.task is not None else None
        return held.shard.queue in self.known.queues or task in self.known.tasks

    def most(self, shard: Shard) -> int | None:
        """Return the maximum number of leases in a shard; None if its queue has no limit."""
        most = self.known.most.get(shard.queue)
        return most and max(1, most // self._config.shard_count(shard.queue))


UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS = 1_000, 600_000
#: Seconds after an offer to other workers within which the entry counts as unknown to all of them.
OFFER_SECONDS = 10.0


class Dispatcher:
    """Used by the loop's thread only."""

    def __init__(self, recorder: Recorder, slots: Slots, controls: Controls, *, max_reclaims: int) -> None:
        self.recorder, self.slots, self.controls = recorder, slots, controls
        self.trip, self.keeper = recorder.trip, recorder.keeper
        self.trouble, self.timers = recorder.trouble, recorder.timers
        self.isolation = Isolation(recorder, max_reclaims=max_reclaims)
        self._taken_over: deque[Held] = deque()  # to start as slots become free, see `go_on`
        self._unknown = Delays(UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS)
        self._offered: dict[str, float] = {}  # member -> monotonic second, the oldest first

    @property
    def waiting(self) -> int:
        """Entries that wait for a slot, without those that wait to run alone."""
        return self.slots.waiting + len(self._taken_over)

    def _isolating(self) -> bool:
        return bool(self.isolation.waiting or self.isolation.alone) and self.isolation.active()

    def room(self, max_runs: int | None = None) -> int:
        """Return how many entries to claim now: at most a batch, and at most the rest of `max_runs`.

        Zero while entries wait for a free slot, or while the recorder is full.
        """
        if self.recorder.full or self._isolating():
            return 0
        free = self.slots.free - len(self._taken_over) if self._taken_over else self.slots.capacity()
        left = free if max_runs is None else max_runs - self.recorder.runs - len(self.keeper)
        return max(0, min(free, left, self.keeper.batch_size))

    def dispatch(self, entries: list[Held]) -> bool:
        """Judge claimed entries and process each by its verdict; return False if they could not be read."""
        verdicts = self.trip.judge(entries)
        if self.controls.known.queues or self.controls.known.tasks:
            verdicts.hold_back(self.controls.holds, TASK_MS)
        self._carry_out(verdicts)
        at_once = self._sort(verdicts.suspects) if verdicts.suspects else []
        if self._isolating():
            self.release([*at_once, *verdicts.start], 0)
        else:
            if at_once:
                self._begin(at_once)
            self.slots.submit(verdicts.start)
        if verdicts.suspects:
            self.go_on()
        return verdicts.error is None

    def _carry_out(self, verdicts: Verdicts) -> None:
        if verdicts.error is not None:
            self.trouble.database_failed(verdicts.error)
        elif verdicts.asked and self.trouble.until:
            self.trouble.database_worked()
        if verdicts.decided:
            self.recorder.add(verdicts.decided)
        if verdicts.settle:
            self.recorder.settle(verdicts.settle)
        if verdicts.gone:
            self.keeper.discard(verdicts.gone)
        if verdicts.back or verdicts.locked:
            self._release_each([*verdicts.back, *((held, AGAIN_MS) for held in verdicts.locked)])
        if verdicts.unknown:
            self._refuse(verdicts.unknown)
        if self._unknown.members or self._offered:
            for held in (*verdicts.start, *verdicts.suspects):
                self._unknown.forget(held.member)
                self._offered.pop(held.member, None)

    def _refuse(self, unknown: Sequence[Held]) -> None:
        """Hand back entries of unknown tasks: first to the other workers without a delay, then with a growing delay.

        Without the offer, this worker might claim the same entry again before a worker that knows its task. Offers are
        rare, because other due entries of the shard wait during an offer: see `Timers.stand_back`.
        """
        now = time.monotonic()
        while self._offered and now - next(iter(self._offered.values())) >= OFFER_SECONDS:
            del self._offered[next(iter(self._offered))]
        delays = []
        for held in unknown:
            delay_ms = 0
            if held.member not in self._offered and self.timers.stand_back(held.shard):
                self._offered[held.member] = now
            else:
                delay_ms = self._unknown.next(held.member, now)
            delays.append((held, delay_ms))
        self._release_each(delays)

    def _sort(self, suspects: Sequence[Held]) -> list[Held]:
        """Return the suspects to start at once; the others wait for their turn. See `isolation.py`, Note [Alone].

        A take-over begins only when a slot is free, so that a counted take-over was really executed.
        """
        at_once: list[Held] = []
        for held in suspects:
            if self.isolation.concerns(held):
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
        elif self._taken_over and not self._isolating():
            count = min(self.slots.free, len(self._taken_over))
            self._begin([self._taken_over.popleft() for _ in range(count)])

    def _isolate(self) -> None:
        self.release_waiting()
        held = self.isolation.next()
        if held is not None:
            self.release(self.isolation.take_waiting(), 0)
            verdicts = self.trip.judge([held])
            self._carry_out(verdicts)
            self._begin(verdicts.suspects)
            self.slots.submit(verdicts.start)
        elif self.isolation.seconds_left() == 0:
            self.release(self.isolation.take_waiting(), REFUSED_MS)

    def _begin(self, suspects: Sequence[Held]) -> None:
        if not suspects:
            return
        try:
            verdicts = self.trip.begin(suspects)
        except DatabaseError as error:
            self.trouble.database_failed(error, writing=True)
            self.release(suspects, AGAIN_MS)
        else:
            self._carry_out(verdicts)
            self.slots.submit(verdicts.start)

    def _release_each(self, entries: Sequence[tuple[Held, int]]) -> None:
        for delay_ms, group in grouped(entries, lambda item: item[1]).items():
            self.release([held for held, _ in group], delay_ms)

    def release(self, entries: Sequence[Held], delay_ms: int) -> None:
        """Hand entries back unstarted. If Redis does not answer, their leases run out."""
        if not entries:
            return
        self.keeper.discard(entries)
        try:
            self.trip.give_back(entries, delay_ms)
        except DatabaseError as error:
            self.trouble.database_failed(error)
        try:
            for shard, group in grouped(entries, lambda held: held.shard).items():
                for due in self.trip.settle(shard, group):
                    self.timers.due(*due)
        except BrokerError as error:
            self.trouble.redis_failed(error)

    def hand_back(self, *, claims: bool) -> None:
        """Hand back entries that wait for busy slots or were paused in the meantime. `claims`: a claim follows."""
        waiting = self.waiting if self.slots.busy or self._taken_over else 0
        if waiting and self.slots.stalled():
            self.release_waiting()
        if (claims or waiting or self.isolation.waiting) and self.controls.refresh():
            self.release_all()
        if self._taken_over or self.isolation.waiting:
            self.go_on()

    def release_waiting(self) -> None:
        """Hand back all entries that wait for a slot, due at once."""
        taken_over = list(self._taken_over)
        self._taken_over.clear()
        self.release([*self.slots.take_back(), *taken_over], 0)

    def release_all(self) -> None:
        """Hand back all entries that have not started, including those that wait to run alone, due at once."""
        self.release_waiting()
        self.release(self.isolation.take_waiting(), 0)


#: Delay in ms before entries come due again after an unexpected error.
UNFORESEEN_MS = 30_000


class Claims:
    """Claims entries from Redis and passes them to the dispatcher. Used by the loop's thread only.

    Note [A lost reply is repeated]
    A claim whose reply was lost may have leased members that the worker does not know. So the next claim from that
    shard has the same request number, and Redis repeats the reply from the journal of this process, except for leases
    that have ended. Every other claim has a new number. Otherwise those members would wait until their leases end,
    and count as taken over.
    """

    def __init__(self, dispatcher: Dispatcher, upkeep: Upkeep) -> None:
        self.dispatcher, self.upkeep = dispatcher, upkeep
        self.timers, self.trouble, self.controls = dispatcher.timers, dispatcher.trouble, dispatcher.controls
        self.limited: set[Shard] = set()
        self._known: dict[Shard, str] = {}  # the epoch of each shard when its layout was last checked
        self._request: dict[Shard, int] = {}
        self._unanswered: set[Shard] = set()

    @property
    def answered(self) -> bool:
        """False while the reply to a claim is missing. See Note [A lost reply is repeated]."""
        return not self._unanswered

    def one_has_ended(self) -> None:
        """Claim again from shards at their limit, because an entry was settled."""
        while self.limited:
            self.timers.put_off(self.limited.pop(), 0.0)

    def claim(self, shard: Shard, limit: int) -> bool:
        """Claim and dispatch up to `limit` due entries; return False if a server failed or the worker ends."""
        controls = self.controls.known
        if shard.queue in controls.queues and shard not in self._unanswered:
            self.timers.put_off(shard, PAUSED_SECONDS)
            return True
        if shard not in self._unanswered:
            self._request[shard] = self._request.get(shard, 0) + 1
        deadline = time.monotonic() + self.dispatcher.keeper.lease_seconds  # before the request: see `held.py`
        try:
            most = self.controls.most(shard) if controls.most else None
            claimed = self.dispatcher.trip.claim(shard, limit, self._request[shard], deadline, most)
        except BrokerError as error:
            self._unanswered.add(shard)
            self.timers.put_off(shard, 0.0)
            self.trouble.redis_failed(error, shard)
            return False
        self._unanswered.discard(shard)
        if self.trouble.until and self.trouble.redis_worked():
            self.upkeep.redis_is_back()
        self.timers.claimed(shard, claimed.head_ms, claimed.now_ms)
        if most is not None and len(claimed.entries) < limit:
            self._note_limited(shard, claimed.now_ms, claimed.head_ms)
        entries = claimed.entries
        self.dispatcher.keeper.add(entries)
        if (claimed.epoch is None or claimed.epoch != self._known.get(shard)) and not self._is_ours(
            shard, claimed.epoch
        ):
            self.dispatcher.release(entries, 0)
            return False
        try:
            return self.dispatcher.dispatch(entries) if entries else True
        except Exception:
            self.dispatcher.release(entries, UNFORESEEN_MS)
            raise

    def _note_limited(self, shard: Shard, now_ms: int, head_ms: int | None) -> None:
        if head_ms is not None and head_ms <= now_ms:
            self.limited.add(shard)
            self.timers.put_off(shard, LIMITED_SECONDS)

    def _is_ours(self, shard: Shard, told: str | None) -> bool:
        """Return False if the shard may belong to another database; checked at first and after a flush."""
        epoch = (told or "").removeprefix("building:")
        if not epoch:
            self.upkeep.rebuild_soon()
            self.timers.flushed(shard)
        if not epoch or told != epoch:
            return True
        try:
            sync.check_layout(self.upkeep.broker)
        except ForeignLayout as error:
            self.upkeep.fail(error)
            return False
        except BrokerError as error:
            self.trouble.redis_failed(error, shard)
            return False
        except DatabaseError as error:
            self.trouble.database_failed(error)
            return False
        self._known[shard] = epoch
        return True
