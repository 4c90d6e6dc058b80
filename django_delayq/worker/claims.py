"""Claims what is due in one shard and has it dispatched. Knows whether the index is still the one that it knew."""

import time

from django.db import DatabaseError

from .. import failpoints, mirror
from ..broker import Shard
from ..exceptions import BrokerError, ForeignLayout
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
    """

    def __init__(self, dispatcher: Dispatcher, upkeep: Upkeep) -> None:
        self.dispatcher, self.upkeep = dispatcher, upkeep
        self.timers, self.trouble, self.controls = dispatcher.timers, dispatcher.trouble, dispatcher.controls
        self._limited: set[Shard] = set()  # where a limit was reached
        self._known: dict[Shard, str] = {}  # the index that each shard had when it was found to be ours
        self._request: dict[Shard, int] = {}
        self._unanswered: set[Shard] = set()

    @property
    def answered(self) -> bool:
        """False while the reply to a claim is missing. See Note [Lost reply]."""
        return not self._unanswered

    def one_has_ended(self) -> None:
        """Something was settled: where a limit was reached, there may be room again."""
        while self._limited:
            self.timers.put_off(self._limited.pop(), 0.0)

    def claim(self, shard: Shard, limit: int) -> bool:
        """Claim and dispatch what is due, up to `limit` entries.

        False where the loop must not go on to the next shard: a server failed, or it ends.
        """
        if self.controls.is_paused(shard.queue) and shard not in self._unanswered:
            self.timers.put_off(shard, PAUSED_SECONDS)
            return True
        if shard not in self._unanswered:
            self._request[shard] = self._request.get(shard, 0) + 1
        failpoints.reach("before_claim")
        deadline = time.monotonic() + self.dispatcher.keeper.lease_seconds  # before it is sent: see `leases.py`
        try:
            most = self.controls.most(shard)
            claimed = self.dispatcher.trip.claim(shard, limit, self._request[shard], deadline, most)
        except BrokerError as error:
            self._unanswered.add(shard)
            self.timers.unanswered(shard)
            self.trouble.redis_failed(error, shard)
            return False
        failpoints.reach("after_claim")
        self._unanswered.discard(shard)
        if self.trouble.until and self.trouble.redis_worked():
            self.upkeep.redis_is_back()
        self.timers.claimed(shard, claimed.now_ms, claimed.head_ms)
        if most is not None and len(claimed.entries) < limit:
            self._note_limited(shard, claimed.now_ms, claimed.head_ms)
        if claimed.damaged:
            self.upkeep.mend_soon(shard)
        entries = claimed.entries
        self.dispatcher.keeper.add(entries)
        if entries:
            self.dispatcher.recorder.refusals.claimed()
        if not self._is_ours(shard, claimed.epoch):
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
            self._limited.add(shard)
            self.timers.put_off(shard, LIMITED_SECONDS)

    def _is_ours(self, shard: Shard, told: str | None) -> bool:
        """Say whether the shard is ours. At first, or after a flush, it may be another database's: then stop."""
        epoch = (told or "").removeprefix("building:")
        if not epoch:
            self.upkeep.rebuild_soon()
            self.timers.flushed(shard)
        if not epoch or told != epoch or epoch == self._known.get(shard):
            return True
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
