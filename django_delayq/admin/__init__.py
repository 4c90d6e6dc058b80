"""The admin: how everything stands, schedules to edit, pause and run, the ledger to read, jobs to look after. Holds no
logic: each action is one call.
"""

from .alerts import AlertAdmin
from .audit import AuditAdmin
from .controls import ControlAdmin
from .overview import OverviewAdmin
from .runs import RunAdmin
from .schedules import ScheduleAdmin

__all__ = ["AlertAdmin", "AuditAdmin", "ControlAdmin", "OverviewAdmin", "RunAdmin", "ScheduleAdmin"]
