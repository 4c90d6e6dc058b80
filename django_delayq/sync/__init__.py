"""Makes Redis agree with the database: after a commit if possible, otherwise by sweeps."""

from .after_commit import follow_after_commit, move_now, put_after_commit, put_now, read_entries
from .layout import check_layout, check_release, fingerprint, own_layout
from .missing import last_key, put_missing
from .pages import PAGE
from .read import read_wanted
from .rebuild import find_unbuilt, rebuild
from .runs import forget_run, move_run, put_runs
from .sweep import Differences, SweepReport, adopt, count_differences, delta_sweep, full_sweep, sweep_if_due, sweep_now
from .switch import LIVE_SECONDS, take_layout
from .write import sync

__all__ = [
    "LIVE_SECONDS", "PAGE", "Differences", "SweepReport", "adopt", "check_layout", "check_release", "count_differences",
    "delta_sweep", "find_unbuilt", "fingerprint", "follow_after_commit", "forget_run", "full_sweep", "last_key",
    "move_now", "move_run", "own_layout", "put_after_commit", "put_missing", "put_now", "put_runs", "read_entries",
    "read_wanted", "rebuild", "sweep_if_due", "sweep_now", "sync", "take_layout",
]  # fmt: skip
