"""From claimed entries to slots, recorder or back to Redis: carries out what the trip has found.

Note [Held back]
The truth is a row (`models/control.py`), so a flush of Redis forgets nothing. A worker reads the rows before it claims,
where what it knows is older than FRESH_SECONDS, and while something waits for its start. A paused queue is not claimed
from: its members stay where they are, but for those of a claim whose reply was lost, which is repeated. What was
claimed already and has not started is handed back. Tasks are known after the claim only, so entries of a paused one are
handed back for TASK_MS, again and again: for many of them, better pause their queue. A limit goes with each claim, and
the script holds to it. While the database does not answer, what was known last holds.
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
from .isolation import Isolation
from .recorder import Recorder
from .slots import Slots
from .trouble import Backoff, Delays
from .upkeep import Upkeep

logger = logging.getLogger("django_delayq.worker")

#: What is known may be so old.
FRESH_SECONDS = 0.5
#: What is due in a paused queue is looked at so often; so is one whose limit is reached, unless one of ours ends.
PAUSED_SECONDS, LIMITED_SECONDS = 1.0, 0.5
#: What was claimed and must not start comes due again after so long.
TASK_MS = 5_000


class Controls:
    """See Note [Held back]."""

    def __init__(self, config: Config, *, read: Callable[[], HeldBack] = ledger.read_held_back) -> None:
        self._config, self._read = config, read
        #: What holds, as far as it is known.
        self.known = HeldBack()
        #: The instant at which a queue or a task was last known as paused, by its name.
        self.paused_at: dict[str, datetime] = {}
        self._read_at = -math.inf
        self._backoff = Backoff()

    def refresh(self) -> bool:
        """Read what holds now, where that is due; say whether something is paused that was not before."""
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
        """Say whether this entry must not start: what was claimed before its queue was paused, or of a paused task."""
        task = held.task.module_path if held.task is not None else None
        return held.shard.queue in self.known.queues or task in self.known.tasks

    def most(self, shard: Shard) -> int | None:
        """Return how many leases may stand in a shard whose queue has a limit."""
        most = self.known.most.get(shard.queue)
        return most and max(1, most // self._config.shard_count(shard.queue))


UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS = 1_000, 600_000
#: What was offered to the other workers so short a time ago, none of them knows.
OFFER_SECONDS = 10.0


class Dispatcher:
    """Used by the loop's thread only."""

    def __init__(self, recorder: Recorder, slots: Slots, controls: Controls, *, max_reclaims: int) -> None:
        """The recorder's timers are told when what was handed back comes due, and that others should have it first."""
        self.recorder, self.slots, self.controls = recorder, slots, controls
        self.trip, self.keeper = recorder.trip, recorder.keeper
        self.trouble, self.timers = recorder.trouble, recorder.timers
        self.isolation = Isolation(recorder, max_reclaims=max_reclaims)
        self._taken_over: deque[Held] = deque()  # to start as slots become free, see `go_on`
        self._unknown = Delays(UNKNOWN_TASK_FIRST_MS, UNKNOWN_TASK_MOST_MS)
        self._offered: dict[str, float] = {}  # member -> monotonic second, the oldest first

    @property
    def waiting(self) -> int:
        """Entries that wait for a slot; those that wait to run alone do not count."""
        return self.slots.waiting + len(self._taken_over)

    def _isolating(self) -> bool:
        return bool(self.isolation.waiting or self.isolation.alone) and self.isolation.active()

    def room(self, max_runs: int | None = None) -> int:
        """Return how many entries to claim now: a batch at most, and no more than `max_runs` leaves.

        Nothing is claimed ahead of those that wait for a free slot, nor while the recorder is full.
        """
        if self.recorder.full or self._isolating():
            return 0
        free = self.slots.free - len(self._taken_over) if self._taken_over else self.slots.capacity()
        left = free if max_runs is None else max_runs - self.recorder.runs - len(self.keeper)
        return max(0, min(free, left, self.keeper.batch_size))

    def dispatch(self, entries: list[Held]) -> bool:
        """Have claimed entries judged and set each on its way; False where they could not be read."""
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
        """Do all but the executions, and note whether the database took part in it."""
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
        """Hand back what this code does not know: first to the other workers at once, then with a growing delay.

        Without the offer, the worker that has handed it back would wake with it, and might take it again and again
        before the one that knows it. It is made now and then only, since whatever
        else is due there waits meanwhile: see `Timers.stand_back`.
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

    # -- suspects

    def _sort(self, suspects: Sequence[Held]) -> list[Held]:
        """Return the suspects to be started at once; the others wait for their turn. See `isolation.py`, Note [Alone].

        A take-over begins only when a slot is free for it, so that what is counted has been executed.
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
        """Start those whose turn has come meanwhile."""
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
            verdicts = self.trip.judge([held])  # anew, since it may have waited for long
            self._carry_out(verdicts)
            self._begin(verdicts.suspects)
            self.slots.submit(verdicts.start)
        elif self.isolation.seconds_left() == 0:
            self._release_each(
                [(refused, self.isolation.delay_ms(refused)) for refused in self.isolation.take_waiting()]
            )

    def _begin(self, suspects: Sequence[Held]) -> None:
        """Start what another worker may have executed before, as soon as the ledger says so."""
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

    # -- handing back

    def _release_each(self, entries: Sequence[tuple[Held, int]]) -> None:
        for delay_ms, group in grouped(entries, lambda item: item[1]).items():
            self.release([held for held, _ in group], delay_ms)

    def release(self, entries: Sequence[Held], delay_ms: int) -> None:
        """Hand entries back unstarted. Where Redis does not answer, their leases end by themselves."""
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
        """Hand back what waits for slots that do not become free, and what people have paused meanwhile.

        `claims`: something is about to be claimed.
        """
        waiting = self.waiting if self.slots.busy or self._taken_over else 0
        if waiting and self.slots.stalled():
            self.release_waiting()
        if (claims or waiting or self.isolation.waiting) and self.controls.refresh():
            self.release_all()
        if self._taken_over or self.isolation.waiting:
            self.go_on()

    def release_waiting(self) -> None:
        """Hand back at once whatever waits for a slot."""
        taken_over = list(self._taken_over)
        self._taken_over.clear()
        self.release([*self.slots.take_back(), *taken_over], 0)

    def release_all(self) -> None:
        """Hand back at once whatever has not started, also what waits to run alone."""
        self.release_waiting()
        self.release(self.isolation.take_waiting(), 0)


