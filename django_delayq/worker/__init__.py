"""What `manage.py delayq_worker` runs: claim, judge, execute, record, settle. Any number of equal workers."""

from .loop import Worker
from .options import WorkerOptions

__all__ = ["Worker", "WorkerOptions"]
