"""The Redis side: keys, scripts, connections. Knows members, points and leases; no schedules and no database."""

from .broker import EXACT as EXACT
from .broker import Broker as Broker
from .connection import ClusterConnectionFactory as ClusterConnectionFactory
from .connection import build_connector as build_connector
from .counters import MinuteCounts as MinuteCounts
from .keys import Claim as Claim
from .keys import Entry as Entry
from .keys import EntryDefinition as EntryDefinition
from .keys import EntryView as EntryView
from .keys import Settled as Settled
from .keys import Settlement as Settlement
from .keys import Shard as Shard
from .keys import Stats as Stats
