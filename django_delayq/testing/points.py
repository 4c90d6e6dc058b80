"""The due points in memory: what `Broker` keeps in Redis, by the same rules as its scripts, for one worker."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..backend.memory import Memory, NoRedis, Standing
from ..broker import Claim, Definition, Entry, Settled, Settlement, Shard


@dataclass(slots=True, kw_only=True)
class StandingPoint(Standing):
    """One member, see `broker/lua`."""

    point_ms: int
    generation: int
    attempts: int = 0


class MemoryPoints(Memory[StandingPoint]):
    """An `Index` for a single process."""

    def __init__(self, broker: NoRedis) -> None:
        super().__init__(broker)
        self.config, self.worker = broker.config, broker.worker
        self.now_ms, self.shard_of = broker.now_ms, broker.shard_of

    def turn(self, item: StandingPoint) -> tuple[int, ...]:
        return item.wake_ms, item.point_ms

    # -- what a worker does

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim[Entry]:
        holder, leased = self.lease(shard, limit, lease_ms)
        entries = tuple(
            Entry(member, item.point_ms, item.generation, item.attempts, lapsed=False) for member, item in leased
        )
        return Claim(self.now_ms(), None, "memory", holder, entries)

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        return Settled(self.now_ms(), None, [self._settle(shard, item) for item in settlements])

    def _settle(self, shard: Shard, item: Settlement) -> int:
        standing = self.held((shard, item.member), item.holder)
        if standing is None:
            return 0
        standing.holder = ""
        if item.what not in ("next", "drop"):
            standing.attempts += item.what == "retry"
            standing.wake_ms = self.now_ms() + item.ms
            return 1
        standing.attempts = 0
        if standing.generation > item.generation:
            standing.wake_ms = self.now_ms()
            return 2
        if item.what == "drop":
            del self.members[shard, item.member]
        else:
            standing.point_ms, standing.wake_ms, standing.generation = item.point_ms, item.ms, item.generation
        return 1

    # -- what the mirror does

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, reset: bool = False) -> list[str]:
        return [self._upsert(shard, item) for item in definitions]

    def _upsert(self, shard: Shard, item: Definition) -> str:
        now_ms, standing = self.now_ms(), self.members.get((shard, item.member))
        if standing is None:
            self._put(shard, item.member, item.point_ms, item.wake_ms, item.generation)
            return "NEW"
        if item.generation < standing.generation:
            return "OLD"
        newer = item.generation > standing.generation
        standing.generation = item.generation
        if standing.holder:
            return "LEASED" if newer else "SAME"
        if standing.point_ms <= now_ms or standing.attempts:
            if newer and not standing.attempts and standing.wake_ms > now_ms:
                wake_ms = item.wake_ms if item.point_ms == standing.point_ms else now_ms
                standing.wake_ms = min(standing.wake_ms, max(now_ms, wake_ms))
            return "DUE" if newer else "SAME"
        if newer:
            standing.point_ms, standing.wake_ms = item.point_ms, item.wake_ms
        return "MOVED" if newer else "SAME"

    def _put(self, shard: Shard, member: str, point_ms: int, wake_ms: int, generation: int = 0) -> bool:
        """Add a member that is not there; say whether it was added."""
        if (shard, member) in self.members:
            return False
        self.members[shard, member] = StandingPoint(wake_ms=wake_ms, point_ms=point_ms, generation=generation)
        return True

    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        return [self._remove(shard, member, generation, gone) for member, generation, _ in members]

    def _remove(self, shard: Shard, member: str, generation: int, gone: bool) -> str:
        standing = self.members.get((shard, member))
        if standing is None:
            return "GONE"
        if generation < standing.generation:
            return "OLD"
        result = "LEASED" if standing.holder else "DUE" if standing.point_ms <= self.now_ms() and not gone else ""
        if not result:
            del self.members[shard, member]
        elif not gone:
            standing.generation = generation
        return result or "REMOVED"

    def enqueue(self, shard: Shard, members: Sequence[tuple[str, int, int]]) -> list[bool]:
        return [self._put(shard, *item) for item in members]
