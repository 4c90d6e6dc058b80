"""How the whole thing stands: workers, shards, drift, schedules; and what is wrong with it, each with what to do.

Changes nothing. Works where Redis or the database is down: it then says so, and tells what the other one knows.
"""

from .judge import exit_status, find_remarks, format_span, judge
from .looking import look, look_quickly
from .shown import as_dict, as_lines
from .snapshot import Problem, Snapshot

__all__ = [
    "Problem", "Snapshot", "as_dict", "as_lines", "exit_status", "find_remarks", "format_span", "judge", "look",
    "look_quickly",
]  # fmt: skip
