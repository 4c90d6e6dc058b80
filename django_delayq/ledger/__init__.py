"""The ledger: reads schedules and runs, writes outcomes and states. Never touches Redis.

See `recording.py`, Note [Compare and set].
"""

from .bulk import check_tables, database, reader, writer, writing
from .chain import settle_state
from .closing import close_abandoned, close_orphan, undo_start
from .jobs import add_jobs, cancel_job, delete_job, find_job, move_job, retry_job, taken_by
from .locks import leave_locked, lock_free
from .reading import (
    OPEN_STATUSES,
    HeldBack,
    as_run,
    as_schedule,
    count_open_apart,
    count_up_to,
    count_values,
    find_schedule,
    held_back,
    load_abandoned,
    load_oldest_open,
    load_open_rows,
    load_runs,
    load_schedules,
    load_waiting,
    open_apart,
    open_pages,
    read_held_back,
    read_stop_requests,
    with_status,
)
from .recording import record, start, write_states
from .retention import (
    LAST_KEY,
    Batch,
    OldRun,
    Pruned,
    count_prunable,
    find_prunable,
    prune,
    prune_expired,
    prune_outputs,
)
from .rollups import BATCH, Overtaken, add_minute, forget_hours, merge_minutes, read_rollups
from .rows import Outcome, Won, attempts_of, keep_former, version_of

__all__ = [
    "BATCH", "LAST_KEY", "OPEN_STATUSES", "Batch", "HeldBack", "OldRun", "Outcome", "Overtaken", "Pruned", "Won",
    "add_jobs", "add_minute", "as_run", "as_schedule", "attempts_of", "cancel_job", "check_tables",
    "close_abandoned", "close_orphan", "count_open_apart", "count_prunable", "count_up_to",
    "count_values", "database", "delete_job", "find_job", "find_prunable", "find_schedule", "forget_hours",
    "held_back", "keep_former", "leave_locked", "load_abandoned", "load_oldest_open", "load_open_rows",
    "load_runs", "load_schedules", "load_waiting", "lock_free", "merge_minutes",
    "move_job", "open_apart", "open_pages", "prune", "prune_expired", "prune_outputs", "read_held_back",
    "read_rollups", "read_stop_requests", "reader", "record", "retry_job", "settle_state",
    "start", "taken_by", "undo_start", "version_of", "with_status", "write_states", "writer", "writing",
]  # fmt: skip
