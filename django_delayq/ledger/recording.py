"""Records outcomes: rows and states in one transaction. Each row is won or lost.

Note [A stretch and its point]
Points that an edit leaves after a point are recorded with it, as a separate row that begins 1 ms later. A worker that
loses the point must not write the stretch: the winner may have decided some of its points.

Note [Edits during an execution]
An edit may end the definition of a point that is being executed. The next claim sees only the new definition, whose
points begin after the edit. So the worker that records the point also records what the definition of its claim left
up to the edit, as one stretch (rule R8). A definition that was itself replaced since is not known, and is assumed to
have left points (`Schedule.replaced_from`).

Note [Committed without a reply]
Recording a committed outcome again changes nothing, as other workers may have continued from it. The next point is
then read from the state.

Note [What was pruned is decided]
The unique row of a due point ensures that it is recorded once. A pruned row no longer does, yet a worker may record
it after a pause of days, or a user may backfill it again (`actions.py`). So pruning raises
`ScheduleState.pruned_until` to the last pruned point, in the same transaction and with the state locked; insertions
up to there are lost. A worker that records an outcome has read the locked state anyway. A `running` row locks no
state: it is inserted first, and deleted again if its point was pruned or the schedule no longer exists. This is safe:
an insertion waits for a deletion of the same point, and a later read sees what that deletion noted.

Note [Compare and set]
Redis is settled after the ledger, by the worker that won the row there. A new row is won by the unique constraint on
(schedule, origin, due_at); an existing row by locking it with the version that was read: status, attempt, fence,
worker and creation time. Versions are compared for equality only: fences have no order, as clocks may step back. A
row that already has the new version is the worker's own: the reply to an earlier COMMIT was lost. If a call changes a
row twice, the first change wins: after a flush, a worker may have executed an entry twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import DatabaseError, DataError, IntegrityError, connections, transaction

from ..calls.side_channels import note_failure
from ..exceptions import InvalidRecurrence
from ..models import Condition, Origin, Output, Run, Schedule, ScheduleState, Status
from ..models.run import OPEN
from ..recurrence.point import utcnow
from . import chain
from .bulk import database, reader, writer, writing
from .jobs import call_back
from .locks import leave_locked, lock_free, locked_by_others
from .reading import OF_JOBS, RUN, STATE, load_schedules
from .rows import (
    VERSION,
    AnySchedule,
    Outcome,
    RunRow,
    ScheduleRow,
    StateRow,
    Won,
    attempts_of,
    keep_former,
    version_of,
)


class Change(NamedTuple):
    """A change of a row: the versions before and after, and the values of all columns, or None to delete the row."""

    pk: int
    seen: tuple[Any, ...] | None
    after: tuple[Any, ...]
    values: tuple[Any, ...] | None


def change(names: Sequence[str], changes: Sequence[Change], using: str) -> list[tuple[Won, bool]]:
    """Update or delete rows that still have the version that was read. See Note [Compare and set].

    Return for each its result, GONE if the row does not exist, and whether the row already had the new version. Must
    be called in a transaction (`writing`). Uses few statements.
    """
    pks = {item.pk for item in changes}
    found = {pk: tuple(row) for pk, *row in reader(Run, "id", ("pk", *VERSION), using, lock=True).read(pks)}
    taken = locked_by_others(Run, pks - found.keys(), using) if len(found) < len(pks) else ()
    changed, won, gone = [], [], []
    for item in changes:
        stands = found.get(item.pk)
        if stands is None:
            changed.append((Won.LOCKED if item.pk in taken else Won.GONE, False))
        elif stands == item.seen:
            if item.values is None:
                gone.append(item.pk)
            else:
                won.append((item.pk, *item.values))
            found[item.pk] = item.after
            changed.append((Won.YES, False))
        else:
            again = stands == item.after
            changed.append((Won.YES if again else Won.LOST, again))
    writer(Run, ("id", *names), using).update(won)
    if gone:
        Run._base_manager.using(using).filter(pk__in=gone)._raw_delete(using)
    return changed


def is_pruned(run: RunRow, horizons: Mapping[int, datetime]) -> bool:
    """Return True if a point's row may have been pruned. `horizons` holds `pruned_until` by schedule."""
    return run.origin == Origin.DUE and _reaches(horizons.get(run.schedule_id or 0), run)


