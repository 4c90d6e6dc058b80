"""The admin: how everything stands, schedules to edit, pause and run, the ledger to read, jobs to look after. Holds no
logic: each action is one call.
"""

from .controls import ControlAdmin
from .jobs import RedisJobAdmin
from .overview import OverviewAdmin
from .runs import RunAdmin
from .schedules import ScheduleAdmin

__all__ = ["ControlAdmin", "OverviewAdmin", "RedisJobAdmin", "RunAdmin", "ScheduleAdmin"]
