"""Every key name of this package. All keys of one queue and shard share a cluster slot by their hash tag."""

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
    """Return the SCAN patterns that match every key of a prefix and no other prefix's."""
    safe = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix)
    return [f"{{{safe}:*", f"{safe}:layout", f"{safe}:workers", f"{safe}:worker-details"]
