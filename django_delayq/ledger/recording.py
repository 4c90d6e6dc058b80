"""Records outcomes: rows and states in one transaction, each row won or lost.

A new row is won by the unique constraint on (schedule, origin, due_at), one that was begun by `changing.py`, Note
[Compare and set].

Note [A stretch and its point]
What an edit left behind a point is written with that point, as a row of its own, beginning a ms later. Whoever has lost
the point to somebody else must not write the stretch either: the winner may have decided points of it too.

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
from operator import attrgetter
from typing import Any

from django.db import DataError, IntegrityError, transaction

from .. import chain
from ..fields import utcnow
from ..models import Run, Schedule, ScheduleState, Status
from ..rows import AnySchedule, RunRow, ScheduleRow, StateRow
from .bulk import database, reader, writer, writing
from .callbacks import call_back
from .changing import Change, change
from .horizon import is_pruned, take_back_pruned
from .locks import lock_free, locked_by_others
from .outcome import VERSION, Outcome, Won, version_of
from .outputs import keep_outputs, run_output
from .reading import OF_JOBS, RUN, STATE, load_schedules, stored_state
from .states import advance, decides, settle_state, write_states

CHANGED = (
    "status", "reason", "attempt", "reclaims", "fence", "claimed_at", "started_at", "finished_at", "worker", "error",
    "result", "generation", "task", "attempts", "unique_key", "expires_at",
)  # fmt: skip
#: What is written of a point's new row; all other columns have their defaults.
_NEW = tuple(name for name in RUN if name != "pk" and name not in OF_JOBS)
_new_values, _changed_values = attrgetter(*_NEW), attrgetter(*CHANGED)


def record(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write rows and states in one transaction; say per outcome whether it was won. See `changing.py`.

    After an exception nothing is written, and the same call may be repeated. What others have locked is left out: see
    `locks.py`, Note [Nobody's row is waited for].

    Raises:
        DataError, IntegrityError: The table refuses a row, and not because of another one.
    """
    return _write(outcomes, {outcome.schedule.pk for outcome in outcomes if outcome.schedule is not None})