#: After an error that nobody foresaw, its entries come back after so long.
UNFORESEEN_MS = 30_000


class Claims:
    """From Redis to the dispatcher. Used by the loop's thread only.

    Note [Lost reply]
    A claim whose reply was lost may have been executed: its members are leased, and nobody knows it. So the next claim
    from that shard carries the same request number, and Redis repeats the reply from the journal of this process, as
    far as the leases still stand. Every other claim carries a new number. Without the repetition those members would
    wait for the end of their leases, and count as taken over.
    """

    def __init__(self, dispatcher: Dispatcher, upkeep: Upkeep) -> None:
        self.dispatcher, self.upkeep = dispatcher, upkeep
        self.timers, self.trouble, self.controls = dispatcher.timers, dispatcher.trouble, dispatcher.controls
        #: Where a limit was reached.
        self.limited: set[Shard] = set()
        self._known: dict[Shard, str] = {}  # the index that each shard had when it was found to be ours
        self._request: dict[Shard, int] = {}
        self._unanswered: set[Shard] = set()

    @property
    def answered(self) -> bool:
        """False while the reply to a claim is missing. See Note [Lost reply]."""
        return not self._unanswered

    def one_has_ended(self) -> None:
        """Something was settled: where a limit was reached, there may be room again."""
        while self.limited:
            self.timers.put_off(self.limited.pop(), 0.0)

    def claim(self, shard: Shard, limit: int) -> bool:
        """Claim and dispatch what is due, up to `limit` entries.

        False where the loop must not go on to the next shard: a server failed, or it ends.
        """
        controls = self.controls.known
        if shard.queue in controls.queues and shard not in self._unanswered:
            self.timers.put_off(shard, PAUSED_SECONDS)
            return True
        if shard not in self._unanswered:
            self._request[shard] = self._request.get(shard, 0) + 1
        deadline = time.monotonic() + self.dispatcher.keeper.lease_seconds  # before it is sent: see `held.py`
        try:
            most = self.controls.most(shard) if controls.most else None
            claimed = self.dispatcher.trip.claim(shard, limit, self._request[shard], deadline, most)
        except BrokerError as error:
            self._unanswered.add(shard)
            self.timers.put_off(shard, 0.0)  # to ask for it again, whatever the head is
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
        """Something is due and was not given: not before one has ended, or another worker's may have."""
        if head_ms is not None and head_ms <= now_ms:
            self.limited.add(shard)
            self.timers.put_off(shard, LIMITED_SECONDS)

    def _is_ours(self, shard: Shard, told: str | None) -> bool:
        """Say whether the shard is ours. At first, or after a flush, it may be another database's: then stop."""
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
