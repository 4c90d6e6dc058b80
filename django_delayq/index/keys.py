"""The names of all keys, and the arguments and replies of scripts. The keys of a shard share a cluster slot."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")

#: Parts of a shard, in the order in which every script receives them, with their Redis types.
TYPES = {
    "due": "zset", "ready": "zset", "jobs": "zset", "jobs-ready": "zset",
    "point": "hash", "gen": "hash", "priority": "hash", "lease": "hash", "attempts": "hash",
    "epoch": "string", "journal": "string",
}  # fmt: skip
PARTS = tuple(TYPES)
#: The part whose key ends with the name of the calling process.
OF_A_WORKER = "journal"
#: Keys that belong to no shard, with their Redis types: see DECISIONS.md.
OF_THE_PREFIX = {
    "layout": "string", "workers": "zset", "worker-details": "hash",
    "upkeep": "string", "swept": "string", "pruned": "string", "missed": "string",
}  # fmt: skip
#: Maximum ms from now to the score of a leased or delayed member that is due: see unsound() in the scripts' prelude.
LONGEST_WAIT_MS = 2 * 3600 * 1000


class Shard(NamedTuple):
    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.number}"


def build_keys(prefix: str, shard: Shard, worker: str = "-") -> dict[str, str]:
    """Return every key of a shard by its part, in the order of PARTS, without counts."""
    tag = f"{{{prefix}:{shard}}}"
    return {part: f"{tag}:{part}:{worker}" if part == OF_A_WORKER else f"{tag}:{part}" for part in PARTS}


@lru_cache(maxsize=8192)
def encode_keys(prefix: str, shard: Shard, worker: str) -> tuple[bytes, ...]:
    """Return the same keys in bytes, which redis-py does not have to encode with each call."""
    return tuple(name.encode() for name in build_keys(prefix, shard, worker).values())


def build_counts_key(prefix: str, shard: Shard, what: str | int) -> str:
    """HASH, expires: the counts of a minute; ZSET `minutes`: which minutes."""
    return f"{{{prefix}:{shard}}}:counts:{what}"


def build_wake_channel(prefix: str) -> str:
    """PUBSUB: '<queue>:<shard> <ms>', an earlier head appeared."""
    return f"{prefix}:wake"


def list_prefix_keys(prefix: str) -> dict[str, str]:
    return {f"{prefix}:{name}": kind for name, kind in OF_THE_PREFIX.items()}


def is_own(prefix: str, key: str) -> bool:
    """Return whether a key belongs to this prefix, and not to a longer one."""
    parts = "|".join(part for part in PARTS if part != OF_A_WORKER)
    of_a_shard = rf"\{{{re.escape(prefix)}:[A-Za-z0-9_.-]{{1,64}}:[0-9]+\}}:(?:{parts}|(?:{OF_A_WORKER}|counts):.*)"
    return key in list_prefix_keys(prefix) or re.fullmatch(of_a_shard, key, re.DOTALL) is not None


#: Prefix of the epoch of a shard that is being built.
BUILDING = "building:"


def is_built(epoch: str | None) -> bool:
    """Return whether a shard with this epoch is built: not flushed, and not being rebuilt."""
    return bool(epoch) and not str(epoch).startswith(BUILDING)


#: How definitions are mirrored: see upsert.lua.
Mode = Literal["", "reset", "new", "move", "end", "gone"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A claimed member. `point_ms` and `generation` are None where Redis has lost them or holds garbage."""

    member: str
    point_ms: int | None
    generation: int | None
    attempts: int
    #: True if an earlier lease ran out; `lapsed_ms` is when that one was claimed, if known.
    lapsed: bool
    lapsed_ms: int | None = None


class Claim(NamedTuple):
    """The reply to a claim. `head_ms`: score of the shard's next member. `epoch` is None if the shard was flushed."""

    now_ms: int
    head_ms: int | None
    epoch: str | None
    fence: str
    holder: str
    entries: tuple[Entry, ...]


class Settlement(NamedTuple):
    """How a held member is returned, in the words of settle.lua."""

    member: str
    holder: str
    what: str
    ms: int = 0
    generation: int = 0
    point_ms: int = 0


class Settled(NamedTuple):
    """The reply to a settlement: the score of the shard's head after it, and settle.lua's result per member."""

    now_ms: int
    head_ms: int | None
    replies: list[int]


class EntryDefinition(NamedTuple):
    """A schedule or a row to mirror. `wake_ms` 0 means now. `expected`: a newer generation in Redis to overwrite."""

    member: str
    generation: int
    point_ms: int
    wake_ms: int
    expected: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class EntryView:
    """What Redis holds of one member, for display and comparison. Numbers are None if absent or `garbage`."""

    point_ms: int | None
    score_ms: int | None
    generation: int | None
    leased: bool
    retrying: bool = False
    garbage: bool = False


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of one shard at one instant. A healthy shard has as many points and generations as members."""

    now_ms: int
    members: int
    due: int
    leased: int
    head_ms: int | None
    epoch: str | None
    points: int = 0
    generations: int = 0
    #: Members of the second lane (jobs and backfilled points): all, and due ones.
    jobs: int = 0
    jobs_due: int = 0


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, in their original sequence."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