def take_back_pruned(inserted: Iterable[RunRow], states: Mapping[int, StateRow], using: str) -> set[int]:
    """Delete new `running` rows whose points were pruned; return their keys. Note [What was pruned is decided]."""
    rows = [run for run in inserted if run.status == Status.RUNNING and run.schedule_id not in states]
    if not rows:
        return set()
    schedules = Schedule._base_manager.using(using).filter(pk__in={run.schedule_id for run in rows})
    horizons = dict(schedules.values_list("pk", "state__pruned_until"))
    pruned = {run.pk for run in rows if run.schedule_id not in horizons or _reaches(horizons[run.schedule_id], run)}
    if pruned:
        Run._base_manager.using(using).filter(pk__in=pruned).delete()
    return pruned


def _reaches(horizon: datetime | None, run: RunRow) -> bool:
    return horizon is not None and run.due_at <= horizon


STATE_FIELDS = [
    "last_due_at", "next_due_at", "last_status", "last_outcome_at", "last_lag_ms", "last_finished_at", "busy_from",
    "failing_streak", "run_count", "condition", "condition_reason",
]  # fmt: skip


def decides(run: RunRow) -> bool:
    """Return True if a row decides points of its chain: an outcome, or the hand-over of an overlapping run."""
    if run.apart:
        return bool(run.origin == Origin.DUE and run.status == Status.QUEUED)
    return run.status not in OPEN


def advance(state: StateRow, run: RunRow) -> None:
    """Update a state, in memory, with one row."""
    if decides(run):
        last = run.last_due_at or run.due_at
        state.last_due_at = last if state.last_due_at is None else max(state.last_due_at, last)
        state.run_count += run.apart  # handed over; its end does not count again
    if run.status in OPEN:
        return
    state.last_status, state.last_outcome_at, state.last_lag_ms = run.status, run.finished_at, None
    if run.status == Status.SKIPPED or run.started_at is None or run.claimed_at is None:
        return
    lag = run.lag
    state.last_lag_ms = None if lag is None else int(lag.total_seconds() * 1000)
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
    """Set a state's next point, or the reason why there is none, in memory; return the point.

    A disabled schedule has no next point; its condition and reason stay unchanged.
    """
    state.next_due_at = None
    if not schedule.enabled:
        return None
    try:
        state.next_due_at = point = chain.next_point(schedule, state)
    except InvalidRecurrence as error:
        state.condition, state.condition_reason = Condition.PARKED, str(error)[:500]
        return None
    if point is None:
        state.condition, state.condition_reason = Condition.EXHAUSTED, chain.exhausted_reason(schedule, state)
    else:
        state.condition, state.condition_reason = Condition.ACTIVE, ""
    return point


def write_states(states: Sequence[StateRow], fields: Sequence[str] = STATE_FIELDS) -> None:
    """Write these fields of states, whose existing rows must be locked; insert states that have no row."""
    using = database()
    read = attrgetter("schedule_id", *fields)
    writer(ScheduleState, ("schedule_id", *fields), using).update([read(state) for state in states if state.stored])
    new = [state for state in states if not state.stored]  # another process may insert them concurrently
    if new and connections[using].features.supports_update_conflicts_with_target:
        writer(ScheduleState, STATE, using).insert(map(attrgetter(*STATE), new), over=fields)
    elif new:
        rows = [ScheduleState(**{name: getattr(state, name) for name in ("schedule_id", *fields)}) for state in new]
        ScheduleState._base_manager.using(using).bulk_create(rows, update_conflicts=True, update_fields=[*fields])


CHANGED = (
    "status", "reason", "attempt", "reclaims", "fence", "claimed_at", "started_at", "finished_at", "worker", "error",
    "result", "generation", "task", "attempts", "unique_key", "expires_at",
)  # fmt: skip
#: Columns written for a new row of a point; the others keep their defaults.
_NEW = tuple(name for name in RUN if name != "pk" and name not in OF_JOBS)
_new_values, _changed_values = attrgetter(*_NEW), attrgetter(*CHANGED)


