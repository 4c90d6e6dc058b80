"""What `delayq_worker --processes N` adds to a worker: a parent that starts, replaces and stops N whole workers."""

from .crew import MARGIN_SECONDS, SupervisorOptions
from .fresh import become_fresh, command_line
from .line import Line
from .orders import Orders
from .supervisor import Supervisor

__all__ = ["MARGIN_SECONDS", "Line", "Orders", "Supervisor", "SupervisorOptions", "become_fresh", "command_line"]