def start(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write `running` rows before an execution that may be a repetition, and what is skipped for them (rule R9).

    As `record`, but a row that the table refuses is treated as locked and tried later. Its execution begins once it
    is written. A `running` row alone moves no state.
    """
    skipping = [outcome.schedule for outcome in outcomes if outcome.run.status != Status.RUNNING]
    moving = {schedule.pk for schedule in skipping if schedule is not None}
    return _write(outcomes, moving, refused=Won.LOCKED)


def _write(outcomes: Sequence[Outcome], moving: set[int], *, refused: Won | None = None) -> list[Won]:
    """Write rows, and the states of the schedules that move on."""
    using = database()
    won = [Won.LOCKED] * len(outcomes)
    with writing(using):
        generations, states, taken = lock_states(moving, using) if moving else ({}, {}, set())
        free = [i for i, outcome in enumerate(outcomes) if not taken or outcome.run.schedule_id not in taken]
        writable = [outcomes[index] for index in free]
        written = _write_rows(writable, states, using, refused)
        _advance(writable, written, moving, generations, states, using)
        keep_outputs(
            [
                run_output(item)
                for item, got in zip(writable, written, strict=True)
                if item.output and got is Won.YES and not item.is_deleted
            ],
            using,
        )
        call_back(writable, written)
    for index, result in zip(free, written, strict=True):
        won[index] = result
    return won


def lock_states(pks: set[int], using: str) -> tuple[dict[int, int], dict[int, StateRow], set[int]]:
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


def _write_rows(outcomes: Sequence[Outcome], states: dict[int, StateRow], using: str, refused: Won | None) -> list[Won]:
    """Insert and update rows; what is to be inserted behind a row that is updated, only where that was won.

    `states` are those that are locked. What was pruned is lost: see `horizon.py`, Note [What was pruned is decided].
    """
    won = [Won.LOST] * len(outcomes)
    new, begun, behind = _sorted(outcomes, states)
    if new:
        _insert(outcomes, new, won, using, refused)
    if begun:
        _update(outcomes, begun, won, using)
    if behind:
        winners = _winners(outcomes, won)
        _insert(outcomes, [index for index in behind if id(outcomes[index].owner) in winners], won, using, refused)
    pruned = take_back_pruned([outcomes[index].run for index in new if won[index] is Won.YES], states, using)
    return [Won.LOST if pruned and outcome.run.pk in pruned else won[i] for i, outcome in enumerate(outcomes)]


def _sorted(outcomes: Sequence[Outcome], states: dict[int, StateRow]) -> tuple[list[int], list[int], list[int]]:
    """Return which are to be inserted, which were begun, and which are to be inserted behind those."""
    new, begun, behind = list[int](), list[int](), list[int]()
    for index, outcome in enumerate(outcomes):
        owner = outcome.owner
        if outcome.seen is not None:
            begun.append(index)
        elif not is_pruned(outcome.run, states):
            if owner is None or (owner.seen is None and not is_pruned(owner.run, states)):
                new.append(index)
            elif owner.seen is not None:
                behind.append(index)
    return new, begun, behind


def _winners(outcomes: Sequence[Outcome], won: Sequence[Won]) -> set[int]:
    return {id(outcome) for outcome, result in zip(outcomes, won, strict=True) if result is Won.YES}


def _insert(outcomes: Sequence[Outcome], new: Sequence[int], won: list[Won], using: str, refused: Won | None) -> None:
    """Insert the rows of these indexes, and note in `won` what became of each; without its owner's none is inserted."""
    try:
        with transaction.atomic(using=using):
            pks = writer(Run, _NEW, using).insert(_new_values(outcomes[index].run) for index in new)
        for index, pk in zip(new, pks, strict=True):
            outcomes[index].run.pk, won[index] = pk, Won.YES
    except (DataError, IntegrityError):
        for owned in (False, True):
            winners = _winners(outcomes, won)
            for index in new:
                owner = outcomes[index].owner
                if (owner is not None) is owned and (owner is None or id(owner) in winners):
                    won[index] = _insert_one(outcomes[index], using, refused)


def insert_run(run: RunRow, using: str) -> None:
    """Insert a row; the constraints are the database's."""
    [run.pk] = writer(Run, _NEW, using).insert([_new_values(run)])


def _insert_one(outcome: Outcome, using: str, refused: Won | None) -> Won:
    run = outcome.run
    try:
        with transaction.atomic(using=using):
            insert_run(run, using)
        return Won.YES
    except (DataError, IntegrityError):
        rows = Run._base_manager.using(using).filter(schedule=run.schedule_id, origin=run.origin, due_at=run.due_at)
        pk, *stands = rows.values_list("pk", *VERSION).first() or (None,)
        if pk is None:
            if refused is None:
                raise
            return refused
        if not run.fence or tuple(stands) != version_of(run):
            return Won.LOST
        run.pk, outcome.repeated = pk, True
        return Won.YES


def _update(outcomes: Sequence[Outcome], begun: Sequence[int], won: list[Won], using: str) -> None:
    """Update the rows of these indexes, as far as they are as they were read; note in `won` what became of each."""
    changes = [
        Change(
            outcome.run.pk, outcome.seen, version_of(outcome.run),
            None if outcome.is_deleted else _changed_values(outcome.run),
        )
        for outcome in map(outcomes.__getitem__, begun)
    ]  # fmt: skip
    for index, (result, _, again) in zip(begun, change(Run, VERSION, CHANGED, changes, using), strict=True):
        won[index] = Won.LOST if result is Won.GONE else result
        outcomes[index].repeated = outcomes[index].repeated or again


def undo_start(outcomes: Sequence[Outcome], before: Sequence[dict[str, Any]]) -> None:
    """Take `running` rows of executions that did not begin back to what they were, so that no reclaim is counted."""
    using = database()
    changes = []
    for run, values in zip((outcome.run for outcome in outcomes), before, strict=True):
        running = Status.RUNNING, run.attempt, run.fence, run.worker, run.created_at
        after = tuple(values.get(name, getattr(run, name)) for name in VERSION)
        changes.append(Change(run.pk, running, after, tuple(values.values())))
    with writing(using):
        change(Run, VERSION, tuple(before[0]), changes, using)


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
    if not moving:
        return
    begun = {outcome.run.schedule_id for outcome in outcomes if not outcome.run.apart and not decides(outcome.run)}
    current = _as_they_stand(outcomes, won, generations)
    moved: dict[int, StateRow] = {}
    for index, outcome in enumerate(outcomes):
        if outcome.schedule is None or outcome.schedule.pk not in moving:
            continue
        pk, row = outcome.schedule.pk, current.get(outcome.schedule.pk)
        if won[index] is Won.LOST and pk not in generations:
            won[index] = Won.GONE  # with its row, perhaps by an earlier call for this outcome
        if won[index] is not Won.YES:
            continue
        if row is None or row.created_at != outcome.schedule.created_at:
            if not outcome.repeated:  # else it was recorded before the schedule was deleted, and stands
                Run._base_manager.using(using).filter(pk=outcome.run.pk).delete()
            won[index] = Won.GONE
        elif outcome.run.status != Status.RUNNING:
            state = moved[pk] = states.setdefault(pk, StateRow(pk))
            claimed, outcome.schedule = outcome.schedule, row
            _move_on(outcome, claimed, row, state, using, explain=pk not in begun)
    if moved:
        write_states([moved[pk] for pk in sorted(moved)])


def _move_on(
    outcome: Outcome, claimed: ScheduleRow, schedule: ScheduleRow, state: StateRow, using: str, *, explain: bool
) -> None:
    """Move a state on by an outcome that was won; `explain` what an edit has left since the point was `claimed`."""
    if outcome.repeated:
        outcome.next_point = state.next_due_at
        return
    advance(state, outcome.run)
    if decides(outcome.run):
        if explain and claimed.effective_from < schedule.effective_from:
            _record_left(outcome.run, claimed, schedule, state, using)
        outcome.next_point = settle_state(schedule, state)
        if outcome.owner is not None:
            outcome.owner.next_point = outcome.next_point


def _record_left(run: RunRow, claimed: ScheduleRow, schedule: ScheduleRow, state: StateRow, using: str) -> None:
    """Record what the definition before an edit left, and move the state on. See Note [Edited while it was held]."""
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


def _as_they_stand(
    outcomes: Sequence[Outcome], won: Sequence[Won], generations: dict[int, int]
) -> dict[int, ScheduleRow]:
    """Return the schedules of the won outcomes, in these generations; those not edited are not read again."""
    current, edited = dict[int, ScheduleRow](), set[int]()
    for outcome, result in zip(outcomes, won, strict=True):
        schedule = outcome.schedule
        if result is Won.YES and schedule is not None and schedule.pk in generations:
            if schedule.generation == generations[schedule.pk]:
                current[schedule.pk] = schedule
            else:
                edited.add(schedule.pk)
    edited -= current.keys()
    return current | load_schedules(edited) if edited else current
