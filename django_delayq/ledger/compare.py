"""Writes rows: inserts and updates that are won or lost. Moves the states of schedules on by what was won.

Note [Compare and set]
Redis is settled after the ledger, and only by whoever won the ledger's compare-and-set. A new row is won by the unique
constraint on (schedule, origin, due_at); an existing one by being locked and found with the status, attempt and fence
that were read, compared for equality only (fences are not ordered: a clock may step back, Redis may be flushed). A row
that already carries my fence and worker is mine: the reply to an earlier COMMIT was lost.

Note [A stretch and its point]
What an edit left behind a point is written with that point, as a row of its own, beginning a ms later. Whoever has lost
the point to somebody else must not write the stretch either: that one may have decided more than the point.
"""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.db import IntegrityError, connections, transaction

from .. import chain
from ..exceptions import InvalidRecurrence
from ..models import Condition, Origin, Run, ScheduleState, Status
from ..models.run import OPEN
from ..rows import RunRow, ScheduleRow, StateRow
from .bulk import database, writer
from .locks import leave_locked, lock_free, writing
from .outcome import Outcome, Version, Won, version_of
from .reading import RUN

ROW_FIELDS = [
    "status", "reason", "attempt", "reclaims", "fence", "claimed_at", "started_at", "finished_at", "worker", "error",
    "result", "generation", "task", "attempts",
]  # fmt: skip
_NEW = tuple(name for name in RUN if name != "pk")
_NEW_VALUES, _VALUES = attrgetter(*_NEW), attrgetter("pk", *ROW_FIELDS)


def write(outcomes: Sequence[Outcome], using: str, *, refused: Won | None = None) -> list[Won]:
    won = [Won.LOST] * len(outcomes)
    new = [index for index, outcome in enumerate(outcomes) if outcome.seen is None]
    behind = [index for index in new if (owner := outcomes[index].owner) is not None and owner.seen is not None]
    _insert(outcomes, [index for index in new if index not in behind], won, using, refused)
    _update(outcomes, [index for index, outcome in enumerate(outcomes) if outcome.seen is not None], won, using)
    winners = _winners(outcomes, won)
    _insert(outcomes, [index for index in behind if id(outcomes[index].owner) in winners], won, using, refused)
    return won


def _winners(outcomes: Sequence[Outcome], won: Sequence[Won]) -> set[int]:
    return {id(outcome) for outcome, result in zip(outcomes, won, strict=True) if result is Won.YES}


def _insert(outcomes: Sequence[Outcome], new: Sequence[int], won: list[Won], using: str, refused: Won | None) -> None:
    """Insert the rows of these indexes, and note in `won` what became of each; without its owner's none is inserted."""
    if not new:
        return
    try:
        with transaction.atomic(using=using):
            pks = writer(Run, _NEW, using).insert(_NEW_VALUES(outcomes[index].run) for index in new)
        for index, pk in zip(new, pks, strict=True):
            outcomes[index].run.pk, won[index] = pk, Won.YES
    except IntegrityError:
        for owned in (False, True):
            winners = _winners(outcomes, won)
            for index in new:
                owner = outcomes[index].owner
                if (owner is not None) is owned and (owner is None or id(owner) in winners):
                    won[index] = _insert_one(outcomes[index], using, refused)


def insert_run(run: RunRow, using: str) -> None:
    """Insert a row; the constraints are the database's."""
    [run.pk] = writer(Run, _NEW, using).insert([_NEW_VALUES(run)])


def _insert_one(outcome: Outcome, using: str, refused: Won | None) -> Won:
    run = outcome.run
    try:
        with transaction.atomic(using=using):
            insert_run(run, using)
        return Won.YES
    except IntegrityError:
        key = {"schedule_id": run.schedule_id, "origin": run.origin, "due_at": run.due_at}
        if Run._base_manager.using(using).filter(**key).exists():
            return _mine(outcome, key, using)
        if refused is None:
            raise
        return refused


def _update(outcomes: Sequence[Outcome], begun: Sequence[int], won: list[Won], using: str) -> None:
    """Update the rows of these indexes, as far as they are as they were read; note in `won` what became of each."""
    if not begun:
        return
    pks = [outcomes[index].run.pk for index in begun]
    found, taken = lock_free(Run, pks, using, "status", "attempt", "fence")
    stand = {pk: Version(*values) for pk, values in found.items()}
    same: dict[int, None] = {}
    for index in begun:
        run = outcomes[index].run
        if stand.get(run.pk) == outcomes[index].seen:
            same[index] = None
            stand[run.pk] = version_of(run)  # one worker may have executed a point twice
    writer(Run, ("id", *ROW_FIELDS), using).update(_VALUES(outcomes[index].run) for index in same)
    for index in begun:
        pk = outcomes[index].run.pk
        won[index] = (
            Won.YES if index in same else Won.LOCKED if pk in taken else _mine(outcomes[index], {"pk": pk}, using)
        )


