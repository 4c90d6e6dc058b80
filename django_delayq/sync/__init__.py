"""Makes Redis agree with the database: after a commit if possible, otherwise by sweeps."""

from .after_commit import follow_after_commit, move_now, put_after_commit, put_now, read_entries
from .layout import check_layout, check_release, get_own_layout, read_fingerprint
from .missing import put_missing, read_last_key
from .pages import PAGE
from .read import read_wanted
from .rebuild import find_unbuilt, rebuild
from .runs import forget_run, move_run, put_runs
from .sweep import Differences, SweepReport, adopt, count_differences, sweep_delta, sweep_fully, sweep_if_due, sweep_now
from .switch import LIVE_SECONDS, take_layout
from .write import sync

__all__ = [
    "LIVE_SECONDS", "PAGE", "Differences", "SweepReport", "adopt", "check_layout", "check_release", "count_differences",
    "find_unbuilt", "follow_after_commit", "forget_run", "get_own_layout", "move_now", "move_run", "put_after_commit",
    "put_missing", "put_now", "put_runs", "read_entries", "read_fingerprint", "read_last_key", "read_wanted", "rebuild",
    "sweep_delta", "sweep_fully", "sweep_if_due", "sweep_now", "sync", "take_layout",
]  # fmt: skip
