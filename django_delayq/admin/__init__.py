"""The admin: schedules to edit, pause and run, and the ledger to read. Holds no logic: each action is one call."""

from .runs import RunAdmin
from .schedules import ScheduleAdmin

__all__ = ["RunAdmin", "ScheduleAdmin"]
