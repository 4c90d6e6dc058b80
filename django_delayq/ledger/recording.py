"""Records outcomes: rows and states in one transaction.

Note [Edited while it was held]
While a point is executed, later ones may fall due, and then an edit ends the definition that had them. The next claimer
sees only the new definition, whose points begin after the edit. So whoever records the point, and still has the
definition that it was claimed with, records what that one left up to the edit, as one stretch (rule R8). What a second
edit has replaced by then is not known any more: it is taken to have left something (`Schedule.replaced_from`).

Note [Committed without a reply]
Whoever records once more what was committed changes nothing: others may have gone on from it meanwhile, and be at the
next point. Where the chain goes on stands in the state, as the first commit, or an edit since, has left it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from .. import chain
from ..fields import utcnow
from ..models import Run, Schedule, ScheduleState, Status
from ..rows import AnySchedule, RunRow, ScheduleRow, StateRow
from .bulk import database, reader
from .compare import advance, decides, insert_run, settle_state, write, write_states
from .locks import lock_free, locked_by_others, writing
from .outcome import Outcome, Won
from .reading import STATE, load_schedules, stored_state


def record(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write rows and states in one transaction; say per outcome whether it was won. See Note [Compare and set].

    After an exception nothing is written, and the same call may be repeated. What others have locked is left out: see
    `locks.py`, Note [Nobody's row is waited for].

    Raises:
        IntegrityError: The table refuses a row, and not because of another one: it is of another release.
    """
    return _write(outcomes, {outcome.schedule.pk for outcome in outcomes})


def start(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write `running` rows before an execution that may be a repetition, and what is skipped for them (rule R9).

    As `record`, but a row that the table refuses is lost: what cannot be recorded is not executed again. A `running`
    row alone moves no state.
    """
    moving = {outcome.schedule.pk for outcome in outcomes if outcome.run.status != Status.RUNNING}
    return _write(outcomes, moving, refused=Won.LOST)


def _write(outcomes: Sequence[Outcome], moving: set[int], *, refused: Won | None = None) -> list[Won]:
    """Write rows, and the states of the schedules that move on."""
    using = database()
    won = [Won.LOCKED] * len(outcomes)
    with writing(using):
        generations, states, taken = _lock(moving, using) if moving else ({}, {}, set())
        free = [index for index, outcome in enumerate(outcomes) if outcome.schedule.pk not in taken]
        writable = [outcomes[index] for index in free]
        written = write(writable, using, refused=refused)
        _advance(writable, written, moving, generations, states, using)
    for index, result in zip(free, written, strict=True):
        won[index] = result
    return won


def _lock(pks: set[int], using: str) -> tuple[dict[int, int], dict[int, StateRow], set[int]]:
    """Lock schedules and states, so that a deletion or a second worker waits: see Note [Order of locks].

    Return the generations of those that are there, their states, and the keys that others have locked.
    """
    rows = reader(ScheduleState, "schedule", ("schedule__generation", *STATE), using, lock=True).read(sorted(pks))
    states = {row[1]: stored_state(row[1:]) for row in rows}
    generations = {row[1]: row[0] for row in rows}
    if len(rows) == len(pks):
        return generations, states, set()
    others, taken = lock_free(Schedule, pks - states.keys(), using, "generation")
    taken |= locked_by_others(ScheduleState, others.keys(), using)
    return generations | {pk: generation for pk, (generation,) in others.items()}, states, taken


def _advance(
    outcomes: Sequence[Outcome],
    won: list[Won],
    moving: set[int],
    generations: dict[int, int],
    states: dict[int, StateRow],
    using: str,
) -> None:
    """Move the states of the won outcomes on; their schedules and states are locked.

    The definition of a point that runs stays the one that it was claimed with; and what an edit left behind one that
    has no outcome yet is recorded with that, not with what is skipped for it.
    """
    open_points = [outcome for outcome in outcomes if not outcome.run.apart and not decides(outcome.run)]
    begun = {outcome.schedule.pk for outcome in open_points}
    winners = [outcome for outcome, result in zip(outcomes, won, strict=True) if result is Won.YES]
    current = _as_they_stand(winners, generations)
    moved: dict[int, StateRow] = {}
    for index, outcome in enumerate(outcomes):
        if won[index] is Won.LOST and outcome.schedule.pk in moving - generations.keys():
            won[index] = Won.GONE  # with its row, perhaps by an earlier call for this outcome
        if won[index] is not Won.YES or outcome.schedule.pk not in moving:
            continue
        row = current.get(outcome.schedule.pk)
        if row is None or row.created_at != outcome.schedule.created_at:
            if not outcome.repeated:  # else it was recorded before the schedule was deleted, and stands
                Run._base_manager.using(using).filter(pk=outcome.run.pk).delete()
            won[index] = Won.GONE
            continue
        if outcome.run.status == Status.RUNNING:
            continue
        claimed, outcome.schedule = outcome.schedule, row
        state = moved[row.pk] = states.setdefault(row.pk, StateRow(row.pk))
        if outcome.repeated:
            outcome.next_point = state.next_due_at
            continue
        advance(state, outcome.run)
        if decides(outcome.run):
            if claimed.effective_from < row.effective_from and row.pk not in begun:
                _record_left(outcome, claimed, state, using)
            outcome.next_point = settle_state(row, state)
            if outcome.owner is not None:
                outcome.owner.next_point = outcome.next_point
    if moved:
        write_states([moved[pk] for pk in sorted(moved)])


def _record_left(outcome: Outcome, claimed: ScheduleRow, state: StateRow, using: str) -> None:
    """Record what the definition before an edit left, and move the state on. See Note [Edited while it was held]."""
    run, schedule = outcome.run, outcome.schedule
    if state.last_due_at is not None and state.last_due_at >= schedule.effective_from:
        return
    others = schedule.replaced_from is not None and schedule.replaced_from > claimed.effective_from
    first = chain.next_point(claimed, state)
    if not others and (first is None or first > schedule.effective_from):
        return
    # Not from `first` on: there may have been other definitions meanwhile.
    begin = max(run.last_due_at or run.due_at, claimed.effective_from)
    old = {"task": claimed.task, "queue": claimed.queue, "generation": claimed.generation}
    left = left_behind(schedule, begin, finished_at=run.finished_at or utcnow(), **old)
    insert_run(left, using)
    advance(state, left)


def left_behind(schedule: AnySchedule, decided: datetime, **values: Any) -> RunRow:
    """Return an unsaved stretch of unknown length: from just after `decided` to the last edit of the definition."""
    return RunRow.of(
        schedule,
        decided + timedelta(milliseconds=1),
        last_due_at=schedule.effective_from,
        points=0,
        status=Status.SKIPPED,
        reason="edited" if schedule.enabled else "paused",
        **values,
    )


def _as_they_stand(outcomes: Sequence[Outcome], generations: dict[int, int]) -> dict[int, ScheduleRow]:
    """Return the schedules of these outcomes, of which these generations stand; those not edited are not read again."""
    pks = {outcome.schedule.pk for outcome in outcomes} & generations.keys()
    current = {
        outcome.schedule.pk: outcome.schedule
        for outcome in outcomes
        if generations.get(outcome.schedule.pk) == outcome.schedule.generation
    }
    edited = pks - current.keys()
    return current | load_schedules(edited) if edited else current
