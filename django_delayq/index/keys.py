"""The names of all keys, and the values that scripts take and return. The keys of a shard share a cluster slot."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")

#: Parts of a shard, in the order in which every script receives them. The journal is the calling process' own.
PARTS = (
    "due", "ready", "jobs", "jobs-ready", "point", "gen", "priority", "lease", "attempts", "epoch", "journal",
)  # fmt: skip
#: The Redis type of each part; another type under our name was written by another program.
TYPES = {
    **dict.fromkeys(("due", "ready", "jobs", "jobs-ready"), "zset"),
    **dict.fromkeys(("point", "gen", "priority", "lease", "attempts"), "hash"),
    **dict.fromkeys(("epoch", "journal"), "string"),
}
#: The part that ends with the name of the calling process.
OF_A_WORKER = "journal"
#: The keys that belong to no shard, see DECISIONS.md.
OF_THE_PREFIX = {
    "layout": "string", "workers": "zset", "worker-details": "hash",
    "upkeep": "string", "swept": "string", "pruned": "string", "missed": "string",
}  # fmt: skip
#: No sound entry that is due waits longer for its score, and no lease is longer: see unsound() in the scripts' prelude.
LONGEST_WAIT_MS = 2 * 3600 * 1000


class Shard(NamedTuple):
    """Where a member lives."""

    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.number}"


def shard_keys(prefix: str, shard: Shard, worker: str = "-") -> tuple[str, ...]:
    """Return the constant list of keys that every script gets."""
    return tuple(all_keys(prefix, shard, worker)[part] for part in PARTS)


@lru_cache(maxsize=8192)
def sent_keys(prefix: str, shard: Shard, worker: str) -> tuple[bytes, ...]:
    """Return the same list in bytes, which redis-py does not encode again with each call."""
    return tuple(name.encode() for name in shard_keys(prefix, shard, worker))


def all_keys(prefix: str, shard: Shard, worker: str = "-") -> dict[str, str]:
    """Return every key of a shard by its part, but for counts."""
    tag = f"{{{prefix}:{shard}}}"
    return {part: f"{tag}:{part}:{worker}" if part == OF_A_WORKER else f"{tag}:{part}" for part in PARTS}


def counts_key(prefix: str, shard: Shard, what: str | int) -> str:
    """HASH, expires: what was counted in a minute; ZSET `minutes`: which minutes."""
    return f"{{{prefix}:{shard}}}:counts:{what}"


def wake_channel(prefix: str) -> str:
    """PUBSUB: '<queue>:<shard> <ms>', an earlier head appeared."""
    return f"{prefix}:wake"


def patterns(prefix: str) -> list[str]:
    """Return SCAN patterns that match every key of a prefix, and perhaps some that `is_own` refuses."""
    return [f"{{{prefix}:*", *prefix_keys(prefix)]


def prefix_key(prefix: str, name: str) -> str:
    return f"{prefix}:{name}"


def prefix_keys(prefix: str) -> dict[str, str]:
    """Return the keys that belong to no shard, each with its Redis type."""
    return {prefix_key(prefix, name): kind for name, kind in OF_THE_PREFIX.items()}


def is_own(prefix: str, key: str) -> bool:
    """Say whether a key belongs to this prefix and not to one that begins like it."""
    parts = "|".join(part for part in PARTS if part != OF_A_WORKER)
    named = "|".join((OF_A_WORKER, "counts"))
    named_key = rf"\{{{re.escape(prefix)}:[A-Za-z0-9_.-]{{1,64}}:[0-9]+\}}:(?:{parts}|(?:{named}):.*)"
    return key in prefix_keys(prefix) or re.fullmatch(named_key, key, re.DOTALL) is not None


#: How definitions are mirrored: see upsert.lua.
Mode = Literal["", "reset", "new", "move", "end", "gone"]


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

    `epoch` is None where the shard was flushed and has to be rebuilt; nothing is claimed then. `holder` is what
    every lease of it is called: fence, space, worker.
    """

    now_ms: int
    head_ms: int | None
    epoch: str | None
    fence: str
    holder: str
    entries: tuple[Entry, ...]


class Trial(NamedTuple):
    """What a script saw of a server: its clock in µs, and how `EXACT` came back by each way. '' where refused.

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

    `generation` of a row is that of `chain.generation_of_run`. `expected` is the newer generation seen in Redis, to be
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
    #: Of the members, jobs and backfilled points: all, and due ones.
    jobs: int = 0
    jobs_due: int = 0


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