def record(outcomes: Sequence[Outcome], *, refused: Won | None = None) -> list[Won]:
    """Write rows and states in one transaction; return the result of each outcome. See Note [Compare and set].

    After an exception nothing is written, and the call may be repeated. Locked rows are left out: see `locks.py`,
    Note [Nobody's row is waited for]. A `running` row does not advance the state, but the points skipped for it do
    (rule R9). `refused` is the result for a new row that the database rejects; None raises.

    Raises:
        DataError, IntegrityError: The database rejects the values of a row.
    """
    moving = {each.schedule.pk for each in outcomes if each.schedule is not None and each.run.status != Status.RUNNING}
    using = database()
    won = [Won.LOCKED] * len(outcomes)
    with writing(using):
        generations, states, taken = lock_states(moving, using) if moving else ({}, {}, set())
        free = [i for i, outcome in enumerate(outcomes) if not taken or outcome.run.schedule_id not in taken]
        writable = [outcomes[index] for index in free]
        written = _write_rows(writable, states, using, refused)
        _advance(writable, written, moving, generations, states, using)
        outputs = [
            run_output(item)
            for item, got in zip(writable, written, strict=True)
            if item.output and got is Won.YES and not item.is_deleted
        ]
        if outputs:
            keep_outputs(outputs, using)
        calls: list[Any] = [
            item.schedule or item.job for item, got in zip(writable, written, strict=True) if got is Won.YES
        ]
        if any(call.on_success or call.on_failure for call in calls):
            call_back(writable, written)
    for index, result in zip(free, written, strict=True):
        won[index] = result
    return won


def start(outcomes: Sequence[Outcome]) -> list[Won]:
    """As `record`, for `running` rows before executions that may be repetitions, and the points they skip (rule R9).

    A new row that the database rejects counts as locked. An execution begins once its row is written.
    """
    return record(outcomes, refused=Won.LOCKED)


def lock_states(pks: set[int], using: str) -> tuple[dict[int, int], dict[int, StateRow], set[int]]:
    """Lock schedules and states, so that deletions and other workers wait: `models/primary.py`, Note [Order of locks].

    Return the generations and states that exist, and the keys that other transactions have locked.
    """
    rows = reader(ScheduleState, "schedule", ("schedule__generation", *STATE), using, lock=True).read(sorted(pks))
    states = {row[1]: StateRow(*row[1:]) for row in rows}
    generations = {row[1]: row[0] for row in rows}
    if len(rows) == len(pks):
        return generations, states, set()
    others, taken = lock_free(Schedule, pks - states.keys(), using, "generation")
    taken |= locked_by_others(ScheduleState, others.keys(), using)
    return generations | {pk: generation for pk, (generation,) in others.items()}, states, taken


def _write_rows(outcomes: Sequence[Outcome], states: dict[int, StateRow], using: str, refused: Won | None) -> list[Won]:
    """Insert and update rows; rows whose owner is updated come last. See Note [What was pruned is decided]."""
    won = [Won.LOST] * len(outcomes)
    horizons = {pk: state.pruned_until for pk, state in states.items() if state.pruned_until is not None}
    new, begun, behind = list[int](), list[int](), list[int]()
    for index, outcome in enumerate(outcomes):
        owner = outcome.owner
        if outcome.seen is not None:
            begun.append(index)
        elif horizons and is_pruned(outcome.run, horizons):
            continue
        elif owner is not None and owner.seen is not None:
            behind.append(index)
        elif owner is None or not (horizons and is_pruned(owner.run, horizons)):
            new.append(index)
    if new:
        _insert(outcomes, new, won, using, refused)
    if begun:
        _update(outcomes, begun, won, using)
    if behind:
        winners = _winners(outcomes, won)
        _insert(outcomes, [index for index in behind if id(outcomes[index].owner) in winners], won, using, refused)
    pruned = set[int]()
    if any(outcomes[index].run.status == Status.RUNNING for index in new):
        pruned = take_back_pruned([outcomes[index].run for index in new if won[index] is Won.YES], states, using)
    return [Won.LOST if pruned and outcome.run.pk in pruned else won[i] for i, outcome in enumerate(outcomes)]


