"""Starts what somebody may have executed before: rule R2b, and the counting of rule R6.

Note [Take-over]
A lapsed lease, or a row of the ledger that is there already, means that somebody else may execute the point, or may
have done so. A process that was stopped for longer than its lease comes back and records; nothing tells it that it is
late. So the row is read under the lease (`judge.py`, Note [Read under the lease]), and then becomes `running` under
this worker's fence, by compare-and-set against what was read. From that moment on nobody who read the row before can
write it, and whoever recorded since the reading has changed the row, so that the compare-and-set fails. Without the row
a stale holder could still record while the next one executes. Only then the task is called.
"""

from collections.abc import Sequence

from .. import ledger
from ..compat import AnyTask
from ..ledger import Outcome, Won, version_of
from ..models import Status
from ..rows import RunRow
from .announcing import announce
from .entry import Finished, Held
from .isolation import take_overs
from .leases import LeaseKeeper
from .recorder import Recorder
from .slots import Slots

Startable = tuple[Held, AnyTask]

#: What a row gets back where the execution that it tells of did not begin.
_RESTORED = (
    "status", "reclaims", "fence", "worker", "started_at", "finished_at", "reason", "error", "attempts",
)  # fmt: skip


class Starter:
    """Used by the loop's thread only."""

    def __init__(self, keeper: LeaseKeeper, recorder: Recorder, slots: Slots, *, name: str, max_reclaims: int) -> None:
        self.keeper, self.recorder, self.slots = keeper, recorder, slots
        self.name = name
        self.max_reclaims = max_reclaims

    def is_poison(self, run: RunRow) -> bool:
        """Say whether the point has killed its workers too often to be executed once more (rule R6)."""
        return take_overs(run) > self.max_reclaims

    def start(self, suspects: Sequence[Startable]) -> list[Held]:
        """Count and submit entries; what is lost(poison) goes to the recorder. Note [Take-over].

        Return those to be handed back, because somebody else has locked their rows.

        Raises:
            DatabaseError: None of them was submitted.
        """
        tasks = dict(suspects)
        kept = [held for held in tasks if not held.lapsed()]
        self.keeper.discard(set(tasks) - set(kept))
        poisoned = [held for held in kept if self._take_over(held)]
        starting = [held for held in kept if held not in poisoned]
        won = begin([(held, held.outcome) for held in starting if held.outcome is not None])
        self.recorder.add(Finished(held, 0.0) for held in poisoned)
        locked = []
        for held, result in zip(starting, won, strict=True):
            assert held.outcome is not None  # noqa: S101 - suspects are judged
            if result is Won.YES:
                held.outcome.seen = version_of(held.outcome.run)
                self.slots.submit(held, tasks[held])
            elif result is Won.LOCKED:
                held.before = None  # nothing was written
                locked.append(held)
            else:
                self.recorder.lost(held, held.outcome.run)
        return locked

    def _take_over(self, held: Held) -> bool:
        """Fill in the running row; True where the point is poison."""
        outcome = held.outcome
        assert outcome is not None  # noqa: S101 - suspects are judged
        run = outcome.run
        held.before = {name: getattr(run, name) for name in _RESTORED}
        if not run.pk:  # it is written for somebody of whom nothing else is known
            held.before |= {"worker": "", "started_at": held.lapsed_at}
        ledger.keep_former(run, held.lapsed_at)
        poison = self.is_poison(run)
        run.reclaims = take_overs(run)
        run.fence, run.worker = held.fence, self.name
        run.claimed_at = run.claimed_at or held.claimed_at
        if poison:
            run.status, run.reason, run.finished_at = Status.LOST, "poison", held.claimed_at
        else:
            run.status, run.started_at = Status.RUNNING, held.claimed_at
            run.finished_at, run.reason, run.error = None, "", ""
        return poison


def begin(starting: Sequence[tuple[Held, Outcome]]) -> list[Won]:
    """Write the `running` rows of these entries, with what is skipped for them (rule R9); return what became of each.

    Raises:
        DatabaseError: Nothing was written.
    """
    skipped = [item for held, outcome in starting if outcome.owner for item in held.beside]
    won = ledger.start([*(outcome for _, outcome in starting), *skipped])
    for outcome, result in zip(skipped, won[len(starting) :], strict=True):
        if result is Won.YES:
            announce(outcome)
    for (held, outcome), result in zip(starting, won, strict=False):
        if result is Won.YES and outcome.owner is not None:  # what is skipped for it stands
            outcome.owner, held.beside = None, []
    return won[: len(starting)]
