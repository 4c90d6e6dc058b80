"""The values that go into the broker and come out of it. All instants are ms since the epoch, by the server's clock."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")


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


class Claim(NamedTuple, Generic[E]):
    """The reply to a claim. `head_ms` is the score of the shard's next member after the claim, None if empty.

    `epoch` is None where the shard was flushed and has to be rebuilt; nothing is claimed then. `holder` is what every
    lease of it is called: fence, space, worker. `jobs_due` says of a claim of points whether jobs can be claimed too,
    `damaged` whether scores are lost there.
    """

    now_ms: int
    head_ms: int | None
    epoch: str | None
    holder: str
    entries: tuple[E, ...]
    jobs_due: bool = False
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
    """A definition to mirror. `expected` is the newer generation seen in Redis, to be forced down; else empty."""

    member: str
    generation: int
    point_ms: int
    wake_ms: int
    expected: str = ""


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

    @property
    def damaged(self) -> bool:
        """True where members lost their scores, or have impossible ones. Scripts alone never leave that behind."""
        return self.members < self.points or self.astray > 0


class NewJob(NamedTuple):
    """A job to be added. `wake_ms` 0 is at once; `unique` a hash of its unique key, '' for none."""

    member: str
    wake_ms: int
    priority: int
    unique: str
    payload: str


class JobEntry(NamedTuple):
    """A claimed job. `reclaims` counts the executions that were begun after somebody else's lease had run out.

    `former`: the holder of the lease that ran out, '' where there is none, or it is not known any more.
    """

    member: str
    payload: str
    lapsed: bool
    reclaims: int
    former: str = ""


class JobSettlement(NamedTuple):
    """A held job and what becomes of it, in the words of job_settle.lua; `callback` is as `callback_text` makes it."""

    member: str
    holder: str
    what: str
    ms: int = 0
    text: str = ""
    callback: str = ""


def callback_text(member: str, priority: int, payload: str) -> str:
    """Return a job of the same shard that is added where another one ends, as job_settle.lua reads it."""
    return f"{member} {priority} {payload}"


class JobView(NamedTuple):
    """What Redis holds of one job at about one moment. Empty and None where absent."""

    payload: str
    holder: str
    waits_until_ms: int | None
    died_ms: int | None
    result: str


class JobCounts(NamedTuple):
    """Jobs of one shard: waiting for a time, waiting for their turn, held by workers, dead."""

    waiting: int
    ready: int
    held: int
    dead: int


class JobStats(NamedTuple):
    """Counts of one shard, and for how long the next one of those that could run has waited for a worker; else None."""

    counts: JobCounts
    overdue_ms: int | None
