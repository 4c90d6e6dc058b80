"""Makes Redis agree with the database: at once after a commit where it can, by sweeps where it could not."""

from .drift import Drift, drift
from .durable import put_after_commit
from .fast import ask, enqueue_runs, mirror_after_commit, read_entries, run_now, sweep_after_commit
from .layout import check_layout, fingerprint, moving, standing_shards
from .orders import Candidate, backfill, plan_backfill
from .read import note_parked
from .rebuild import rebuild
from .reshard import reshard, under_way
from .sweep import Report, delta_sweep, full_sweep
from .turn import FULL_SECONDS, LastSweep, adopt, sweep_in_turn, sweep_now
from .write import PAGE, sync

__all__ = [
    "FULL_SECONDS",
    "PAGE",
    "Candidate",
    "Drift",
    "LastSweep",
    "Report",
    "adopt",
    "ask",
    "backfill",
    "check_layout",
    "delta_sweep",
    "drift",
    "enqueue_runs",
    "fingerprint",
    "full_sweep",
    "mirror_after_commit",
    "moving",
    "note_parked",
    "plan_backfill",
    "put_after_commit",
    "read_entries",
    "rebuild",
    "reshard",
    "run_now",
    "standing_shards",
    "sweep_after_commit",
    "sweep_in_turn",
    "sweep_now",
    "sync",
    "under_way",
]
