"""What a worker works on: due points of schedules, and jobs. The worker knows the protocol `Kind` only."""

from ..context import EXECUTING
from .base import Claimed, Due, Held, Kind, Verdicts
from .points import Points
from .timeouts import Timeouts

__all__ = ["EXECUTING", "Claimed", "Due", "Held", "Kind", "Points", "Timeouts", "Verdicts"]
