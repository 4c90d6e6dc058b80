"""The index of points in memory: what `Broker` keeps in Redis, by the same rules as its scripts, for one worker."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..backend.memory import NoRedis
from ..broker import Claim, Definition, Entry, Settled, Settlement, Shard
from .clock import FrozenClock

WORKER = "test"


@dataclass(slots=True)
class Standing:
    """One member, see `broker/lua`. `fence` is empty while nobody has it."""

    point_ms: int
    wake_ms: int
    generation: int
    attempts: int = 0
    fence: str = ""


class MemoryBroker(NoRedis):
    """What a worker and the mirror of a single process need; everything else is refused."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__(WORKER)
        self.clock = clock
        self.members: dict[tuple[Shard, str], Standing] = {}
        self._fence = 0

    def now_ms(self) -> int:
        """Return the frozen instant."""
        return self.clock.now_ms

    def next_fence(self) -> str:
        """Return what a lease is called that begins now."""
        self._fence = max(self._fence + 1, self.clock.now_ms * 1024)
        return f"{self._fence}.{WORKER}"

    # -- what a worker does

    def head(self) -> tuple[Shard, str] | None:
        """Return what comes due first of what nobody has."""
        free = [key for key, standing in self.members.items() if not standing.fence]
        return min(free, key=lambda key: (self.members[key].wake_ms, self.members[key].point_ms), default=None)

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int) -> Claim:
        """Lease the first `limit` members that nobody has; see `Broker.claim`. Whether they are due is the caller's."""
        free = [(standing.wake_ms, standing.point_ms, member) for member, standing in self._free(shard)]
        fence, entries = self.next_fence(), []
        for _, _, member in sorted(free)[:limit]:
            standing = self.members[shard, member]
            standing.fence = fence
            entries.append(Entry(member, standing.point_ms, standing.generation, standing.attempts, lapsed=False))
        return Claim(self.now_ms(), None, "memory", fence, fence, tuple(entries))

    def _free(self, shard: Shard) -> list[tuple[str, Standing]]:
        return [(member, item) for (where, member), item in self.members.items() if where == shard and not item.fence]

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]:
        """Return those that are no longer the caller's."""
        return {member for member, fence in leases if self._held(shard, member, fence) is None}

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        """Do as settle.lua does."""
        return Settled(self.now_ms(), None, [self._settle(shard, item) for item in settlements])

    def _settle(self, shard: Shard, item: Settlement) -> int:
        standing = self._held(shard, item.member, item.holder)
        if standing is None:
            return 0
        standing.fence = ""
        if item.what not in ("next", "drop"):
            standing.attempts += item.what == "retry"
            standing.wake_ms = self.clock.now_ms + item.ms
            return 1
        standing.attempts = 0
        if standing.generation > item.generation:
            standing.wake_ms = self.clock.now_ms
            return 2
        if item.what == "drop":
            del self.members[shard, item.member]
        else:
            standing.point_ms, standing.wake_ms, standing.generation = item.point_ms, item.ms, item.generation
        return 1

    def _held(self, shard: Shard, member: str, fence: str) -> Standing | None:
        standing = self.members.get((shard, member))
        return standing if standing is not None and standing.fence == fence else None

    # -- what the mirror does

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, reset: bool = False) -> list[str]:
        """Do as upsert.lua does."""
        return [self._upsert(shard, item) for item in definitions]

    def _upsert(self, shard: Shard, item: Definition) -> str:
        standing = self.members.get((shard, item.member))
        if standing is None:
            self.members[shard, item.member] = Standing(item.point_ms, item.wake_ms, item.generation)
            return "NEW"
        if item.generation < standing.generation:
            return "OLD"
        newer = item.generation > standing.generation
        standing.generation = item.generation
        if standing.fence:
            return "LEASED" if newer else "SAME"
        if standing.point_ms <= self.clock.now_ms or standing.attempts:
            if newer and not standing.attempts and standing.wake_ms > self.clock.now_ms:
                wake_ms = item.wake_ms if item.point_ms == standing.point_ms else self.clock.now_ms
                standing.wake_ms = min(standing.wake_ms, max(self.clock.now_ms, wake_ms))
            return "DUE" if newer else "SAME"
        if newer:
            standing.point_ms, standing.wake_ms = item.point_ms, item.wake_ms
        return "MOVED" if newer else "SAME"

    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        """Do as remove.lua does."""
        return [self._remove(shard, member, generation, gone) for member, generation, _ in members]

    def _remove(self, shard: Shard, member: str, generation: int, gone: bool) -> str:
        standing = self.members.get((shard, member))
        if standing is None:
            return "GONE"
        if generation < standing.generation:
            return "OLD"
        result = "LEASED" if standing.fence else "DUE" if standing.point_ms <= self.clock.now_ms and not gone else ""
        if not result:
            del self.members[shard, member]
        elif not gone:
            standing.generation = generation
        return result or "REMOVED"

    def enqueue(self, shard: Shard, members: Sequence[tuple[str, int, int]]) -> list[bool]:
        """Do as enqueue.lua does."""
        added = []
        for member, point_ms, wake_ms in members:
            added.append((shard, member) not in self.members)
            self.members.setdefault((shard, member), Standing(point_ms, wake_ms, 0))
        return added
