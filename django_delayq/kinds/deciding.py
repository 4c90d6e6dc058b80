"""What the policies say of a due point, and the rows that are written of it. Reads and writes nothing."""

from dataclasses import replace
from datetime import datetime, timedelta

from .. import ledger
from ..models import Schedule, Status
from ..rows import RunRow, ScheduleRow, StateRow
from ..timing import Skip, Windowed, decide_all, from_ms, to_ms
from .held_point import HeldPoint


def new_run(held: HeldPoint, schedule: ScheduleRow, due_at: datetime, **values: object) -> RunRow:
    """Return an unsaved row of this schedule's chain, claimed by this worker."""
    return RunRow.of(schedule, due_at, fence=held.fence, claimed_at=held.claimed_at, worker=held.worker, **values)


def decide(held: HeldPoint, schedule: ScheduleRow, state: StateRow) -> tuple[list[Skip], datetime | None, bool]:
    """Return what is skipped, which point runs (None: none), and whether somebody may have begun it already.

    Whoever let his lease run out decided when he claimed, by the same definition and state. See Note [The newest runs
    at once]. Also where all that he had was to be skipped: he may record it yet, against nobody but a `running` row.
    """
    if held.entry.lapsed:
        point, lapsed_ms = held.point, held.entry.lapsed_ms
        if lapsed_ms is None or point <= schedule.effective_from or schedule.overlap == Schedule.Overlap.ALLOW:
            return [], point, True
        skips, due_at = _decide_at(min(from_ms(lapsed_ms), held.claimed_at), held, schedule, state)
        if due_at is not None:
            return skips, due_at, True
    return *_decide_at(held.claimed_at, held, schedule, state), held.entry.lapsed


def _decide_at(
    now: datetime, held: HeldPoint, schedule: ScheduleRow, state: StateRow
) -> tuple[list[Skip], datetime | None]:
    point = held.point
    rule, base = schedule.rule_and_base(state)
    old = point <= schedule.effective_from
    if old:  # of the definition before: what is missed now has no points before the edit
        rule = Windowed(rule, start=base + timedelta(microseconds=1))
    skips, due_at = decide_all(rule, point, now, state.busy_from, state.last_finished_at, schedule.policies)
    if skips and old:  # a stretch, or what follows, would hold what the edit left
        return [replace(skips[0], last=point, points=1)], None
    return skips, None if due_at is None else from_ms(to_ms(due_at))


def skipped_run(held: HeldPoint, schedule: ScheduleRow, skip: Skip) -> RunRow:
    run = new_run(held, schedule, from_ms(to_ms(skip.first)))
    if skip.points > 1:
        run.points, run.last_due_at = skip.points, from_ms(to_ms(skip.last))
    close(run, held, Status.SKIPPED, skip.reason)
    return run


def close(run: RunRow, held: HeldPoint, status: Status, reason: str) -> None:
    ledger.keep_former(run, held.lapsed_at)
    run.status, run.reason, run.fence, run.worker = status, reason, held.fence, held.worker
    run.claimed_at = run.claimed_at or held.claimed_at
    run.finished_at = held.claimed_at
