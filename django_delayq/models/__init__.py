"""The models. Their only I/O is the database; Redis follows through `sync`."""

from django.apps import apps

from .control import Control, explain_wait
from .kept import Definition
from .records import Alert, Output, Overview, Rollup, Tag, Tombstone, read_tags
from .run import Origin, Run, RunQuerySet, Status
from .schedule import Schedule, ScheduleQuerySet
from .state import Condition, ScheduleState

if apps.is_installed("django.contrib.admin"):
    from . import audit_entry as audit_entry

__all__ = [
    "Alert", "Condition", "Control", "Definition", "Origin", "Output", "Overview", "Rollup", "Run", "RunQuerySet",
    "Schedule", "ScheduleQuerySet", "ScheduleState", "Status", "Tag", "Tombstone", "explain_wait", "read_tags",
]  # fmt: skip
