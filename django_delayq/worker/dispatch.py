"""From claimed entries to slots, recorder or back to Redis: carries out what the trip has found."""

import time
from collections import deque
from collections.abc import Sequence

from django.db import DatabaseError

from ..exceptions import BrokerError
from ..grouping import grouped
from .controls import TASK_MS, Controls
from .held import AGAIN_MS, Held, Verdicts
from .isolation import Isolation
from .recorder import Recorder
from .slots import Slots
from .trouble import Delays

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

    def capacity(self) -> int:
        """Return how many entries to claim now. Nothing is claimed ahead of those that wait for a free slot."""
        if self._isolating():
            return 0
        if self._taken_over:
            return max(0, self.slots.free - len(self._taken_over))
        return self.slots.capacity()

    def dispatch(self, entries: list[Held]) -> bool:
        """Have claimed entries judged and set each on its way; False where the database failed."""
        verdicts = self.trip.judge(entries)
        if self.controls.hold_any:
            verdicts.hold_back(self.controls.holds, TASK_MS)
        self._carry_out(verdicts)
        at_once = self._sort(verdicts.suspects) if verdicts.suspects else []
        if self._isolating():
            self.release([*at_once, *verdicts.start], 0)
        else:
            if at_once:
                self._begin(at_once)
            self.slots.submit(verdicts.start)
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
        if verdicts.lost:
            self.keeper.lose(verdicts.lost)
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
                self.timers.due(self.trip.settle(shard, group))
        except BrokerError as error:
            self.trouble.redis_failed(error)

    def hand_back(self, *, claims: bool) -> None:
        """Hand back what waits for slots that do not become free, and what people have paused meanwhile.

        `claims`: something is about to be claimed.
        """
        if self.waiting and self.slots.stalled():
            self.release_waiting()
        if (claims or self.waiting or self.isolation.waiting) and self.controls.refresh():
            self.release_all()

    def release_waiting(self) -> None:
        """Hand back at once whatever waits for a slot."""
        taken_over = list(self._taken_over)
        self._taken_over.clear()
        self.release([*self.slots.take_back(), *taken_over], 0)

    def release_all(self) -> None:
        """Hand back at once whatever has not started, also what waits to run alone."""
        self.release_waiting()
        self.release(self.isolation.take_waiting(), 0)
