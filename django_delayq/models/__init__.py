"""The models. Their only I/O is the database; Redis follows through `sync`.

`Schedule` is the row that users edit, `Definition` a former version of it, `ScheduleState` what workers know of it,
`Tag` one of its tags. `Run` is the ledger of runs and jobs, `Output` what they
logged and printed, `Rollup` their counts. `Control` is a pause or limit, `Tombstone` a deletion that Redis
has yet to follow, `Alert` a problem.
"""

from django.apps import apps

from .control import Control, explain_wait
from .kept import Definition
from .queryset import ScheduleQuerySet
from .records import Alert, Output, Overview, Rollup, Tag, Tombstone, read_tags
from .run import Origin, Run, RunQuerySet, Status
from .schedule import Schedule
from .state import Condition, ScheduleState

if apps.is_installed("django.contrib.admin"):
    from . import audit_entry as audit_entry

__all__ = [
    "Alert", "Condition", "Control", "Definition",
    "Origin", "Output", "Overview", "Rollup", "Run", "RunQuerySet",
    "Schedule", "ScheduleQuerySet", "ScheduleState", "Status", "Tag", "Tombstone", "explain_wait", "read_tags",
]  # fmt: skip
