"""The admin: overview, schedules, runs, pauses and limits, alerts, audit. No logic: each action is one call."""

from .audit import AuditAdmin
from .control_pages import ControlAdmin
from .overview import AlertAdmin, OverviewAdmin
from .run_pages import RunAdmin
from .schedules import ScheduleAdmin

__all__ = ["AlertAdmin", "AuditAdmin", "ControlAdmin", "OverviewAdmin", "RunAdmin", "ScheduleAdmin"]
