"""The Redis side: keys, scripts, connections. Knows members, points and leases; knows no schedule and no database."""

from .broker import EXACT as EXACT
from .broker import Broker as Broker
from .cluster import ClusterConnectionFactory as ClusterConnectionFactory
from .connection import connector as connector
from .counts import MinuteCounts as MinuteCounts
from .index import Index as Index
from .keys import Shard as Shard
from .keys import member_shard as member_shard
from .scripts import claimed_ms as claimed_ms
from .scripts import held_by as held_by
from .types import Claim as Claim
from .types import Definition as Definition
from .types import Entry as Entry
from .types import EntryView as EntryView
from .types import Settled as Settled
from .types import Settlement as Settlement
from .types import Stats as Stats
