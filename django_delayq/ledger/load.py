"""What was recorded of late: how much was executed, and how much skipped because it came too late.

Note [Overload]
Points are missed after an outage and at a start too, and then it is over. What falls due while the workers are at it,
and is skipped all the same, is more than they can do. So only stretches count that began after the first outcome that
is looked at, and nothing is said of less than LEAST_SECONDS, but where so much is recorded that the rows do not reach
back that far.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from ..fields import utcnow
from ..models import Origin, Run, Status
from .database import database

#: What was recorded in the last so many seconds is looked at, and at most so many rows of it.
SECONDS = 300.0
MOST_ROWS = 5000
LEAST_SECONDS = 30.0
#: From this share of missed points on, and from so many, it is overload.
SHARE, FEWEST = 0.1, 10
#: Why points are skipped that came too late.
REASONS = ("missed", "max_catch_up", "catch_up_window")


class Load(NamedTuple):
    """What was recorded in `seconds`: due points that were executed, and that were missed; the longest wait of one.

    `enough` says whether that is enough to tell overload by.
    """

    seconds: float
    executed: int
    missed: int
    longest_wait: float
    enough: bool

    @property
    def overloaded(self) -> bool:
        """True where more falls due than is executed. See Note [Overload]."""
        return self.enough and self.missed >= max(FEWEST, SHARE * (self.executed + self.missed))

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
    rows = Run._base_manager.using(database())
    newest = rows.order_by("-pk").values_list("pk", flat=True).first() or 0
    late = rows.filter(pk__gt=newest - MOST_ROWS, origin=Origin.DUE, claimed_at__isnull=False)
    late = late.filter(finished_at__gte=now - timedelta(seconds=SECONDS)).order_by("finished_at")
    found = list(late.values_list("status", "reason", "points", "due_at", "claimed_at", "finished_at"))
    first: datetime = found[0][-1] or now if found else now
    seconds = max(1.0, (now - first).total_seconds())
    executed = [row for row in found if row[0] != Status.SKIPPED]
    skipped = [row for row in found if row[0] == Status.SKIPPED and row[1] in REASONS]  # a task's error may say so too
    waits = [(claimed_at or now) - due_at for _, _, _, due_at, claimed_at, _ in executed]
    missed = sum(points for _, _, points, due_at, _, _ in skipped if due_at >= first)
    enough = seconds >= LEAST_SECONDS or len(found) > MOST_ROWS // 2
    return Load(seconds, len(waits), missed, max(waits, default=timedelta(0)).total_seconds(), enough)
