"""Rows that say `running`, for what has run for a while. Short tasks cost no write for that.

Note [Shown while it runs]
A point's row is written with its outcome, and a durable job's row says nothing of its first execution until that ends.
People want to know what runs now, where and since when, and what a process that died was at. So what has run for
RUNNING_AFTER_SECONDS is written down as a take-over is (`starting.py`), but without being counted: by the same
compare-and-set, so that the outcome is written over that row and over no other; and together with what is skipped for
it (rule R9). Where somebody else has decided meanwhile, or the database fails, the task goes on all the same: its
outcome finds out.
"""

import copy
import math
import time
from collections.abc import Sequence

from django.db import DataError, Error, IntegrityError

from .. import ledger
from ..ledger import JobRow, Outcome, Won, version_of
from ..models import JobStatus, Status
from ..rows import RunRow
from .entry import Held
from .jobs.entry import HeldJob
from .leases import AnyHeld, LeaseKeeper
from .slots import Slots
from .starting import begin
from .trouble import Trouble

#: Between two looks: a row comes at most so late, and what could not be written is tried again.
LOOK_SECONDS = 0.5


class Showing:
    """Used by the loop's thread only. See Note [Shown while it runs]."""

    def __init__(self, slots: Slots, keeper: LeaseKeeper, trouble: Trouble, *, after_seconds: float) -> None:
        self._slots, self._keeper, self._trouble = slots, keeper, trouble
        self._after = after_seconds
        self._look_at = 0.0
        self._refused: set[AnyHeld] = set()  # those that run and shall have no row

    @property
    def again(self) -> float:
        """The monotonic second from which on `round` has something to do: infinite while nothing runs."""
        return self._look_at if self._slots.running else math.inf

    def round(self) -> None:
        """Write the rows of what has run for long enough. A failure of the database is noted, and raised to nobody."""
        now = time.monotonic()
        if now < max(self._look_at, self._trouble.until):
            return
        self._look_at = now + LOOK_SECONDS
        running = {held: now - began for held, began in self._slots.executing() if held in self._keeper}
        self._refused &= running.keys()
        late = [held for held, seconds in running.items() if seconds >= self._after and held not in self._refused]
        points = [(held, held.outcome) for held in late if isinstance(held, Held) and held.outcome is not None]
        jobs = [(held, held.row) for held in late if isinstance(held, HeldJob) and held.row is not None]
        try:
            self._show_points([(held, outcome) for held, outcome in points if outcome.seen is None])
            self._show_jobs([(held, row) for held, row in jobs if row.status != JobStatus.RUNNING])
        except (DataError, IntegrityError):  # one of these rows is at fault: as with all that fails, its outcome tells
            self._refused.update(late)
        except Error as error:
            self._trouble.database_failed(error, writing=True)

    def _show_points(self, fresh: Sequence[tuple[Held, Outcome]]) -> None:
        """Insert the rows of first executions; what is taken over or tried again has its row already."""
        if not fresh:
            return
        shown = [(held, Outcome(_running(held, item), item.schedule, owner=item.owner)) for held, item in fresh]
        for (held, outcome), (_, row), result in zip(fresh, shown, begin(shown), strict=True):
            if result is Won.YES:
                outcome.run.pk, outcome.seen, outcome.owner = row.run.pk, version_of(row.run), row.owner
            elif result is not Won.LOCKED:
                self._refused.add(held)
        self._trouble.database_worked(wrote=True)

    def _show_jobs(self, fresh: Sequence[tuple[HeldJob, JobRow]]) -> None:
        """Write that durable jobs run; of what is taken over that is written already."""
        if not fresh:
            return
        written = ledger.start_jobs([(row, held.fence) for held, row in fresh], again=False)
        for (held, _), result in zip(fresh, written, strict=True):
            if isinstance(result, JobRow):
                held.row = result
            elif result is not Won.LOCKED:
                self._refused.add(held)
        self._trouble.database_worked(wrote=True)


def _running(held: Held, outcome: Outcome) -> RunRow:
    """Return the row of a point while its task, in another thread, fills in what it will have become."""
    run = copy.copy(outcome.run)
    run.status, run.attempt, run.started_at = Status.RUNNING, 0, run.started_at or held.claimed_at
    run.reason, run.error, run.result, run.finished_at = "", "", None, None
    return run
