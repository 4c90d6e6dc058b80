"""The Redis side: keys, scripts, connections. Knows members, points and leases; knows no schedule and no database."""

from .broker import Broker
from .connection import ClusterConnectionFactory, connector
from .counts import MinuteCounts
from .jobs import JobBroker, in_parts
from .keys import Shard, member_shard
from .scripts import claimed_ms, held_by
from .types import (
    Claim,
    Definition,
    Entry,
    EntryView,
    JobClaim,
    JobCounts,
    JobEntry,
    JobSettlement,
    JobStats,
    JobView,
    NewJob,
    Settled,
    Settlement,
    Stats,
)

__all__ = [
    "Broker",
    "Claim",
    "ClusterConnectionFactory",
    "Definition",
    "Entry",
    "EntryView",
    "JobBroker",
    "JobClaim",
    "JobCounts",
    "JobEntry",
    "JobSettlement",
    "JobStats",
    "JobView",
    "MinuteCounts",
    "NewJob",
    "Settled",
    "Settlement",
    "Shard",
    "Stats",
    "claimed_ms",
    "connector",
    "held_by",
    "in_parts",
    "member_shard",
]
