"""When to claim from each shard: at the due times of known heads, and at regular looks in case a hint was lost.

Claims nothing. Used by the loop's thread only.

Note [All alike]
Every worker claims from every shard whose head it knows to be due, so that no entry waits for a certain worker: the
first one gets it, the others run one read-only script. Workers share the looks at heads, at random times: the more
workers live, the less often each one looks, down to FEWEST_LOOKS times less often than a single worker.
"""

import math
import random
import time
from collections.abc import Sequence

from ..index import Broker, Shard

#: Seconds between two queries of the number of workers and the server's clock: the first interval is short, because a
#: fleet starts at the same time. A worker whose last heartbeat was two and a half heartbeat intervals ago is dead.
WORKERS_FIRST_SECONDS, WORKERS_SECONDS = 2.0, 60.0
DEAD_AFTER_SECONDS = 75.0
#: Maximum factor by which a worker among many looks less often than a single one: the others may serve other queues.
FEWEST_LOOKS = 20
#: Maximum seconds between two claims from a shard.
LONGEST_SECONDS = 3600.0
#: Seconds that entries are left to other workers: longer than all of them need to claim.
STAND_BACK_SECONDS = 1.0
#: Minimum seconds between two of these pauses in a shard: unknown tasks must not keep all workers from other entries.
STAND_BACK_EVERY_SECONDS = 10.0
#: Seconds between two claims from a shard that is being rebuilt, by a single worker; several workers claim less often.
REBUILD_SECONDS = 0.2


class Timers:
    """Knows per shard when to claim. See Note [All alike]."""

    def __init__(self, broker: Broker, shards: Sequence[Shard], *, cap_seconds: float, alone: bool) -> None:
        """`alone`: ignore other workers."""
        self.broker = broker
        self.shards = shards
        self.workers = 1  # live workers, including this one
        self._cap_seconds = cap_seconds
        self._random = random.Random(broker.worker)  # noqa: S311 - spreads workers, and secures nothing
        self._turn = dict.fromkeys(shards, 0.0)  # monotonic second at which to claim
        self._not_before = dict.fromkeys(shards, 0.0)  # monotonic second until which other workers go first
        self._stood_back = dict.fromkeys(shards, -math.inf)  # monotonic second at which that last began
        self._look_at = 0.0
        #: The monotonic second of the next `look`.
        self.ask_at = 0.0
        self._workers_at = math.inf if alone else 0.0
        self._workers_pause = WORKERS_FIRST_SECONDS
        # The server's clock minus the monotonic clock. Each node of a cluster has its own clock.
        self._offsets_ms = dict.fromkeys(shards, 0.0)

    def claimed(self, shard: Shard, head_ms: int | None, now_ms: int) -> None:
        """Note the reply to a claim: the next head, and the server's current time."""
        self._turn[shard] = time.monotonic() + LONGEST_SECONDS
        self.due(shard, head_ms, now_ms)

    def due(self, shard: Shard, due_ms: int | None, now_ms: int = 0) -> None:
        """Note that something comes due at this time of the server's clock, None for never.

        `now_ms` is the server's current time, 0 if not known.
        """
        if now_ms:
            self._offsets_ms[shard] = now_ms - time.monotonic() * 1000
        if due_ms is not None and shard in self._turn:
            head = (due_ms - self._offsets_ms[shard]) / 1000
            self._turn[shard] = min(self._turn[shard], max(head, self._not_before[shard]))

    def stand_back(self, shard: Shard) -> bool:
        """Leave due entries of this shard to the other workers for a moment; return False if that is not possible.

        It is not possible without other workers, or again within STAND_BACK_EVERY_SECONDS.
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
        """Claim from this shard in this many seconds, whatever its head is."""
        self._turn[shard] = max(time.monotonic() + seconds, self._not_before[shard])

    def flushed(self, shard: Shard) -> None:
        """Claim again soon from a shard that is being rebuilt."""
        self.put_off(shard, REBUILD_SECONDS * self._random.uniform(1, self.workers))

    def server_ms(self) -> float:
        """Return the server's clock, in a cluster the latest of its nodes; a value near 0 if no clock is known yet."""
        return time.monotonic() * 1000 + max(self._offsets_ms.values())

    def until(self, now: float) -> float:
        """Return the seconds until the next claim or look."""
        return max(0.0, min(self.ask_at, *self._turn.values()) - now)

    def nothing_now(self, now: float) -> bool:
        """Return True if no claim is due."""
        return all(turn > now for turn in self._turn.values())

    def turns(self, now: float) -> list[Shard]:
        """Return the shards to claim from now, the longest waiting first."""
        return sorted((shard for shard in self.shards if self._turn[shard] <= now), key=self._turn.__getitem__)

    def look(self, now: float) -> list[Shard] | None:
        """Query the number of live workers and the heads of all shards, each if it is due: a hint may have been lost.

        Called from `ask_at` on. Returns the empty shards, which may have been flushed; None if the heads were not due.

        Raises:
            BrokerError: The query stays due.
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

    def _count_workers(self) -> None:
        clocks = self.broker.clocks_ms(self.shards)
        for shard, clock_ms in zip(self.shards, clocks, strict=True):
            self._offsets_ms[shard] = clock_ms - time.monotonic() * 1000
        self.workers = max(1, self.broker.live_workers(since_ms=clocks[0] - int(DEAD_AFTER_SECONDS * 1000)))
