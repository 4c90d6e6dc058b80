"""Explains in sentences why a due point or a job did or did not run, also while Redis is down. Changes nothing."""

from .due_point import explain_point
from .moment import Moment, parse_moment
from .situation import describe_recurrence, explain_job, explain_state, find_job, is_counted_from_finish, list_next

__all__ = [
    "Moment", "describe_recurrence", "explain_job", "explain_point", "explain_state", "find_job",
    "is_counted_from_finish", "list_next", "parse_moment",
]  # fmt: skip
