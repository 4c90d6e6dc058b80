"""When to claim from each shard: at the due times of known heads, and at regular looks in case a hint was lost.

Every worker claims from all shards of its queues. The more workers live, the less often each looks, at random times.
"""

import math
import random
import time
from collections.abc import Sequence

from ..index import Broker, Shard

#: Seconds between two queries of live workers and the server's clock; short at first, while other workers start too.
WORKERS_FIRST_SECONDS, WORKERS_SECONDS = 2.0, 60.0
#: Age of the last heartbeat of a dead worker, in seconds.
DEAD_AFTER_SECONDS = 75.0
#: Maximum factor by which other live workers lengthen the time between looks; limited, as they may serve other queues.
FEWEST_LOOKS = 20
#: Maximum seconds between two claims from a shard.
LONGEST_SECONDS = 3600.0
#: Seconds between two claims from a shard that is being rebuilt, by a single worker; several workers claim less often.
REBUILD_SECONDS = 0.2


class Timers:
    """Knows per shard when to claim. Used by the loop's thread only."""

    def __init__(self, broker: Broker, shards: Sequence[Shard], *, cap_seconds: float, alone: bool) -> None:
        self.broker, self.shards = broker, shards
        self.workers = 1  # live workers, including this one
        self._cap_seconds = cap_seconds
        self._random = random.Random(broker.worker)  # noqa: S311 - spreads workers, and secures nothing
        self._turn = dict.fromkeys(shards, 0.0)  # monotonic second at which to claim
        self._look_at = 0.0
        #: The monotonic second of the next `look`.
        self.ask_at = 0.0
        self._workers_at = math.inf if alone else 0.0
        self._workers_pause = WORKERS_FIRST_SECONDS
        # The server's clock minus the monotonic clock. Each node of a cluster has its own clock.
        self._offsets_ms = dict.fromkeys(shards, 0.0)

    def note_due(self, shard: Shard, due_ms: int | None, now_ms: int = 0, *, known: bool = False) -> None:
        """Note a due time of the server's clock, None for never. `known`: nothing comes due before it."""
        now = time.monotonic()
        if known:
            self._turn[shard] = now + LONGEST_SECONDS
        if now_ms:
            self._offsets_ms[shard] = now_ms - now * 1000
        if due_ms is not None and shard in self._turn:
            self._turn[shard] = min(self._turn[shard], (due_ms - self._offsets_ms[shard]) / 1000)

    def put_off(self, shard: Shard, seconds: float) -> None:
        """Claim from this shard in this many seconds, whatever its head is."""
        self._turn[shard] = time.monotonic() + seconds

    def note_flush(self, shard: Shard) -> None:
        """Claim again soon from a shard that is being rebuilt."""
        self.put_off(shard, REBUILD_SECONDS * self._random.uniform(1, self.workers))

    def get_server_ms(self) -> float:
        """Return the server's clock, in a cluster the latest of its nodes; a value near 0 if no clock is known yet."""
        return time.monotonic() * 1000 + max(self._offsets_ms.values())

    def get_seconds_left(self, now: float) -> float:
        """Return the seconds until the next claim or look."""
        return max(0.0, min(self.ask_at, *self._turn.values()) - now)

    def is_idle(self, now: float) -> bool:
        """Return True if no claim is due."""
        return all(turn > now for turn in self._turn.values())

    def list_turns(self, now: float) -> list[Shard]:
        """Return the shards to claim from now, the longest waiting first."""
        return sorted((shard for shard in self.shards if self._turn[shard] <= now), key=self._turn.__getitem__)

    def look(self, now: float) -> list[Shard] | None:
        """Query live workers and heads, each if due. Returns the empty shards, None if the heads were not due."""
        if now >= self._workers_at:
            self._count_workers()
            self._workers_at = now + self._workers_pause
            self._workers_pause = min(4 * self._workers_pause, WORKERS_SECONDS)
            self.ask_at = min(self._look_at, self._workers_at)
        if now < self._look_at:
            return None
        heads = self.broker.read_heads(self.shards)
        fewer = min(self.workers, FEWEST_LOOKS)
        self._look_at = now + self._cap_seconds * fewer * self._random.uniform(0.8, 1.0)
        self.ask_at = min(self._look_at, self._workers_at)
        for shard, head_ms in zip(self.shards, heads, strict=True):
            self.note_due(shard, head_ms)
        return [shard for shard, head_ms in zip(self.shards, heads, strict=True) if head_ms is None]

    def _count_workers(self) -> None:
        clocks = self.broker.read_clocks_ms(self.shards)
        for shard, clock_ms in zip(self.shards, clocks, strict=True):
            self._offsets_ms[shard] = clock_ms - time.monotonic() * 1000
        self.workers = max(1, self.broker.count_live_workers(since_ms=clocks[0] - int(DEAD_AFTER_SECONDS * 1000)))
