"""Every key name of this package. All keys of one queue and shard share a cluster slot by their hash tag."""

import re
from typing import NamedTuple
from zlib import crc32

#: Parts of a shard, in the order in which every script receives them. The journal is the calling process' own.
PARTS = ("due", "point", "gen", "lease", "fence", "attempts", "payload", "journal", "epoch")
#: The Redis type of each part; another type under our name was written by somebody else.
TYPES = {
    "due": "zset",
    "point": "hash",
    "gen": "hash",
    "lease": "hash",
    "fence": "string",
    "attempts": "hash",
    "payload": "hash",
    "journal": "string",
    "epoch": "string",
}


class Place(NamedTuple):
    """Where a member lives."""

    queue: str
    shard: int

    def __str__(self) -> str:
        return f"{self.queue}:{self.shard}"


def member_place(member: str, queue: str, shards: int) -> Place:
    """Return the place of a member: stable for a member, so that removal looks where insertion went."""
    return Place(queue, crc32(member.encode()) % shards)


def shard_keys(prefix: str, place: Place, worker: str = "-") -> list[str]:
    """Return the constant list of keys that every script gets."""
    tag = f"{{{prefix}:{place}}}"
    return [f"{tag}:journal:{worker}" if part == "journal" else f"{tag}:{part}" for part in PARTS]


def layout_key(prefix: str) -> str:
    """STRING: shards per queue and the database's fingerprint, as JSON."""
    return f"{prefix}:layout"


def workers_key(prefix: str) -> str:
    """ZSET: worker -> ms of its last heartbeat."""
    return f"{prefix}:workers"


def worker_details_key(prefix: str) -> str:
    """HASH: worker -> what it runs, as JSON."""
    return f"{prefix}:worker-details"


def wake_channel(prefix: str) -> str:
    """PUBSUB: '<queue>:<shard> <ms>', an earlier head appeared."""
    return f"{prefix}:wake"


def patterns(prefix: str) -> list[str]:
    """Return SCAN patterns that match every key of a prefix, and perhaps some that `is_own` refuses."""
    return [f"{{{prefix}:*", *prefix_keys(prefix)]


def prefix_keys(prefix: str) -> dict[str, str]:
    """Return the keys that belong to no shard, each with its Redis type."""
    return {layout_key(prefix): "string", workers_key(prefix): "zset", worker_details_key(prefix): "hash"}


def is_own(prefix: str, key: str) -> bool:
    """Say whether a key belongs to this prefix and not to one that begins like it."""
    parts = "|".join(part for part in PARTS if part != "journal")
    shard = rf"\{{{re.escape(prefix)}:[A-Za-z0-9_.-]{{1,64}}:[0-9]+\}}:(?:{parts}|journal:.*)"
    return key in prefix_keys(prefix) or re.fullmatch(shard, key, re.DOTALL) is not None
