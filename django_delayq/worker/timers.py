"""When to turn to which shard: at the times of known heads, and for regular looks at heads that nobody told of.

And which worker comes first. Claims nothing. Used by the loop's thread only.

Note [Ranks]
Every worker may claim from every shard, so nothing ever waits for a certain worker. But if all of them asked for every
shard and woke for every head, an idle fleet would cost workers x shards. So the live workers that serve a queue have an
order for each shard and for each head, by hash (rendezvous hashing): everybody computes the same order without asking,
and where a worker comes or goes the order of the others stays.
A shard's order says who looks after it for heads that nobody told of: the first one every IDLE_CAP_SECONDS, the second
one now and then in case the first is dead, the others not at all. A head's order says who claims when its time has
come: the first one at once, each next one a little later, and only if the head is still there. Heads have orders of
their own so that the work spreads over the fleet, also where there is a single shard.
Whoever should have come before and did not, because it is dead, busy or stopped, is passed over for a while. So a
worker that dies delays some heads by a fraction of a second, and nobody has to find out that it is dead.
"""

import json
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from ..broker import Broker, Shard
from .held import Due

#: How often to ask who lives, and what time it is; at first sooner, because a fleet starts at the same time. Who has
#: said so for the last time two and a half heartbeats ago is dead.
WORKERS_FIRST_SECONDS, WORKERS_SECONDS = 2.0, 60.0
DEAD_AFTER_SECONDS = 75.0
#: The second worker of a shard looks after it once in so many looks of the first.
SECOND_EVERY = 12
#: A shard is claimed from so often, whatever is known of it.
LONGEST_SECONDS = 3600.0
#: Longer than it takes all other workers to have their turn at what is due; ALL_SECONDS.
STAND_BACK_SECONDS = 1.0
#: It is done so often at most in one shard: what no worker knows must not keep all of them from everything else.
STAND_BACK_EVERY_SECONDS = 10.0
#: The first worker of a shard that was flushed asks so often whether it has been rebuilt, the others less often.
REBUILD_SECONDS = 0.2


