"""The ledger: reads what is decided, writes outcomes and states. Never touches Redis.

See `changing.py`, Note [Compare and set].
"""

from .attempts import attempts_of, keep_former
from .bulk import check_tables, database, reader, writer, writing
from .closing import close_abandoned, close_orphan
from .controls import HeldBack, held_back, read_cancellations, read_held_back
from .ended import EndKey, count_dead, delete_job, end_keys, load_ended, revive_job
from .horizon import lock_horizon
from .instances import as_run, as_schedule
from .jobs import (
    JobOutcome,
    JobRow,
    add_jobs,
    change_job,
    find_job,
    give_up_keys,
    load_jobs,
    note_mirrored,
    open_jobs,
    prune_jobs,
    record_jobs,
    start_jobs,
    store_results,
    take_result,
    undo_job_starts,
    unmirrored_jobs,
)
from .locks import leave_locked, lock_free, owner_of_locks
from .outcome import Outcome, Won, version_of
from .outputs import prune_outputs
from .pruning import LAST_KEY, Batch, Pruned, count_prunable, find_prunable, prune
from .reading import (
    OVERLOAD,
    Load,
    count_up_to,
    find,
    find_schedule,
    find_values,
    load_abandoned,
    load_oldest_open,
    load_open_rows,
    load_queued,
    load_runs,
    load_schedules,
    open_apart,
    open_chains,
    read_load,
)
from .recording import record, start, undo_start
from .retention import OldRun
from .rollups import BATCH, Overtaken, add_minute, forget_hours, merge_minutes, read_rollup_rows, read_rollups
from .states import settle_state, write_states

__all__ = [
    "BATCH",
    "LAST_KEY",
    "OVERLOAD",
    "Batch",
    "EndKey",
    "HeldBack",
    "JobOutcome",
    "JobRow",
    "Load",
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
    "change_job",
    "check_tables",
    "close_abandoned",
    "close_orphan",
    "count_dead",
    "count_prunable",
    "count_up_to",
    "database",
    "delete_job",
    "end_keys",
    "find",
    "find_job",
    "find_prunable",
    "find_schedule",
    "find_values",
    "forget_hours",
    "give_up_keys",
    "held_back",
    "keep_former",
    "leave_locked",
    "load_abandoned",
    "load_ended",
    "load_jobs",
    "load_oldest_open",
    "load_open_rows",
    "load_queued",
    "load_runs",
    "load_schedules",
    "lock_free",
    "lock_horizon",
    "merge_minutes",
    "note_mirrored",
    "open_apart",
    "open_chains",
    "open_jobs",
    "owner_of_locks",
    "prune",
    "prune_jobs",
    "prune_outputs",
    "read_cancellations",
    "read_held_back",
    "read_load",
    "read_rollup_rows",
    "read_rollups",
    "reader",
    "record",
    "record_jobs",
    "revive_job",
    "settle_state",
    "start",
    "start_jobs",
    "store_results",
    "take_result",
    "undo_job_starts",
    "undo_start",
    "unmirrored_jobs",
    "version_of",
    "write_states",
    "writer",
    "writing",
]  # fmt: skip
