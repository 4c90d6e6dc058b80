"""When to turn to which shard: at the times of known heads, and for regular looks at heads that no hint told of.

Claims nothing. Used by the loop's thread only.

Note [All alike]
Every worker claims from every shard when it knows that its head is due, so that nothing ever waits for a certain
worker: the first one gets it, the others find nothing, which costs each one script that only reads. The looks at heads
are shared: the more workers live, the less often each of them looks, at random times, so that all together look as
often as a single one, up to FEWEST_LOOKS.
"""

import math
import random
import time
from collections.abc import Sequence

from ..index import Broker, Shard

#: How often to ask how many live, and what time it is; at first sooner, because a fleet starts at the same time. A
#: worker that has said so for the last time two and a half heartbeats ago is dead.
WORKERS_FIRST_SECONDS, WORKERS_SECONDS = 2.0, 60.0
DEAD_AFTER_SECONDS = 75.0
#: A worker among many looks this many times less often than a single one, not less: the others may serve other queues.
FEWEST_LOOKS = 20
#: A shard is claimed from so often, whatever is known of it.
LONGEST_SECONDS = 3600.0
#: Longer than it takes all other workers to claim what is due.
STAND_BACK_SECONDS = 1.0
#: It is done so often at most in one shard: what no worker knows must not keep all of them from everything else.
STAND_BACK_EVERY_SECONDS = 10.0
#: A single worker asks a shard that was flushed so often whether it has been rebuilt; each of several less often.
REBUILD_SECONDS = 0.2


class Timers:
    """Knows per shard when to claim. See Note [All alike]."""

    def __init__(self, broker: Broker, shards: Sequence[Shard], *, cap_seconds: float, alone: bool) -> None:
        """`alone`: mind no other workers."""
        self.broker = broker
        self.shards = shards
        self.workers = 1  # that live, this one too
        self._cap_seconds = cap_seconds
        self._random = random.Random(broker.worker)  # noqa: S311 - spreads workers, and secures nothing
        self._turn = dict.fromkeys(shards, 0.0)  # monotonic second at which to claim
        self._not_before = dict.fromkeys(shards, 0.0)  # monotonic second up to which to leave it to others
        self._stood_back = dict.fromkeys(shards, -math.inf)  # monotonic second of the last time that it was
        self._look_at = 0.0  # monotonic second of the next regular look
        #: The monotonic second from which on `look` has something to ask.
        self.ask_at = 0.0
        self._workers_at = math.inf if alone else 0.0
        self._workers_pause = WORKERS_FIRST_SECONDS
        # The server's clock less the monotonic one. Each node of a cluster has a clock of its own.
        self._offsets_ms = dict.fromkeys(shards, 0.0)

    # -- told by others

    def claimed(self, shard: Shard, head_ms: int | None, now_ms: int) -> None:
        """Note what a claim tells: the next head, and what the server's clock says now."""
        self._turn[shard] = time.monotonic() + LONGEST_SECONDS
        self.due(shard, head_ms, now_ms)

    def due(self, shard: Shard, due_ms: int | None, now_ms: int = 0) -> None:
        """Note that something comes due at this time of the server's, None for never.

        `now_ms`: what the server's clock says now, 0 where that is not known.
        """
        if now_ms:
            self._offsets_ms[shard] = now_ms - time.monotonic() * 1000
        if due_ms is not None and shard in self._turn:
            head = (due_ms - self._offsets_ms[shard]) / 1000
            self._turn[shard] = min(self._turn[shard], max(head, self._not_before[shard]))

    def stand_back(self, shard: Shard) -> bool:
        """Leave what is due in this shard to the other workers for a moment, if there are any; say whether this is so.

        Not again for STAND_BACK_EVERY_SECONDS.
        """
        now = time.monotonic()
        since = now - self._stood_back.get(shard, -math.inf)
        if shard not in self._turn or self.workers == 1 or STAND_BACK_SECONDS <= since < STAND_BACK_EVERY_SECONDS:
            return False
        if since >= STAND_BACK_EVERY_SECONDS:
            self._stood_back[shard] = now
            self._not_before[shard] = now + STAND_BACK_SECONDS
        self._turn[shard] = max(self._turn[shard], self._not_before[shard])
        return True

    def put_off(self, shard: Shard, seconds: float) -> None:
        """Note that nothing can be claimed there now: claim in so many seconds, whatever the head is."""
        self._turn[shard] = max(time.monotonic() + seconds, self._not_before[shard])

    def flushed(self, shard: Shard) -> None:
        """Note that the shard is being rebuilt: claim from it again soon."""
        self.put_off(shard, REBUILD_SECONDS * self._random.uniform(1, self.workers))

    # -- asked by the loop

    def server_ms(self) -> float:
        """Return the server's clock, in a cluster that of the node which is ahead; 0 or so before anything is known."""
        return time.monotonic() * 1000 + max(self._offsets_ms.values())

    def until(self, now: float) -> float:
        """Return the seconds until there is something to do."""
        return max(0.0, min(self.ask_at, *self._turn.values()) - now)

    def nothing_now(self, now: float) -> bool:
        """Say whether it is no shard's turn."""
        return all(turn > now for turn in self._turn.values())

    def turns(self, now: float) -> list[Shard]:
        """Return the shards to claim from now, the longest waiting first."""
        return sorted((shard for shard in self.shards if self._turn[shard] <= now), key=self._turn.__getitem__)

    def look(self, now: float) -> list[Shard] | None:
        """Ask how many workers live, and for the heads of all shards, as far as it is time: a hint may have been lost.

        Called from `ask_at` on. Returns the shards that are empty, perhaps because Redis was flushed; None where the
        heads were not asked for.

        Raises:
            BrokerError: It is still time.
        """
        if now >= self._workers_at:
            self._count_workers()
            self._workers_at = now + self._workers_pause
            self._workers_pause = min(4 * self._workers_pause, WORKERS_SECONDS)
            self.ask_at = min(self._look_at, self._workers_at)
        if now < self._look_at:
            return None
        heads = self.broker.heads(self.shards)
        fewer = min(self.workers, FEWEST_LOOKS)
        self._look_at = now + self._cap_seconds * fewer * self._random.uniform(0.8, 1.0)
        self.ask_at = min(self._look_at, self._workers_at)
        for shard, head_ms in zip(self.shards, heads, strict=True):
            self.due(shard, head_ms)
        return [shard for shard, head_ms in zip(self.shards, heads, strict=True) if head_ms is None]

    # -- inside

    def _count_workers(self) -> None:
        clocks = self.broker.clocks_ms(self.shards)
        for shard, clock_ms in zip(self.shards, clocks, strict=True):
            self._offsets_ms[shard] = clock_ms - time.monotonic() * 1000
        self.workers = max(1, self.broker.live_workers(since_ms=clocks[0] - int(DEAD_AFTER_SECONDS * 1000)))