class Timers:
    """Knows per shard when this worker's turn is. See Note [Ranks]."""

    def __init__(self, broker: Broker, shards: Sequence[Shard], *, cap_seconds: float, alone: bool) -> None:
        """`alone`: mind no other workers, be the first everywhere."""
        self.broker = broker
        self.shards = shards
        self.ranks = Ranks(broker.worker, shards)
        self._cap_seconds = cap_seconds
        self._turn = dict.fromkeys(shards, 0.0)  # monotonic second at which to claim, or to look before
        self._not_before = dict.fromkeys(shards, 0.0)  # monotonic second up to which to leave it to others
        self._stood_back = dict.fromkeys(shards, -math.inf)  # monotonic second of the last time that it was
        self._before: dict[Shard, tuple[int, list[str]]] = {}  # the head of that turn, and who comes before us there
        self._look_at = 0.0  # monotonic second of the next regular look
        self._looks = 0
        self._workers_at = math.inf if alone else 0.0
        self._workers_pause = WORKERS_FIRST_SECONDS
        self._queues: dict[str, Collection[str] | None] = {}  # of the live workers
        # The server's clock less the monotonic one. Each node of a cluster has a clock of its own.
        self._offsets_ms = dict.fromkeys(shards, 0.0)

    # -- told by others

    def claimed(self, shard: Shard, now_ms: int, head_ms: int | None) -> None:
        """Note what a claim tells: the server's clock and the next head."""
        now = time.monotonic()
        self._offsets_ms[shard] = now_ms - now * 1000
        # What is due already waits for a free worker, not for the first one.
        due = head_ms is not None and head_ms <= now_ms
        self._claim_at(shard, now if due else now + LONGEST_SECONDS)
        if head_ms is not None and not due:
            self.due_at_ms(shard, head_ms)

    def due_at_ms(self, shard: Shard, server_ms: int) -> None:
        """Note that something comes due at this time of the server's."""
        if shard not in self._turn:
            return
        head = (server_ms - self._offsets_ms[shard]) / 1000
        if head >= self._turn[shard]:
            return
        before = self.ranks.before(shard, server_ms, time.monotonic()) if self.ranks.workers else []
        at = max(head + len(before) * self.ranks.step_seconds, self._not_before[shard])
        if at < self._turn[shard]:
            self._turn[shard] = at
            self._before[shard] = server_ms, before

    def due(self, dues: Iterable[Due]) -> None:
        """Note when something comes due."""
        for shard, due_ms, now_ms in dues:
            if now_ms:
                self._offsets_ms[shard] = now_ms - time.monotonic() * 1000
            if due_ms is not None:
                self.due_at_ms(shard, due_ms)

    def stand_back(self, shard: Shard) -> bool:
        """Leave what is due in this shard to the other workers for a moment, if there are any; say whether this is so.

        Not again for STAND_BACK_EVERY_SECONDS.
        """
        now = time.monotonic()
        since = now - self._stood_back.get(shard, -math.inf)
        known = shard in self._turn and self.ranks.others(shard)
        if not known or STAND_BACK_SECONDS <= since < STAND_BACK_EVERY_SECONDS:
            return False
        if since >= STAND_BACK_EVERY_SECONDS:
            self._stood_back[shard] = now
            self._not_before[shard] = now + STAND_BACK_SECONDS
        self._turn[shard] = max(self._turn[shard], self._not_before[shard])
        return True

    def put_off(self, shard: Shard, seconds: float) -> None:
        """Note that nothing can be claimed there now: claim in so many seconds, whatever the head is."""
        self._claim_at(shard, time.monotonic() + seconds)

    def unanswered(self, shard: Shard) -> None:
        """Note that a claim's reply was lost: it is to be asked for again, whatever the head is."""
        self._claim_at(shard, time.monotonic())

    def flushed(self, shard: Shard) -> None:
        """Note that the shard is being rebuilt: claim from it again soon."""
        self._claim_at(shard, time.monotonic() + REBUILD_SECONDS * (1 + self.ranks.rank(shard)))

    # -- asked by the loop

    def server_ms(self) -> float:
        """Return the server's clock, in a cluster that of the node which is ahead; 0 or so before anything is known."""
        return time.monotonic() * 1000 + max(self._offsets_ms.values())

    def until(self, now: float) -> float:
        """Return the seconds until there is something to do."""
        return max(0.0, min(self._look_at, self._workers_at, *self._turn.values()) - now)

    def nothing_now(self, now: float) -> bool:
        """Say whether it is no shard's turn."""
        return all(turn > now for turn in self._turn.values())

    def turns(self, now: float) -> list[Shard]:
        """Return the shards to claim from now, the longest waiting first.

        Where other workers come first, asks Redis before whether the head is still due: one plain read per shard.

        Raises:
            BrokerError: Nothing is known; all stands as it was.
        """
        shards = [shard for shard in self.shards if self._turn[shard] <= now]
        doubtful = [shard for shard in shards if self._before.get(shard, (0, []))[1]]
        if doubtful:
            for shard, head_ms in zip(doubtful, self.broker.heads(doubtful), strict=True):
                self._verify(shard, head_ms, now)
            shards = [shard for shard in shards if self._turn[shard] <= now]
        return sorted(shards, key=self._turn.__getitem__)

    def look(self, now: float) -> list[Shard] | None:
        """Where it is time, ask who lives, and for the heads of this worker's shards: a hint may have been lost.

        Returns those that are empty, perhaps because Redis was flushed; None where there was nothing to ask.

        Raises:
            BrokerError: It is still time.
        """
        if now >= self._workers_at:
            self._ask_who_lives()
            self._workers_at = now + self._workers_pause
            self._workers_pause = min(2 * self._workers_pause, WORKERS_SECONDS)
        if now < self._look_at:
            return None
        long_look = self._looks % SECOND_EVERY == SECOND_EVERY - 1
        asked = [shard for shard in self.shards if self.ranks.rank(shard) <= long_look]
        heads = self.broker.heads(asked)
        self._look_at = now + self._cap_seconds
        self._looks += 1
        for shard, head_ms in zip(asked, heads, strict=True):
            if head_ms is not None:
                self.due_at_ms(shard, head_ms)
        return [shard for shard, head_ms in zip(asked, heads, strict=True) if head_ms is None] if asked else None

    # -- inside

    def _claim_at(self, shard: Shard, when: float) -> None:
        """Claim then, whoever comes first."""
        self._turn[shard] = max(when, self._not_before[shard])
        self._before.pop(shard, None)

    def _verify(self, shard: Shard, head_ms: int | None, now: float) -> None:
        """Take over a head as it stands at our turn. If it is the one we came for, those before us did not come."""
        expected_ms, before = self._before[shard]
        self._claim_at(shard, now + LONGEST_SECONDS)
        if head_ms == expected_ms:
            self.ranks.did_not_come(before, now)
            self._claim_at(shard, now)
        elif head_ms is not None:
            self.due_at_ms(shard, head_ms)

    def _ask_who_lives(self) -> None:
        clocks = self.broker.clocks_ms(self.shards)
        for shard, clock_ms in zip(self.shards, clocks, strict=True):
            self._offsets_ms[shard] = clock_ms - time.monotonic() * 1000
        names = self.broker.live_workers(since_ms=clocks[0] - int(DEAD_AFTER_SECONDS * 1000))
        unknown = [name for name in names if self._queues.get(name) is None]
        details = self.broker.details_of(unknown)
        self._queues = {name: self._queues.get(name) or _queues(details.get(name)) for name in names}
        self.ranks.update(self._queues)


