"""Every key name of this package. All keys of one queue and shard share a cluster slot by their hash tag."""

import re
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

#: Parts of a shard, in the order in which every script on points receives them. The journal is the calling process'
#: own.
PARTS = ("due", "point", "gen", "lease", "fence", "attempts", "journal", "epoch")
#: What every script on jobs receives, in this order; `taken` is the calling process' own.
JOB_PARTS = (
    "due", "epoch", "fence", "jobs", "ready", "dead", "payload", "held", "priority", "unique", "reclaims", "taken",
)  # fmt: skip
#: What the claims receive: behind their own, where the leases of the other kind stand.
CLAIM_PARTS, JOB_CLAIM_PARTS = (*PARTS, "held", "jobs"), (*JOB_PARTS, "lease")
#: What settles jobs receives: also the list of those that have succeeded.
JOB_SETTLE_PARTS = (*JOB_PARTS, "done")
#: The parts that end with the name of the calling process.
OF_A_WORKER = ("journal", "taken")
#: The Redis type of each part; another type under our name was written by somebody else.
TYPES = {
    **dict.fromkeys(("due", "jobs", "ready", "dead", "done"), "zset"),
    **dict.fromkeys(("point", "gen", "lease", "attempts"), "hash"),
    **dict.fromkeys(("payload", "held", "priority", "unique", "reclaims"), "hash"),
    **dict.fromkeys(("fence", "epoch", "journal", "taken"), "string"),
}
#: The keys that belong to no shard, see DECISIONS.md.
OF_THE_PREFIX = {"layout": "string", "workers": "zset", "worker-details": "hash", "sweep": "string", "swept": "string"}
#: The member of `due` that stands for all jobs of the shard.
POINTER = "jobs"
#: A job's shard follows from so much of its name, so that jobs with one unique key are in one shard.
JOB_HEAD = 9


class Shard(NamedTuple):
    """Where a member lives."""

    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.number}"


def member_shard(member: str, queue: str, count: int) -> Shard:
    """Return the shard of a member: stable for a member, so that removal looks where insertion went."""
    name = member[:JOB_HEAD] if member.startswith("j") else member
    return Shard(queue, crc32(name.encode("utf-8", "surrogateescape")) % count)


@lru_cache(maxsize=8192)
def shard_keys(prefix: str, shard: Shard, worker: str = "-", parts: tuple[str, ...] = PARTS) -> tuple[str, ...]:
    """Return the constant list of keys that every script on points gets; with JOB_PARTS that of scripts on jobs."""
    names = all_keys(prefix, shard, worker)
    return tuple(names[part] for part in parts)


def all_keys(prefix: str, shard: Shard, worker: str = "-") -> dict[str, str]:
    """Return every key of a shard by its part, but for results of jobs, counts, and parts of rebuilds."""
    tag = f"{{{prefix}:{shard}}}"
    return {part: f"{tag}:{part}:{worker}" if part in OF_A_WORKER else f"{tag}:{part}" for part in TYPES}


def result_key(prefix: str, shard: Shard, member: str) -> str:
    """STRING, expires: the result of a job."""
    return f"{{{prefix}:{shard}}}:result:{member}"


def build_key(prefix: str, shard: Shard, name: str) -> str:
    """STRING, expires: who is at a part of a rebuild, or that it is done."""
    return f"{{{prefix}:{shard}}}:build:{name}"


def counts_key(prefix: str, shard: Shard, what: str | int) -> str:
    """HASH, expires: what was counted in a minute; ZSET `minutes`: which minutes; STRING `turn`: who moves them."""
    return f"{{{prefix}:{shard}}}:counts:{what}"


def pruning_key(prefix: str, shard: Shard, what: str) -> str:
    """STRING, expires `turn`: who prunes the ledger; STRING `last`: how far the last pass came.

    Among the keys of a shard, which a user of Redis by SECURITY.md may touch whatever their names are.
    """
    return f"{{{prefix}:{shard}}}:pruning:{what}"


def alerts_key(prefix: str, shard: Shard) -> str:
    """STRING, expires: who looked last for what is wrong and to be told."""
    return f"{{{prefix}:{shard}}}:alerts:turn"


def trace_key(prefix: str, shard: Shard, member: str) -> str:
    """STRING, expires: in which trace a schedule was saved last, or a run ordered."""
    return f"{{{prefix}:{shard}}}:trace:{member}"


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
    parts = "|".join(part for part in TYPES if part not in OF_A_WORKER)
    named = "|".join((*OF_A_WORKER, "result", "counts", "pruning", "alerts", "build", "trace"))
    named_key = rf"\{{{re.escape(prefix)}:[A-Za-z0-9_.-]{{1,64}}:[0-9]+\}}:(?:{parts}|(?:{named}):.*)"
    return key in prefix_keys(prefix) or re.fullmatch(named_key, key, re.DOTALL) is not None
