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
from datetime import timedelta

from django.db import Error

from .. import ledger
from ..fields import utcnow
from ..ledger import JobStart, Outcome, Won, version_of
from ..models import JobStatus, Run, Status
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

    def __init__(self, slots: Slots, keeper: LeaseKeeper, trouble: Trouble, *, name: str, after_seconds: float) -> None:
        self._slots, self._keeper, self._trouble = slots, keeper, trouble
        self._name, self._after = name, after_seconds
        self._look_at = 0.0
        self._done: set[AnyHeld] = set()  # those that run and have their row, or shall have none

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
        self._done &= running.keys()
        late = [held for held, seconds in running.items() if seconds >= self._after and held not in self._done]
        try:
            self._show_points([held for held in late if isinstance(held, Held)])
            self._show_jobs([(held, running[held]) for held in late if isinstance(held, HeldJob)])
        except Error as error:
            self._trouble.database_failed(error, writing=True)

    def _show_points(self, entries: Sequence[Held]) -> None:
        """Insert the rows of first executions; what is taken over or tried again has its row already."""
        self._done.update(entries)
        fresh = [(held, held.outcome) for held in entries if held.outcome is not None and held.outcome.seen is None]
        if not fresh:
            return
        self._done.difference_update(held for held, _ in fresh)
        shown = [(held, Outcome(_running(held, item), item.schedule, owner=item.owner)) for held, item in fresh]
        for (held, outcome), (_, row), result in zip(fresh, shown, begin(shown), strict=True):
            if result is not Won.LOCKED:
                self._done.add(held)
            if result is Won.YES:
                outcome.run.pk, outcome.seen, outcome.owner = row.run.pk, version_of(row.run), row.owner
        self._trouble.database_worked(wrote=True)

    def _show_jobs(self, entries: Sequence[tuple[HeldJob, float]]) -> None:
        """Write that durable jobs run; of what is taken over that is written already."""
        self._done.update(held for held, _ in entries)
        starts = {
            held: JobStart(held.row, held.fence, self._name, utcnow() - timedelta(seconds=seconds), held.row.reclaims)
            for held, seconds in entries
            if held.row is not None and held.row.status != JobStatus.RUNNING
        }
        if not starts:
            return
        self._done -= starts.keys()
        for held, result in zip(starts, ledger.start_jobs(list(starts.values())), strict=True):
            if result is not Won.LOCKED:
                self._done.add(held)
            if not isinstance(result, Won):
                held.row = result
        self._trouble.database_worked(wrote=True)


def _running(held: Held, outcome: Outcome) -> Run:
    """Return the row of a point while its task, in another thread, fills in what it will have become."""
    run = copy.copy(outcome.run)
    run.status, run.attempt, run.started_at = Status.RUNNING, 0, run.started_at or held.claimed_at
    run.reason, run.error, run.result, run.finished_at = "", "", None, None
    return run