def _queues(details: str | None) -> frozenset[str] | None:
    """Return the queues that a worker says it serves, or None where it does not say."""
    try:
        return frozenset(str(queue) for queue in json.loads(details or "")["queues"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


#: Between one worker and the next in the order of a head: so much, but the last one comes within ALL_SECONDS.
STEP_SECONDS = 0.1
ALL_SECONDS = 0.5
#: How long a worker that did not come is passed over.
ABSENT_SECONDS = 30.0


def weight(worker: str, shard: Shard, head_ms: int | None) -> bytes:
    """Return what orders the workers at a head, or at a shard without one: the greatest is the first."""
    return blake2b(f"{worker} {shard} {head_ms}".encode(), digest_size=8).digest()


class Ranks:
    """The ranks of one worker: 0 where it is the first. Until it is told of others it is the first everywhere."""

    def __init__(self, worker: str, shards: Sequence[Shard]) -> None:
        self.worker = worker
        self.shards = shards
        self.step_seconds = STEP_SECONDS
        self.workers: Mapping[str, Collection[str] | None] = {}
        self._ranks = dict.fromkeys(shards, 0)
        self._others = dict.fromkeys(shards, 0)
        self._absent: dict[str, float] = {}  # until which monotonic second

    def update(self, workers: Mapping[str, Collection[str] | None]) -> None:
        """Take over who lives, and which queues each serves; None where that is not known, so it may be all."""
        others = {name: queues for name, queues in workers.items() if name != self.worker}
        if others == self.workers:
            return
        self.workers = others
        self._absent = {name: until for name, until in self._absent.items() if name in others}
        self.step_seconds = min(STEP_SECONDS, ALL_SECONDS / (len(others) + 1))
        self._ranks = {shard: len(self._before(shard, None, others)) for shard in self.shards}
        self._others = {shard: sum(self._serves(name, shard.queue) for name in others) for shard in self.shards}

    def rank(self, shard: Shard) -> int:
        """Return how many workers come before this one in looking after a shard."""
        return self._ranks[shard]

    def others(self, shard: Shard) -> int:
        """Return how many other workers serve a shard."""
        return self._others[shard]

    def before(self, shard: Shard, head_ms: int, now: float) -> list[str]:
        """Return the workers that come before this one at a head."""
        present = (name for name in self.workers if self._absent.get(name, 0.0) <= now)
        return self._before(shard, head_ms, present)

    def did_not_come(self, workers: Iterable[str], now: float) -> None:
        """Pass these over for a while: a head was still there when it was this worker's turn."""
        self._absent.update(dict.fromkeys(workers, now + ABSENT_SECONDS))

    def _before(self, shard: Shard, head_ms: int | None, others: Iterable[str]) -> list[str]:
        serving = (name for name in others if self._serves(name, shard.queue))
        mine = weight(self.worker, shard, head_ms)
        return [name for name in serving if weight(name, shard, head_ms) > mine]

    def _serves(self, name: str, queue: str) -> bool:
        queues = self.workers[name]
        return queues is None or queue in queues
