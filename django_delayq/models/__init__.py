"""The rows people edit (`Schedule`), what they were before (`Definition`), what the workers know of them
(`ScheduleState`), what the code declares of them (`Declaration`), the ledger of runs and jobs (`Run`), deletions still
to be mirrored (`Tombstone`), what was counted (`Rollup`), what is held back (`Control`), what is to be stopped
(`Cancellation`), what is wrong and told (`Alert`), who did what in the admin (`audit_entry`), what executions have said
(`Output`), and what schedules are sorted by (`Tag`). Does no I/O but the database's: Redis follows by `receivers` and
`mirror`.
"""

from django.apps import apps

from .alert import Alert
from .control import Control, explain_wait
from .kept import Definition
from .overview import Overview
from .queryset import ScheduleQuerySet
from .records import Cancellation, Declaration, Output, Rollup, Tombstone
from .run import Origin, Run, RunQuerySet, Status
from .schedule import Schedule
from .state import Condition, ScheduleState
from .tag import Tag, read_tags

if apps.is_installed("django.contrib.admin"):
    from . import audit_entry as audit_entry

__all__ = [
    "Alert", "Cancellation", "Condition", "Control", "Declaration", "Definition",
    "Origin", "Output", "Overview", "Rollup", "Run", "RunQuerySet",
    "Schedule", "ScheduleQuerySet", "ScheduleState", "Status", "Tag", "Tombstone", "explain_wait", "read_tags",
]  # fmt: skip
