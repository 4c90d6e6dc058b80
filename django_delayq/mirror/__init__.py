"""Makes Redis agree with the database: at once after a commit where it can, by sweeps where it could not."""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from .counts import read_counts, roll_up
from .drift import Drift, drift
from .durable import put_after_commit
from .fast import ask, enqueue_after_commit, enqueue_runs, mirror_after_commit, read_entries, sweep_after_commit
from .layout import check_layout, fingerprint, moving, standing_shards
from .read import note_parked
from .rebuild import rebuild
from .reshard import reshard, under_way
from .sweep import Report, delta_sweep, full_sweep
from .turn import FULL_SECONDS, LastSweep, adopt, sweep_in_turn, sweep_now
from .write import PAGE, sync

__all__ = [
    "FULL_SECONDS",
    "PAGE",
    "Drift",
    "LastSweep",
    "Report",
    "adopt",
    "ask",
    "check_layout",
    "delta_sweep",
    "drift",
    "enqueue_after_commit",
    "enqueue_runs",
    "fingerprint",
    "full_sweep",
    "mirror_after_commit",
    "moving",
    "note_parked",
    "put_after_commit",
    "read_counts",
    "read_entries",
    "rebuild",
    "reshard",
    "roll_up",
    "standing_shards",
    "sweep_after_commit",
    "sweep_in_turn",
    "sweep_now",
    "sync",
    "under_way",
]

if TYPE_CHECKING:
    from ..orders import backfill as backfill
    from ..orders import plan_backfill as plan_backfill
    from ..orders import run_now as run_now
#: Names of before `orders` was a module of its own.
_MOVED = ("backfill", "plan_backfill", "run_now")


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"django_delayq.mirror.{name} is django_delayq.orders.{name} now.", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("django_delayq.orders"), name)
