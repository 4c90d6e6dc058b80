"""Rows that say `running`: of what somebody may have executed before, and of what has run for a while.

Note [Take-over]
Rule R2b. A lapsed lease, or a row of the ledger that is there already, means that somebody else may execute the point,
or may have done so. A process that was stopped for longer than its lease comes back and records; nothing tells it that
it is late. So the row is read under the lease (`judge.py`, Note [Read under the lease]), and then becomes `running`
under this worker's fence, by compare-and-set against what was read. From that moment on nobody who read the row before
can write it, and whoever recorded since the reading has changed the row, so that the compare-and-set fails. Without the
row a stale holder could still record while the next one executes. Only then the task is called.

Note [Shown while it runs]
A point's row is written with its outcome, and a job's row says nothing of its first execution until that ends.
People want to know what runs now, where and since when, and what a process that died was at. So what has run for
RUNNING_AFTER_SECONDS is written down as a take-over is, but without being counted: by the same compare-and-set, so that
the outcome is written over that row and over no other; and together with what is skipped for it (rule R9). Where
somebody else has decided meanwhile, or the database fails, the task goes on all the same: its outcome finds out.
"""

import copy
from collections.abc import Callable, Sequence

from .. import ledger
from ..ledger import Outcome, Won, version_of
from ..models import Status
from .held import Held, holds_until_end
from .jobs import close_job

Tell = Callable[[Outcome], None]
#: What a row gets back where the execution that it tells of did not begin.
_RESTORED = (
    "status", "reclaims", "fence", "worker", "started_at", "finished_at", "reason", "error", "attempts",
)  # fmt: skip


def take_over(held: Held, *, poison: bool) -> None:
    """Fill in the row: it runs under this lease, or is lost(poison). See Note [Take-over]."""
    run = held.outcome.run
    held.before = {name: getattr(run, name) for name in _RESTORED}
    if not run.pk:  # it is written for somebody of whom nothing else is known
        held.before |= {"worker": "", "started_at": held.lapsed_at}
    ledger.keep_former(run, held.lapsed_at)
    run.reclaims = held.take_overs
    if not holds_until_end(run):
        run.unique_key = None
    run.fence, run.worker = held.fence, held.worker
    run.claimed_at = run.claimed_at or held.claimed_at
    if poison:
        run.status, run.reason, run.finished_at = Status.LOST, "poison", held.claimed_at
        if run.is_job:
            run.error = f"The workers that executed it died, {run.reclaims} times in a row."
            close_job(held)
    else:
        run.status, run.started_at = Status.RUNNING, held.claimed_at
        run.finished_at, run.reason, run.error = None, "", ""


def write_running(starting: Sequence[tuple[Held, Outcome]], tell: Tell) -> list[Won]:
    """Write the `running` rows of these entries, with what is skipped for them (rule R9); return what became of each.

    `tell` is called with what was skipped.

    Raises:
        DatabaseError: Nothing was written.
    """
    skipped = [item for held, outcome in starting if outcome.owner for item in held.beside]
    won = ledger.start([*(outcome for _, outcome in starting), *skipped])
    for outcome, result in zip(skipped, won[len(starting) :], strict=True):
        if result is Won.YES:
            tell(outcome)
    for (held, outcome), result in zip(starting, won, strict=False):
        if result is Won.YES and outcome.owner is not None:  # what is skipped for it stands
            outcome.owner, held.beside = None, []
    return won[: len(starting)]


def show(batch: Sequence[Held], tell: Tell) -> list[Held] | None:
    """See `Trip.show` and Note [Shown while it runs]: what is taken over or tried again has its row already."""
    fresh = [held for held in batch if held.outcome.seen is None or held.outcome.seen[0] == Status.QUEUED]
    if not fresh:
        return None
    shown = [(held, _running(held, held.outcome)) for held in fresh]
    refused = []
    for (held, row), result in zip(shown, write_running(shown, tell), strict=True):
        outcome = held.outcome
        if result is Won.YES:
            outcome.run.pk, outcome.seen, outcome.owner = row.run.pk, version_of(row.run), row.owner
        elif result is not Won.LOCKED:
            refused.append(held)
    return refused


def _running(held: Held, outcome: Outcome) -> Outcome:
    """Return the row of a point while its task, in another thread, fills in what it will have become."""
    run = copy.copy(outcome.run)
    run.status, run.attempt, run.started_at = Status.RUNNING, 0, run.started_at or held.claimed_at
    run.reason, run.error, run.result, run.finished_at, run.expires_at = "", "", None, None, None
    run.unique_key = run.options["unique_key"] if run.options and holds_until_end(run) else None
    return Outcome(run, outcome.schedule, outcome.seen, owner=outcome.owner, job=outcome.job)
