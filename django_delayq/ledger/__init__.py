"""The ledger: reads schedules and runs, writes outcomes and states. Never touches Redis.

See `recording.py`, Note [Compare and set].
"""

from .attempts import attempts_of, keep_former
from .bulk import check_tables, database, reader, writer, writing
from .chain import settle_state
from .closing import close_abandoned, close_orphan, undo_start
from .controls import HeldBack, held_back, read_cancellations, read_held_back
from .jobs import add_jobs, cancel_job, count_failed_jobs, delete_job, find_job, move_job, retry_job, taken_by
from .locks import leave_locked, lock_free
from .pruning import LAST_KEY, Batch, OldRun, Pruned, count_prunable, find_prunable, prune, prune_expired, prune_outputs
from .reading import (
    OPEN_STATUSES,
    as_run,
    as_schedule,
    count_open_apart,
    count_up_to,
    count_values,
    find_schedule,
    load_abandoned,
    load_oldest_open,
    load_open_rows,
    load_runs,
    load_schedules,
    load_waiting,
    open_apart,
    open_pages,
    with_status,
)
from .recording import lock_horizon, record, start, write_states
from .rollups import BATCH, Overtaken, add_minute, forget_hours, merge_minutes, read_rollup_rows, read_rollups
from .rows import Outcome, Won, version_of

__all__ = [
    "BATCH",
    "LAST_KEY",
    "OPEN_STATUSES",
    "Batch",
    "HeldBack",
    "OldRun",
    "Outcome",
    "Overtaken",
    "Pruned",
    "Won",
    "add_jobs",
    "add_minute",
    "as_run",
    "as_schedule",
    "attempts_of",
    "cancel_job",
    "check_tables",
    "close_abandoned",
    "close_orphan",
    "count_failed_jobs",
    "count_open_apart",
    "count_prunable",
    "count_up_to",
    "count_values",
    "database",
    "delete_job",
    "find_job",
    "find_prunable",
    "find_schedule",
    "forget_hours",
    "held_back",
    "keep_former",
    "leave_locked",
    "load_abandoned",
    "load_oldest_open",
    "load_open_rows",
    "load_runs",
    "load_schedules",
    "load_waiting",
    "lock_free",
    "lock_horizon",
    "merge_minutes",
    "move_job",
    "open_apart",
    "open_pages",
    "prune",
    "prune_expired",
    "prune_outputs",
    "read_cancellations",
    "read_held_back",
    "read_rollup_rows",
    "read_rollups",
    "reader",
    "record",
    "retry_job",
    "settle_state",
    "start",
    "taken_by",
    "undo_start",
    "version_of",
    "with_status",
    "write_states",
    "writer",
    "writing",
]  # fmt: skip
