"""Makes Redis agree with the database: after a commit if possible, otherwise by sweeps."""

from .drift import MOST_COMPARED, Drift, drift
from .fast import (
    follow_after_commit,
    mirror_after_commit,
    move_now,
    put_after_commit,
    put_now,
    read_entries,
    sweep_after_commit,
)
from .layout import check_layout, check_release, fingerprint, own_layout
from .missed import last_key, put_missed
from .pages import PAGE
from .read import note_parked
from .rebuild import rebuild, unbuilt
from .runs import forget_run, move_run, put_runs
from .sweep import Report, delta_sweep, full_sweep
from .swept import FULL_SECONDS, adopt, sweep_if_due, sweep_now
from .switch import LIVE_SECONDS, take_layout
from .write import sync

__all__ = [
    "FULL_SECONDS", "LIVE_SECONDS", "MOST_COMPARED", "PAGE", "Drift", "Report", "adopt", "check_layout",
    "check_release", "delta_sweep", "drift", "fingerprint", "follow_after_commit", "forget_run", "full_sweep",
    "last_key", "mirror_after_commit", "move_now", "move_run", "note_parked", "own_layout", "put_after_commit",
    "put_missed", "put_now", "put_runs", "read_entries", "rebuild",
    "sweep_after_commit", "sweep_if_due", "sweep_now", "sync", "take_layout", "unbuilt",
]  # fmt: skip