def _winners(outcomes: Sequence[Outcome], won: Sequence[Won]) -> set[int]:
    return {id(outcome) for outcome, result in zip(outcomes, won, strict=True) if result is Won.YES}


def _insert(outcomes: Sequence[Outcome], new: Sequence[int], won: list[Won], using: str, refused: Won | None) -> None:
    """Insert these rows with their owners; set their results in `won`."""
    try:
        with transaction.atomic(using=using):
            pks = writer(Run, _NEW, using).insert([_new_values(outcomes[index].run) for index in new])
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
    """Insert a row; violated constraints raise."""
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
    changes = [
        Change(
            outcome.run.pk, outcome.seen, version_of(outcome.run),
            None if outcome.is_deleted else _changed_values(outcome.run),
        )
        for outcome in map(outcomes.__getitem__, begun)
    ]  # fmt: skip
    for index, (result, again) in zip(begun, change(CHANGED, changes, using), strict=True):
        won[index] = Won.LOST if result is Won.GONE else result
        outcomes[index].repeated = outcomes[index].repeated or again


def undo_start(outcomes: Sequence[Outcome], before: Sequence[dict[str, Any]]) -> None:
    """Restore `running` rows whose executions did not begin, so that no reclaim is counted."""
    using = database()
    changes = []
    for run, values in zip((outcome.run for outcome in outcomes), before, strict=True):
        running = Status.RUNNING, run.attempt, run.fence, run.worker, run.created_at
        after = tuple(values.get(name, getattr(run, name)) for name in VERSION)
        changes.append(Change(run.pk, running, after, tuple(values.values())))
    names = tuple(before[0])
    with writing(using):
        try:
            with transaction.atomic(using=using):
                change(names, changes, using)
        except IntegrityError:  # another job has taken a unique key since: drop the keys, as at a start
            keys = names.index("unique_key")
            change(names[:keys] + names[keys + 1 :], [_without(item, keys) for item in changes], using)


def _without(item: Change, index: int) -> Change:
    values = item.values or ()
    return item._replace(values=values[:index] + values[index + 1 :])


def _advance(
    outcomes: Sequence[Outcome],
    won: list[Won],
    moving: set[int],
    generations: dict[int, int],
    states: dict[int, StateRow],
    using: str,
) -> None:
    """Advance the states of the outcomes that were won; their schedules and states are locked.

    What an edit left after a point that is still running is recorded with that point, not with points skipped for it.
    """
    if not moving:
        return
    begun = {outcome.run.schedule_id for outcome in outcomes if not outcome.run.apart and not decides(outcome.run)}
    # Definitions of these generations: only edited schedules are read again.
    current, edited = dict[int, ScheduleRow](), set[int]()
    for outcome, result in zip(outcomes, won, strict=True):
        if result is Won.YES and outcome.schedule is not None and outcome.schedule.pk in generations:
            if outcome.schedule.generation == generations[outcome.schedule.pk]:
                current[outcome.schedule.pk] = outcome.schedule
            else:
                edited.add(outcome.schedule.pk)
    if edited - current.keys():
        current |= load_schedules(edited - current.keys())
    moved: dict[int, StateRow] = {}
    for index, outcome in enumerate(outcomes):
        if outcome.schedule is None or outcome.schedule.pk not in moving:
            continue
        pk, row = outcome.schedule.pk, current.get(outcome.schedule.pk)
        if won[index] is Won.LOST and pk not in generations:
            won[index] = Won.GONE  # its row was deleted too, perhaps by an earlier call for this outcome
        if won[index] is not Won.YES:
            continue
        if row is None or row.created_at != outcome.schedule.created_at:
            if not outcome.repeated:  # otherwise it was recorded before the deletion, and stays
                Run._base_manager.using(using).filter(pk=outcome.run.pk).delete()
            won[index] = Won.GONE
        elif outcome.run.status != Status.RUNNING:
            state = moved[pk] = states.setdefault(pk, StateRow(pk, stored=False))
            claimed, outcome.schedule = outcome.schedule, row
            _move_on(outcome, claimed, row, state, using, explain=pk not in begun)
    if moved:
        write_states([moved[pk] for pk in sorted(moved)])


