"""Which rows of the ledger are to go: by the settings, by what their schedule says, and never what the chain needs.

Decides by rows and states that were read; reads and writes nothing itself.

Note [What is never pruned]
A row without an outcome; of each schedule the newest outcome of its own chain; and what nobody could note the pruning
of. `ScheduleState.pruned_until` is where that is noted, see `horizon.py`. It must not pass a point that has still to
get its row: so of due points and backfills only rows up to `last_due_at` go, as everything up to there is decided or
has an open row. Where a schedule has no state, none of them goes. A run now has an instant of its own that no second
one gets, so it needs no note; and rows of a deleted schedule need none, as nothing can be recorded without it.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q

from .. import conf
from ..models import Origin, Schedule
from ..models.run import OUTCOMES
from ..rows import StateRow

#: What ended in this time stays in any case, for users who look at what has just run.
YOUNG = timedelta(minutes=10)
#: What is no failure, where only failures are kept.
_GOES_AT_ONCE = ("succeeded", "skipped")


class OldRun(NamedTuple):
    """What is read of a row that may go."""

    pk: int
    schedule_id: int
    due_at: datetime
    last_due_at: datetime | None
    origin: str
    status: str
    finished_at: datetime | None
    task: str

    @property
    def until(self) -> datetime:
        """The last due point that it stands for."""
        return self.last_due_at or self.due_at

    @property
    def noted(self) -> bool:
        """True where its pruning has to be noted in the state: see Note [What is never pruned]."""
        return self.origin != Origin.MANUAL


class Rule(NamedTuple):
    """What goes of one schedule: outcomes that ended before these instants, but for the `newest` so many."""

    before: Mapping[str, datetime] = {}
    newest: int = 0

    def goes(self, run: OldRun) -> bool:
        """Say whether its age lets a row go that is none of the newest; what has no outcome never goes."""
        before = self.before.get(run.status)
        return before is not None and run.finished_at is not None and run.finished_at < before

    @property
    def aged(self) -> Q:
        """The same as a condition, for rules by age. A run ends after its due point: that is in an index."""
        ended = Q()
        for status, before in self.before.items():
            ended |= Q(status=status, finished_at__lt=before)
        return Q(due_at__lt=max(self.before.values())) & ended

    def late(self, run: OldRun, now: datetime) -> float:
        """Return for how many seconds a row could have been gone; 0 where another run, not its age, lets it go."""
        before = self.before.get(run.status)
        if before is None or before >= now - YOUNG or run.finished_at is None:
            return 0.0
        return (before - run.finished_at).total_seconds()


def rule_of(keep: str, keep_last: int | None, now: datetime) -> Rule:
    """Return what goes of a schedule that says so; of a deleted one, '' and None."""
    config = conf.get_config()
    days = {outcome: config.days_kept(outcome) for outcome in sorted(OUTCOMES)}
    before = {outcome: now - timedelta(days=kept) for outcome, kept in days.items() if kept is not None}
    if keep == Schedule.Keep.FAILURES:
        return Rule(before | dict.fromkeys(_GOES_AT_ONCE, now - YOUNG))
    newest = 1 if keep == Schedule.Keep.NONE else keep_last if keep == Schedule.Keep.LAST else None
    if newest:
        return Rule(dict.fromkeys(OUTCOMES, now - YOUNG), newest)
    return Rule() if keep else Rule(before)  # also where SQL wrote what is not known, or no number


def may_go(run: OldRun, state: StateRow | None) -> bool:
    """Say whether the pruning of a schedule's row can be noted. See Note [What is never pruned]."""
    if not run.noted:
        return True
    return state is not None and state.last_due_at is not None and run.until <= state.last_due_at
