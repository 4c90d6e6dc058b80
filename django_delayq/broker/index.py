"""What a worker and the mirror need of an index of due points. `Broker` is one in Redis, `testing.points` in memory."""

from collections.abc import Sequence
from typing import Protocol

from ..conf import Config
from .keys import Shard
from .types import Claim, Definition, Mode, Settled, Settlement


class Index(Protocol):
    """Members, each with a due point and a score, in shards. What a method does is told at `Broker`."""

    @property
    def config(self) -> Config: ...
    @property
    def worker(self) -> str: ...

    def now_ms(self) -> int: ...
    def shard_of(self, member: str, queue: str) -> Shard: ...

    # -- for a worker

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim: ...
    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]: ...
    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled: ...

    # -- for the mirror

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, mode: Mode = "") -> list[str]: ...
    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]: ...