def _mine(outcome: Outcome, key: dict[str, object], using: str) -> Won:
    run = outcome.run
    same = {"fence": run.fence, "worker": run.worker, "status": run.status, "attempt": run.attempt}
    rows = Run._base_manager.using(using).filter(**key, **same).exclude(fence="")
    pk = rows.values_list("pk", flat=True).first()
    if pk is None:
        return Won.LOST
    run.pk = pk
    outcome.repeated = True
    return Won.YES


def undo_start(outcomes: Sequence[Outcome], before: Sequence[dict[str, Any]]) -> None:
    """Take `running` rows of executions that did not begin back to what they were, so that no reclaim is counted."""
    using = database()
    with writing(using):
        taken = leave_locked(Run, [outcome.run.pk for outcome in outcomes if outcome.run.pk], using)
        for outcome, values in zip(outcomes, before, strict=True):
            run = outcome.run
            if run.pk in taken:
                continue
            rows = Run._base_manager.using(using).filter(pk=run.pk, status=Status.RUNNING, fence=run.fence)
            rows.update(**values)


STATE_FIELDS = [
    "last_due_at", "next_due_at", "last_status", "last_outcome_at", "last_lag_ms", "last_finished_at", "busy_from",
    "failing_streak", "run_count", "condition", "condition_reason",
]  # fmt: skip


def decides(run: RunRow) -> bool:
    """Say whether a row decides points of its schedule's chain: an outcome, or the hand-over of an overlapping run."""
    if run.apart:
        return bool(run.origin == Origin.DUE and run.status == Status.QUEUED)
    return run.status not in OPEN


def advance(state: StateRow, run: RunRow) -> None:
    """Move a state on by one row of the ledger, in memory."""
    if decides(run):
        last = run.last_due_at or run.due_at
        state.last_due_at = last if state.last_due_at is None else max(state.last_due_at, last)
        state.run_count += run.apart  # handed over; its end does not count again
    if run.status in OPEN:
        return
    state.last_status, state.last_outcome_at = run.status, run.finished_at
    state.last_lag_ms = None
    if run.status == Status.SKIPPED or run.started_at is None or run.claimed_at is None:
        return
    state.last_lag_ms = None if run.lag is None else int(run.lag.total_seconds() * 1000)
    state.failing_streak = 0 if run.status == Status.SUCCEEDED else state.failing_streak + 1
    if run.origin != Origin.DUE:
        return
    state.run_count += not run.apart
    finished = run.finished_at or run.started_at
    unbroken = state.last_finished_at is not None and run.due_at <= state.last_finished_at
    if not unbroken or state.busy_from is None:
        state.busy_from = run.claimed_at
    state.last_finished_at = finished if state.last_finished_at is None else max(state.last_finished_at, finished)


def settle_state(schedule: ScheduleRow, state: StateRow) -> datetime | None:
    """Write the chain's next point, or why there is none, into a state (in memory), and return the point."""
    try:
        point = chain.next_point(schedule, state)
    except InvalidRecurrence as error:
        state.next_due_at = None
        state.condition, state.condition_reason = Condition.PARKED, str(error)[:500]
        return None
    state.next_due_at = point
    if not schedule.enabled:
        state.next_due_at = None
        return None
    if point is None:
        state.condition, state.condition_reason = Condition.EXHAUSTED, chain.exhausted_reason(schedule, state)
    else:
        state.condition, state.condition_reason = Condition.ACTIVE, ""
    return point


def write_states(states: Sequence[StateRow], fields: Sequence[str] = STATE_FIELDS) -> None:
    """Write these fields of states whose rows, as far as there are any, are locked; insert those that have none."""
    using = database()
    read = attrgetter("schedule_id", *fields)
    writer(ScheduleState, ("schedule_id", *fields), using).update(read(state) for state in states if state.stored)
    new = [
        ScheduleState(pk=state.schedule_id, **{name: getattr(state, name) for name in fields})
        for state in states
        if not state.stored
    ]
    if new:  # another one may insert them at the same time
        with_target = connections[using].features.supports_update_conflicts_with_target
        ScheduleState._base_manager.using(using).bulk_create(
            new, update_conflicts=True, unique_fields=["schedule"] if with_target else None, update_fields=[*fields]
        )
