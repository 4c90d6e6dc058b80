"""The ledger: reads schedules and runs, writes outcomes and states. Never touches Redis."""

from .bulk import check_tables, get_database, reader, writer, writing
from .chain import settle_state
from .closing import close_abandoned, close_orphan, undo_start
from .jobs import add_jobs, cancel_job, delete_job, find_job, find_key_holder, move_job, retry_job
from .locks import leave_locked, lock_free
from .reading import (
    OPEN_STATUSES,
    HeldBack,
    build_run,
    build_schedule,
    count_open_separate,
    count_up_to,
    count_values,
    find_schedule,
    load_abandoned,
    load_controls,
    load_oldest_open,
    load_open_rows,
    load_runs,
    load_schedules,
    load_waiting,
    query_open_separate,
    query_status,
    read_held_back,
    read_open_pages,
    read_stop_requests,
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
from .rows import Outcome, Won, get_version, keep_former, list_attempts

__all__ = [
    "BATCH", "LAST_KEY", "OPEN_STATUSES", "Batch", "HeldBack", "OldRun", "Outcome", "Overtaken", "Pruned", "Won",
    "add_jobs", "add_minute", "build_run", "build_schedule", "cancel_job", "check_tables", "close_abandoned",
    "close_orphan", "count_open_separate", "count_prunable", "count_up_to", "count_values", "delete_job", "find_job",
    "find_key_holder", "find_prunable", "find_schedule", "forget_hours", "get_database", "get_version", "keep_former",
    "leave_locked", "list_attempts", "load_abandoned", "load_controls", "load_oldest_open", "load_open_rows",
    "load_runs", "load_schedules", "load_waiting", "lock_free", "merge_minutes", "move_job", "prune", "prune_expired",
    "prune_outputs", "query_open_separate", "query_status", "read_held_back", "read_open_pages", "read_rollups",
    "read_stop_requests", "reader", "record", "retry_job", "settle_state", "start", "undo_start", "write_states",
    "writer", "writing",
]  # fmt: skip
