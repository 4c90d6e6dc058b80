"""Why a due point or a job did or did not run, in sentences, from definition, ledger and Redis. Changes nothing.

Works where Redis is down: it then says what it cannot know.
"""

from .job import explain_job, find_job
from .moment import Moment, parse_moment
from .point import explain_point
from .standing import explain_state, list_next

__all__ = [
    "Moment", "explain_job", "explain_point", "explain_state", "find_job", "list_next", "parse_moment",
]  # fmt: skip