def _move_on(
    outcome: Outcome, claimed: ScheduleRow, schedule: ScheduleRow, state: StateRow, using: str, *, explain: bool
) -> None:
    """Advance a state by an outcome that was won; with `explain`, record what edits since the claim left."""
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
    """Record the points that the definition before an edit left. See Note [Edits during an execution]."""
    if state.last_due_at is not None and state.last_due_at >= schedule.effective_from:
        return
    others = schedule.replaced_from is not None and schedule.replaced_from > claimed.effective_from
    first = chain.next_point(claimed, state)
    if not others and (first is None or first > schedule.effective_from):
        return
    # Do not begin at `first`: other definitions may have been in force in between.
    begin = max(run.last_due_at or run.due_at, claimed.effective_from)
    old = {"task": claimed.task, "queue": claimed.queue, "generation": claimed.generation}
    left = left_behind(schedule, begin, finished_at=run.finished_at or utcnow(), **old)
    insert_run(left, using)
    advance(state, left)


def left_behind(schedule: AnySchedule, decided: datetime, **values: Any) -> RunRow:
    """Return an unsaved stretch with an unknown number of points, from 1 ms after `decided` to the last edit."""
    return RunRow.of(
        schedule,
        decided + timedelta(milliseconds=1),
        last_due_at=schedule.effective_from,
        points=0,
        status=Status.SKIPPED,
        reason="edited" if schedule.enabled else "paused",
        **values,
    )


def close_orphan(run: RunRow, reason: str) -> None:
    """Close an open run whose schedule was deleted. If the row is locked, a later sweep closes it."""
    using = database()
    with writing(using):
        if not leave_locked(Run, [run.pk], using):
            row = Run._base_manager.using(using).filter(pk=run.pk, status__in=sorted(OPEN)).first()
            if row is not None:
                keep_former(row)
                row.status, row.reason, row.finished_at = Status.LOST, reason, utcnow()
                row.save(using=using, update_fields=["status", "reason", "finished_at", "attempts"])


def close_abandoned(runs: Sequence[RunRow]) -> None:
    """Close open rows of chains whose schedule was deleted or disabled and that are not in Redis."""
    schedules = load_schedules({run.schedule_id or 0 for run in runs})
    for run in runs:
        schedule = schedules.get(run.schedule_id or 0)
        if schedule is None:
            close_orphan(run, "the schedule was deleted")
            continue
        seen = version_of(run)
        keep_former(run)
        run.status = Status.FAILED if run.status == Status.RETRYING else Status.LOST
        run.reason, run.finished_at = "paused", utcnow()
        outcomes = [Outcome(run, schedule, seen)]
        if not run.apart and run.due_at < schedule.effective_from:  # points due after it, before the pause
            left = left_behind(schedule, run.due_at, finished_at=run.finished_at)
            outcomes.append(Outcome(left, schedule, owner=outcomes[0]))
        record(outcomes)


def run_output(outcome: Outcome) -> Output:
    """Return the unsaved output of the last attempt at a run."""
    return Output(run_id=outcome.run.pk, attempt=attempts_of(outcome.run)[-1].number, text=outcome.output)


def keep_outputs(outputs: Sequence[Output], using: str) -> None:
    """Insert outputs that do not exist yet, with their outcomes. If only the outputs fail, the outcomes are kept.

    Raises:
        DatabaseError: The whole transaction failed.
    """
    try:
        with transaction.atomic(using=using):
            Output._base_manager.using(using).bulk_create(outputs, ignore_conflicts=True)
    except DatabaseError as error:
        if connections[using].needs_rollback or connections[using].closed_in_transaction:
            raise
        note_failure("The table of outputs", error)
