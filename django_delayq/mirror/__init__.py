"""Makes Redis agree with the database: at once after a commit where it can, by sweeps where it could not."""

from .fast import enqueue_runs, mirror_after_commit, read_entries, run_now, sweep_after_commit
from .layout import check_layout, fingerprint
from .sweep import Report, delta_sweep, full_sweep, rebuild
from .write import note_parked, sync

__all__ = [
    "Report",
    "check_layout",
    "delta_sweep",
    "enqueue_runs",
    "fingerprint",
    "full_sweep",
    "mirror_after_commit",
    "note_parked",
    "read_entries",
    "rebuild",
    "run_now",
    "sweep_after_commit",
    "sync",
]
