"""What was recorded of late: how much was executed, and how much skipped because it came too late.

Note [Overload]
Points are missed after an outage too, and then it is over. What falls due while the workers are at it, and is skipped
all the same, is more than they can do: so only stretches count that began in the time that is looked at.
"""

from datetime import timedelta
from typing import NamedTuple

from ..fields import utcnow
from ..models import Origin, Run, Status
from .database import database

#: What was recorded in the last so many seconds is looked at, and at most so many rows of it.
SECONDS = 300.0
MOST_ROWS = 5000
#: From this share of missed points on, and from so many, it is overload.
SHARE, FEWEST = 0.1, 10
#: Why points are skipped that came too late.
REASONS = ("missed", "max_catch_up", "catch_up_window")


class Load(NamedTuple):
    """What was recorded in `seconds`: due points that were executed, and that were missed; the longest wait of one."""

    seconds: float
    executed: int
    missed: int
    longest_wait: float

    @property
    def overloaded(self) -> bool:
        """True where more falls due than is executed. See Note [Overload]."""
        return self.missed >= max(FEWEST, SHARE * (self.executed + self.missed))

    @property
    def needed(self) -> float:
        """Executions a second that would miss nothing."""
        return (self.executed + self.missed) / self.seconds

    @property
    def done(self) -> float:
        """Executions a second."""
        return self.executed / self.seconds


def read_load() -> Load:
    """Return the load of late, from the newest rows."""
    now = utcnow()
    since = now - timedelta(seconds=SECONDS)
    rows = (
        Run._base_manager.using(database())
        .order_by("-pk")
        .values_list("origin", "status", "reason", "points", "due_at", "claimed_at", "finished_at")
    )
    oldest, executed, missed, wait = now, 0, 0, timedelta(0)
    for origin, status, reason, points, due_at, claimed_at, finished_at in rows[:MOST_ROWS]:
        if origin != Origin.DUE or finished_at is None or finished_at < since or claimed_at is None:
            continue
        oldest = min(oldest, finished_at)
        if status != Status.SKIPPED:
            executed += 1
            wait = max(wait, claimed_at - due_at)
        elif reason in REASONS and due_at >= since:
            missed += points
    return Load(max(1.0, (now - oldest).total_seconds()), executed, missed, wait.total_seconds())
