"""Overall status of workers, shards, drift and schedules, and the problems found, each with a suggested fix.

Changes nothing. If Redis or the database is down, the snapshot says so and contains what the other one knows.
"""

from .judge import exit_status, find_remarks, format_span, judge
from .looking import look, look_quickly
from .shown import as_dict, as_lines
from .snapshot import Problem, Snapshot

__all__ = [
    "Problem", "Snapshot", "as_dict", "as_lines", "exit_status", "find_remarks", "format_span", "judge", "look",
    "look_quickly",
]  # fmt: skip
