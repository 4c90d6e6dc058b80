"""The rows people edit (`Schedule`), what the workers know of them (`ScheduleState`), the ledger (`Run`), and deletions
still to be mirrored (`Tombstone`). Does no I/O but the database's: Redis follows by `receivers` and `mirror`.
"""

from .queryset import ScheduleQuerySet
from .run import Origin, Run, RunQuerySet, Status
from .schedule import Schedule
from .state import Condition, ScheduleState
from .tombstone import Tombstone

__all__ = [
    "Condition",
    "Origin",
    "Run",
    "RunQuerySet",
    "Schedule",
    "ScheduleQuerySet",
    "ScheduleState",
    "Status",
    "Tombstone",
]
