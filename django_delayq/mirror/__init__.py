"""Makes Redis agree with the database: at once after a commit where it can, by sweeps where it could not."""

import importlib
import warnings
from typing import Any

from .drift import MOST_COMPARED, Drift, drift
from .fast import enqueue_after_commit, mirror_after_commit, put_after_commit, put_now, read_entries, sweep_after_commit
from .layout import check_layout, fingerprint, moving, standing_shards
from .pages import PAGE
from .read import note_parked
from .rebuild import rebuild, unbuilt
from .reshard import reshard, under_way
from .runs import enqueue_runs
from .sweep import Report, delta_sweep, full_sweep
from .swept import FULL_SECONDS, adopt, sweep_if_due, sweep_now
from .write import sync

__all__ = [
    "FULL_SECONDS", "MOST_COMPARED", "PAGE", "Drift", "Report", "adopt", "check_layout", "delta_sweep", "drift",
    "enqueue_after_commit", "enqueue_runs", "fingerprint", "full_sweep", "mirror_after_commit", "moving", "note_parked",
    "put_after_commit", "put_now", "read_entries", "rebuild", "reshard", "standing_shards",
    "sweep_after_commit", "sweep_if_due", "sweep_now", "sync", "unbuilt", "under_way",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return what stood here before `orders` was a module of its own."""
    if name not in ("backfill", "plan_backfill", "run_now"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"django_delayq.mirror.{name} is django_delayq.orders.{name} now.", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("django_delayq.orders"), name)
