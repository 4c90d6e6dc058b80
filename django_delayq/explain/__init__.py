"""Why a due point did or did not run, in sentences, from definition, ledger and Redis. Changes nothing.

Works where Redis is down: it then says what it cannot know.
"""

from .moment import Moment, parse_moment
from .point import explain_point
from .standing import explain_state, list_next

__all__ = ["Moment", "explain_point", "explain_state", "list_next", "parse_moment"]
