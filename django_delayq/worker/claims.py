"""Claims what is due in one shard and has it dispatched. Knows whether the index is still the one that it knew."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError

from .. import failpoints, mirror
from ..broker import Shard
from ..exceptions import BrokerError, ForeignLayout
from ..kinds import Held, Kind
from .controls import LIMITED_SECONDS, PAUSED_SECONDS
from .dispatch import Dispatcher
from .upkeep import Upkeep

#: After an error that nobody foresaw, its entries come back after so long.
UNFORESEEN_MS = 30_000


class Claims:
    """From Redis to the dispatcher. Used by the loop's thread only.

    Note [Lost reply]
    A claim whose reply was lost may have been executed: its members are leased, and nobody knows it. So the next claim
    from that shard carries the same request number, and Redis repeats the reply from the journal of this process, as
    far as the leases still stand. Every other claim carries a new number. Without the repetition those members would
    wait for the end of their leases, and count as taken over.

    Note [Whose turn]
    The first kind is asked each time, and tells which others have something due. In a shard whose index is a new one
    all are asked: what a rebuild brings back does not say that jobs are due, until a claim of jobs has looked. What is
    due of two kinds shares the room, and a kind that found none comes first the next time.
    """

    def __init__(self, kinds: Sequence[Kind[Any]], dispatcher: Dispatcher, upkeep: Upkeep) -> None:
        self.first, *self.others = kinds
        self.dispatcher, self.upkeep = dispatcher, upkeep
        self.timers, self.trouble, self.controls = dispatcher.timers, dispatcher.trouble, dispatcher.controls
        self._limited: set[Shard] = set()  # where a limit was reached
        self._known: dict[Shard, str] = {}  # the index that each shard had when it was found to be ours
        self._request: dict[tuple[Kind[Any], Shard], int] = {}
        self._unanswered: set[tuple[Kind[Any], Shard]] = set()
        self._owed: dict[Shard, list[Kind[Any]]] = {}  # kinds that found no room there, or whose reply is missing

    @property
    def answered(self) -> bool:
        """False while the reply to a claim is missing. See Note [Lost reply]."""
        return not self._unanswered

    def claim(self, shard: Shard, room: Callable[[], int]) -> bool:
        """Claim and dispatch what is due of each kind, as long as there is room; see Note [Whose turn].

        False where the loop must not go on to the next shard: a server failed, or it ends.
        """
        if self.controls.is_paused(shard.queue) and all(place != shard for _, place in self._unanswered):
            self.timers.put_off(shard, PAUSED_SECONDS)
            return True
        asked, well = [*self._owed.pop(shard, ()), self.first], True
        while asked and well and (most := room()) > 0:
            named = self._claim(asked[0], shard, max(1, most // len(asked)))
            if named is None:
                well = False
            else:
                asked = named if asked[0] is self.first else asked[1:]
        owed = [kind for kind in asked if kind is not self.first]
        if owed:
            self._owed[shard] = owed
        return well

    def one_has_ended(self) -> None:
        """Something was settled: where a limit was reached, there may be room again."""
        while self._limited:
            self.timers.put_off(self._limited.pop(), 0.0)

    def _claim(self, kind: Kind[Any], shard: Shard, limit: int) -> list[Kind[Any]] | None:
        """Claim and dispatch of one kind; return which others have something due there, None where that failed."""
        key = kind, shard
        if key not in self._unanswered:
            self._request[key] = self._request.get(key, 0) + 1
        failpoints.reach("before_claim")
        deadline = time.monotonic() + self.dispatcher.keeper.lease_seconds  # before it is sent: see `leases.py`
        try:
            most = self.controls.most(shard)
            claimed = kind.claim(shard, limit, self._request[key], deadline, most)
        except BrokerError as error:
            self._unanswered.add(key)
            self.timers.unanswered(shard)
            self.trouble.redis_failed(error, shard)
            return None
        failpoints.reach("after_claim")
        self._unanswered.discard(key)
        if self.trouble.until and self.trouble.redis_worked():
            self.upkeep.redis_is_back()
        self.timers.claimed(shard, claimed.now_ms, claimed.head_ms)
        if most is not None and len(claimed.entries) < limit:
            self._note_limited(shard, claimed.now_ms, claimed.head_ms)
        if claimed.damaged:
            self.upkeep.mend_soon(shard)
        entries: list[Held] = claimed.entries
        self.dispatcher.keeper.add(entries)
        if entries:
            self.dispatcher.recorder.refusals.claimed()
        new = self._is_new(shard, claimed.epoch)
        if new is None:
            self.dispatcher.release(entries, 0)
            return None
        try:
            well = self.dispatcher.dispatch(kind, entries) if entries else True
        except Exception:
            self.dispatcher.release(entries, UNFORESEEN_MS)
            raise
        return [other for other in self.others if new or other.name in claimed.also] if well else None

    def _note_limited(self, shard: Shard, now_ms: int, head_ms: int | None) -> None:
        """Something is due and was not given: not before one has ended, or another worker's may have."""
        if head_ms is not None and head_ms <= now_ms:
            self._limited.add(shard)
            self.timers.put_off(shard, LIMITED_SECONDS)

    def _is_new(self, shard: Shard, told: str | None) -> bool | None:
        """Say whether the shard's index is another one than it was; None where it is not ours."""
        epoch = (told or "").removeprefix("building:")
        new = epoch not in ("", self._known.get(shard))
        if not epoch:
            self.upkeep.rebuild_soon()
            self.timers.flushed(shard)
        elif told == epoch and new and not self._is_ours(shard, epoch):
            return None
        return new

    def _is_ours(self, shard: Shard, epoch: str) -> bool:
        """Say whether the shard is ours. At first, or after a flush, it may be another database's: then stop."""
        try:
            mirror.check_layout(self.upkeep.broker)
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
