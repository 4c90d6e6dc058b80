"""The Redis side: keys, scripts, connections. Knows members, points and leases; knows no schedule and no database."""

from .broker import Broker
from .connection import connect
from .keys import Place, member_place
from .types import Claim, Definition, Entry, EntryView, Lease, Settlement, Stats

__all__ = [
    "Broker",
    "Claim",
    "Definition",
    "Entry",
    "EntryView",
    "Lease",
    "Place",
    "Settlement",
    "Stats",
    "connect",
    "member_place",
]
