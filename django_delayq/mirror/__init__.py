"""Makes Redis agree with the database: at once after a commit where it can, by sweeps where it could not."""

from .drift import MOST_COMPARED, Drift, drift
from .fast import enqueue_after_commit, mirror_after_commit, put_after_commit, put_now, read_entries, sweep_after_commit
from .layout import check_layout, fingerprint, moving, standing_shards
from .pages import PAGE
from .read import note_parked
from .rebuild import rebuild
from .reshard import reshard, under_way
from .runs import enqueue_runs
from .sweep import Report, delta_sweep, full_sweep
from .turn import FULL_SECONDS, adopt, sweep_in_turn, sweep_now
from .write import sync

__all__ = [
    "FULL_SECONDS", "MOST_COMPARED", "PAGE", "Drift", "Report", "adopt", "check_layout", "delta_sweep", "drift",
    "enqueue_after_commit", "enqueue_runs", "fingerprint", "full_sweep", "mirror_after_commit", "moving", "note_parked",
    "put_after_commit", "put_now", "read_entries", "rebuild", "reshard", "standing_shards",
    "sweep_after_commit", "sweep_in_turn", "sweep_now", "sync", "under_way",
]  # fmt: skip
