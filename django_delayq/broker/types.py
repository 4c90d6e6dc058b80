"""The values that go into the broker and come out of it. All instants are ms since the epoch, by the server's clock."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

#: How definitions are mirrored: see upsert.lua.
Mode = Literal["", "reset", "new", "move"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A claimed member. `point_ms` and `generation` are None where Redis has lost them or holds garbage."""

    member: str
    point_ms: int | None
    generation: int | None
    attempts: int
    #: True where an earlier lease ran out, and when that one was claimed, as far as it is known.
    lapsed: bool
    lapsed_ms: int | None = None


class Claim(NamedTuple):
    """The reply to a claim. `head_ms` is the score of the shard's next member after the claim, None if empty.

    `epoch` is None where the shard was flushed and has to be rebuilt; nothing is claimed then. `holder` is what every
    lease of it is called: fence, space, worker. `damaged` says whether scores are lost there.
    """

    now_ms: int
    head_ms: int | None
    epoch: str | None
    holder: str
    entries: tuple[Entry, ...]
    damaged: bool = False

    @property
    def fence(self) -> str:
        return self.holder.partition(" ")[0]


class Trial(NamedTuple):
    """What a script saw of a server: its clock in µs, and how `Broker.EXACT` came back by each way. '' where refused.

    `refused` has the commands that scripts of ours need and may not run, each as 'ZADD: why'.
    """

    clock_us: int
    number: str
    score: str
    member: str
    value: str
    refused: tuple[str, ...]


class Settlement(NamedTuple):
    """A held member and what becomes of it, in the words of settle.lua."""

    member: str
    holder: str
    what: str
    ms: int = 0
    generation: int = 0
    point_ms: int = 0


class Settled(NamedTuple):
    """The reply to a settlement: the score of the shard's head after it, and per entry what settle.lua says."""

    now_ms: int
    head_ms: int | None
    replies: list[int]


class Definition(NamedTuple):
    """A schedule or a row to mirror. `wake_ms` 0 is now, by the server's clock.

    `generation` of a row is that of `chain.row_generation`. `expected` is the newer generation seen in Redis, to be
    forced down; else empty.
    """

    member: str
    generation: int
    point_ms: int
    wake_ms: int
    expected: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class EntryView:
    """What Redis holds of one member, for display and comparison. Numbers are None where absent or `garbage`."""

    point_ms: int | None
    score_ms: int | None
    generation: int | None
    leased: bool
    retrying: bool = False
    garbage: bool = False


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one shard at one instant. A sound shard has as many points and generations as members."""

    now_ms: int
    members: int
    due: int
    leased: int
    head_ms: int | None
    epoch: str | None
    points: int = 0
    generations: int = 0
    #: Members with a score that no member can have.
    astray: int = 0
    #: Of those, jobs and backfilled points: members, and due ones.
    jobs: int = 0
    jobs_due: int = 0

    @property
    def damaged(self) -> bool:
        """True where members lost their scores, or have impossible ones. Scripts alone never leave that behind."""
        return self.members < self.points or self.astray > 0
