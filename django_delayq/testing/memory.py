"""The index in memory, by the same rules as the scripts of `Broker`, for one worker in a test.

The tests of the scripts compare both. Not emulated: lost replies, expiring leases, limits, and the division of a claim
between points and jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import conf
from ..index import Broker, Claim, Definition, Entry, Settled, Settlement, Shard
from ..index.keys import Mode
from ..ledger.chain import member_of_run
from ..ledger.rows import AnyRun
from ..recurrence import to_ms
from ..recurrence.point import utcnow

#: Milliseconds of waiting that one step of priority is worth, as in the scripts.
STEP_MS = 60_000
Key = tuple[Shard, str]


@dataclass(slots=True, kw_only=True)
class Standing:
    """One member. It waits until `wake_ms`, which is the end of the lease while it has a `holder`."""

    wake_ms: int
    point_ms: int
    generation: int
    priority: int = 0
    attempts: int = 0
    holder: str = ""


class MemoryIndex(Broker):
    """An index for a single process: one shard per queue, no layout. Raises if Redis would be queried."""

    def __init__(self, worker: str = "-") -> None:
        super().__init__(timeout_seconds=0, worker=worker, client=object())
        self.members: dict[Key, Standing] = {}
        self._claims = 0

    @property
    def client(self) -> Any:
        raise NotImplementedError(f"This asks Redis, and nothing is sent there. {conf.why_no_redis()}.")

    def shard_of(self, member: str, queue: str) -> Shard:
        return Shard(queue, 0)

    def now_ms(self) -> int:
        return to_ms(utcnow())

    # -- what a worker does

    def first(self) -> tuple[int, Shard] | None:
        """Return the wake time in ms and the shard of the first free member, or None."""
        return next(((self.members[key].wake_ms, key[0]) for key in self._free()), None)

    def _free(self) -> list[Key]:
        """Return members without a holder: due ones by wake time and priority, then the others; ties by insertion."""
        return sorted((key for key, item in self.members.items() if not item.holder), key=self._turn)

    def _turn(self, key: Key) -> tuple[int, int, int]:
        item = self.members[key]
        if item.wake_ms > self.now_ms():
            return 1, item.wake_ms, item.point_ms
        return 0, item.wake_ms - item.priority * STEP_MS, 0

    def point_ms(self, run: AnyRun) -> int | None:
        """Return the due point in ms of a waiting row, None if it does not wait."""
        standing = self.members.get((self.shard_of("", run.queue), member_of_run(run)))
        return None if standing is None or standing.holder else standing.point_ms

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim:
        now_ms = self.now_ms()
        self._claims += 1
        fence = f"{now_ms}.{self._claims}"
        holder, entries = f"{fence} {self.worker}", []
        due = [key for key in self._free() if key[0] == shard and self.members[key].wake_ms <= now_ms]
        for key in due[:limit]:
            item = self.members[key]
            item.holder, item.wake_ms = holder, now_ms + lease_ms
            entries.append(Entry(key[1], item.point_ms, item.generation, item.attempts, lapsed=False))
        return Claim(now_ms, None, "memory", fence, holder, tuple(entries))

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]:
        return {member for member, holder in leases if self._held((shard, member), holder) is None}

    def _held(self, key: Key, holder: str) -> Standing | None:
        item = self.members.get(key)
        return item if item is not None and item.holder and item.holder == holder else None

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        return Settled(self.now_ms(), None, [self._settle(shard, item) for item in settlements])

    def _settle(self, shard: Shard, item: Settlement) -> int:
        standing = self._held((shard, item.member), item.holder)
        if standing is None:
            return 0
        standing.holder = ""
        if item.what not in ("next", "drop"):
            standing.attempts += item.what == "retry"
            now_ms, keeps = self.now_ms(), not item.ms and not standing.attempts
            standing.wake_ms = item.ms + (min(now_ms, standing.point_ms) if keeps else now_ms)
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

    # -- what the sync does

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, mode: Mode = "") -> list[str]:
        put = self._put if mode == "new" else self._move if mode == "move" else self._mirror
        return [put((shard, item.member), item) for item in definitions]

    def _mirror(self, key: Key, item: Definition) -> str:
        now_ms, standing = self.now_ms(), self.members.get(key)
        if standing is None:
            return self._write(key, item)
        if item.generation <= standing.generation:
            return "OLD" if item.generation < standing.generation else "SAME"
        standing.generation, standing.priority = item.generation, item.priority
        if standing.holder:
            return "LEASED"
        if standing.attempts or standing.point_ms <= now_ms:
            if not standing.attempts and standing.wake_ms > now_ms:
                wake_ms = item.wake_ms if item.point_ms == standing.point_ms else now_ms
                standing.wake_ms = min(standing.wake_ms, max(now_ms, wake_ms))
            return "DUE"
        standing.point_ms, standing.wake_ms = item.point_ms, item.wake_ms
        return "MOVED"

    def _put(self, key: Key, item: Definition) -> str:
        standing = self.members.get(key)
        if standing is None or (standing.generation != item.generation and not standing.holder):
            return self._write(key, item)
        standing.generation = max(standing.generation, item.generation)
        return "LEASED" if standing.holder else "SAME"

    def _move(self, key: Key, item: Definition) -> str:
        standing = self.members.get(key)
        if standing is None or standing.holder:
            return "GONE" if standing is None else "LEASED"
        standing.point_ms, standing.wake_ms, standing.attempts = item.point_ms, item.wake_ms or self.now_ms(), 0
        return "MOVED"

    def _write(self, key: Key, item: Definition) -> str:
        wake_ms = item.wake_ms or self.now_ms()
        self.members[key] = Standing(
            wake_ms=wake_ms, point_ms=item.point_ms, generation=item.generation, priority=item.priority
        )
        return "NEW"

    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        return [self._remove((shard, member), generation, gone) for member, generation, _ in members]

    def _remove(self, key: Key, generation: int, gone: bool) -> str:
        standing = self.members.get(key)
        if standing is None or generation < standing.generation:
            return "GONE" if standing is None else "OLD"
        if not standing.holder and (gone or standing.point_ms > self.now_ms()):
            del self.members[key]
            return "REMOVED"
        if not gone:
            standing.generation = generation
        return "LEASED" if standing.holder else "DUE"
