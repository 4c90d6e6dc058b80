"""Every key name of this package. All keys of one queue and shard share a cluster slot by their hash tag."""

import re
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

#: Parts of a shard, in the order in which every script receives them. The journal is the calling process' own.
PARTS = (
    "due", "ready", "jobs", "jobs-ready", "point", "gen", "priority", "lease", "attempts", "fence", "epoch", "journal",
)  # fmt: skip
#: The Redis type of each part; another type under our name was written by another program.
TYPES = {
    **dict.fromkeys(("due", "ready", "jobs", "jobs-ready"), "zset"),
    **dict.fromkeys(("point", "gen", "priority", "lease", "attempts"), "hash"),
    **dict.fromkeys(("fence", "epoch", "journal"), "string"),
}
#: The part that ends with the name of the calling process.
OF_A_WORKER = "journal"
#: The keys that belong to no shard, see DECISIONS.md.
OF_THE_PREFIX = {
    "layout": "string", "workers": "zset", "worker-details": "hash",
    "upkeep": "string", "swept": "string", "pruned": "string", "missed": "string",
}  # fmt: skip


class Shard(NamedTuple):
    """Where a member lives."""

    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.number}"


def member_shard(member: str, queue: str, count: int) -> Shard:
    """Return the shard of a member: stable for a member, so that removal looks where insertion went."""
    return Shard(queue, crc32(member.encode("utf-8", "surrogateescape")) % count)


@lru_cache(maxsize=8192)
def shard_keys(prefix: str, shard: Shard, worker: str = "-") -> tuple[str, ...]:
    """Return the constant list of keys that every script gets."""
    return tuple(all_keys(prefix, shard, worker)[part] for part in PARTS)


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
