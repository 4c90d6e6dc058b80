"""What `delayq_worker --processes N` adds to a worker: a parent that starts, replaces and stops N whole workers."""

from .crew import MARGIN_SECONDS, SupervisorOptions
from .ending import END_SECONDS, end_at_once, end_within
from .fresh import Start, become_fresh, command_line
from .line import Line
from .orders import Orders
from .supervisor import Supervisor

__all__ = [
    "END_SECONDS",
    "MARGIN_SECONDS",
    "Line",
    "Orders",
    "Start",
    "Supervisor",
    "SupervisorOptions",
    "become_fresh",
    "command_line",
    "end_at_once",
    "end_within",
]
