"""Records outcomes: rows and states in one transaction. Each row is won or lost.

Note [Winners record left points]
An edit may replace the definition of a point that is being executed. The next claim reads only the new definition,
whose points begin after the edit. So the worker that wins the point also writes one stretch: the points that the
definition of its claim leaves undecided up to the edit (rule R8). If further definitions were in force in between
(`Schedule.replaced_from`), the stretch is written too, because they may have had points.

Note [What was pruned is decided]
The unique row of a due point ensures that it is recorded once; a pruned row no longer does. So pruning raises
`ScheduleState.pruned_until` to the last pruned point, in the same transaction and with the state locked; insertions
up to there are lost. A `running` row locks no state: it is inserted first, and deleted again if its point was pruned or
the schedule no longer exists. The insertion waits for a deletion of the same point, which `pruned_until` then shows.

Note [Only winners settle]
Redis is settled after the ledger, by the worker that won the row there. A new row is won by the unique constraint on
(schedule, origin, due_at); an existing row by locking it with the version that was read (`rows.VERSION`). Versions are
compared for equality only: fences have no order, as clocks may step back. A row that already has the new version is the
worker's own: the reply to a COMMIT was lost. It is not written again, as other workers may have continued from it. If a
call changes a row twice, as after a flush, the first change wins.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import DatabaseError, DataError, IntegrityError, connections, transaction

from ..calls.side_channels import note_failure
from ..models import Origin, Output, Run, Schedule, ScheduleState, Status
from ..models.run import OPEN
from ..recurrence.point import utcnow
from . import chain
from .bulk import get_database, reader, writer, writing
from .jobs import call_back
from .locks import find_locked, lock_free
from .reading import OF_JOBS, RUN, STATE, load_schedules
from .rows import VERSION, AnySchedule, Outcome, RunRow, ScheduleRow, StateRow, Won, get_version, list_attempts


class Change(NamedTuple):
    """A change of a row: the versions before and after, and the values of its columns, or None to delete it."""

    pk: int
    seen: tuple[Any, ...] | None
    after: tuple[Any, ...]
    values: tuple[Any, ...] | None


def change_rows(names: Sequence[str], changes: Sequence[Change], using: str) -> list[tuple[Won, bool]]:
    """Update or delete rows that still have the version that was read. See Note [Only winners settle].

    Return for each its result, GONE if the row does not exist, and whether the row already had the new version.
    """
    pks = {item.pk for item in changes}
    found = {pk: tuple(row) for pk, *row in reader(Run, "id", ("pk", *VERSION), using, lock=True).read(pks)}
    taken = find_locked(Run, pks - found.keys(), using) if len(found) < len(pks) else ()
    changed, won, gone = [], [], []
    for item in changes:
        current = found.get(item.pk)
        if current is None:
            changed.append((Won.LOCKED if item.pk in taken else Won.GONE, False))
        elif current == item.seen:
            if item.values is None:
                gone.append(item.pk)
            else:
                won.append((item.pk, *item.values))
            found[item.pk] = item.after
            changed.append((Won.YES, False))
        else:
            again = current == item.after
            changed.append((Won.YES if again else Won.LOST, again))
    writer(Run, ("id", *names), using).update(won)
    if gone:
        Run._base_manager.using(using).filter(pk__in=gone)._raw_delete(using)
    return changed


def is_pruned(run: RunRow, horizons: Mapping[int, datetime | None]) -> bool:
    """Return True if a point's row may have been pruned. `horizons` holds `pruned_until` by schedule."""
    horizon = horizons.get(run.schedule_id or 0)
    return run.origin == Origin.DUE and horizon is not None and run.due_at <= horizon


def take_back_pruned(inserted: Iterable[RunRow], states: Mapping[int, StateRow], using: str) -> set[int]:
    """Delete new `running` rows whose points were pruned; return their keys."""
    rows = [run for run in inserted if run.schedule_id not in states]
    schedules = Schedule._base_manager.using(using).filter(pk__in={run.schedule_id for run in rows})
    horizons = dict(schedules.values_list("pk", "state__pruned_until"))
    pruned = {run.pk for run in rows if run.schedule_id not in horizons or is_pruned(run, horizons)}
    Run._base_manager.using(using).filter(pk__in=pruned).delete()
    return pruned


STATE_FIELDS = [
    "last_due_at", "next_due_at", "last_status", "last_outcome_at", "last_latency_ms", "last_finished_at", "busy_from",
    "failing_streak", "run_count", "condition", "condition_reason",
]  # fmt: skip


def write_states(states: Sequence[StateRow], fields: Sequence[str] = STATE_FIELDS) -> None:
    """Write these fields of states, whose existing rows must be locked; insert states that have no row."""
    using = get_database()
    read = attrgetter("schedule_id", *fields)
    writer(ScheduleState, ("schedule_id", *fields), using).update([read(state) for state in states if state.stored])
    new = [state for state in states if not state.stored]  # another process may insert them concurrently
    if new:
        writer(ScheduleState, STATE, using).insert(map(attrgetter(*STATE), new), over=fields)


CHANGED = (
    "status", "reason", "attempt", "reclaims", "fence", "claimed_at", "started_at", "finished_at", "worker", "error",
    "result", "generation", "task", "attempts", "unique_key", "expires_at",
)  # fmt: skip
#: Columns written for a new row of a point; the others keep their defaults.
_NEW = tuple(name for name in RUN if name != "pk" and name not in OF_JOBS)
_new_values, _changed_values = attrgetter(*_NEW), attrgetter(*CHANGED)


def record(outcomes: Sequence[Outcome], *, refused: Won | None = None) -> list[Won]:
    """Write rows and states in one transaction; return the result of each outcome. See Note [Only winners settle].

    After an exception nothing is written, and the call may be repeated. A `running` row does not advance the state, but
    points skipped for it do (rule R9). `refused`: the result of a new row that the database rejects; None: raise.
    """
    moving = {each.schedule.pk for each in outcomes if each.schedule is not None and each.run.status != Status.RUNNING}
    using = get_database()
    won = [Won.LOCKED] * len(outcomes)
    with writing(using):
        generations, states, taken = lock_states(moving, using) if moving else ({}, {}, set())
        free = [i for i, outcome in enumerate(outcomes) if not taken or outcome.run.schedule_id not in taken]
        writable = [outcomes[index] for index in free]
        written = _write_rows(writable, states, using, refused)
        _advance(writable, written, moving, generations, states, using)
        winners = [item for item, got in zip(writable, written, strict=True) if got is Won.YES]
        if outputs := [item for item in winners if item.output and not item.is_deleted]:
            _keep_outputs(outputs, using)
        calls: list[Any] = [item.schedule or item.job for item in winners]
        if any(call.on_success or call.on_failure for call in calls):
            call_back(winners)
    for index, result in zip(free, written, strict=True):
        won[index] = result
    return won


def start(outcomes: Sequence[Outcome]) -> list[Won]:
    """Record `running` rows, and the points skipped for them; a new row that the database rejects is LOCKED."""
    return record(outcomes, refused=Won.LOCKED)


def lock_states(pks: set[int], using: str) -> tuple[dict[int, int], dict[int, StateRow], set[int]]:
    """Lock schedules and states, so that deletions and other workers wait: see Note [Schedules are locked first].

    Return the generations and states that exist, and the keys that other transactions have locked.
    """
    rows = reader(ScheduleState, "schedule", ("schedule__generation", *STATE), using, lock=True).read(sorted(pks))
    states = {row[1]: StateRow(*row[1:]) for row in rows}
    generations = {row[1]: row[0] for row in rows}
    if len(rows) == len(pks):
        return generations, states, set()
    others, taken = lock_free(Schedule, pks - states.keys(), using, "generation")
    taken |= find_locked(ScheduleState, others.keys(), using)
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
        winners = _find_winners(outcomes, won)
        _insert(outcomes, [index for index in behind if id(outcomes[index].owner) in winners], won, using, refused)
    running = [i for i in new if won[i] is Won.YES and outcomes[i].run.status == Status.RUNNING]
    if running:
        pruned = take_back_pruned([outcomes[index].run for index in running], states, using)
        return [Won.LOST if outcome.run.pk in pruned else won[i] for i, outcome in enumerate(outcomes)]
    return won


def _find_winners(outcomes: Sequence[Outcome], won: Sequence[Won]) -> set[int]:
    return {id(outcome) for outcome, result in zip(outcomes, won, strict=True) if result is Won.YES}


def _insert(outcomes: Sequence[Outcome], new: Sequence[int], won: list[Won], using: str, refused: Won | None) -> None:
    try:
        with transaction.atomic(using=using):
            pks = writer(Run, _NEW, using).insert([_new_values(outcomes[index].run) for index in new])
        for index, pk in zip(new, pks, strict=True):
            outcomes[index].run.pk, won[index] = pk, Won.YES
    except (DataError, IntegrityError):
        for owned in (False, True):
            winners = _find_winners(outcomes, won)
            for index in new:
                owner = outcomes[index].owner
                if (owner is not None) is owned and (owner is None or id(owner) in winners):
                    won[index] = _insert_one(outcomes[index], using, refused)


def _insert_one(outcome: Outcome, using: str, refused: Won | None) -> Won:
    run = outcome.run
    try:
        with transaction.atomic(using=using):
            [run.pk] = writer(Run, _NEW, using).insert([_new_values(run)])
        return Won.YES
    except (DataError, IntegrityError):
        rows = Run._base_manager.using(using).filter(schedule=run.schedule_id, origin=run.origin, due_at=run.due_at)
        pk, *current = rows.values_list("pk", *VERSION).first() or (None,)
        if pk is None:
            if refused is None:
                raise
            return refused
        if not run.fence or tuple(current) != get_version(run):
            return Won.LOST
        run.pk, outcome.repeated = pk, True
        return Won.YES


def _update(outcomes: Sequence[Outcome], begun: Sequence[int], won: list[Won], using: str) -> None:
    changes = []
    for index in begun:
        run, deleted = outcomes[index].run, outcomes[index].is_deleted
        values = None if deleted else _changed_values(run)
        changes.append(Change(run.pk, outcomes[index].seen, get_version(run), values))
    for index, (result, again) in zip(begun, change_rows(CHANGED, changes, using), strict=True):
        won[index] = Won.LOST if result is Won.GONE else result
        outcomes[index].repeated = outcomes[index].repeated or again


def _advance(
    outcomes: Sequence[Outcome],
    won: list[Won],
    moving: set[int],
    generations: dict[int, int],
    states: dict[int, StateRow],
    using: str,
) -> None:
    if not moving:
        return
    # Points that an edit left undecided after a running point are recorded with the outcome of that point, not now.
    begun = {each.run.schedule_id for each in outcomes if not each.run.separate and each.run.status in OPEN}
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
            _move_on(outcome, outcome.schedule, row, state, using, explain=pk not in begun)
    if moved:
        write_states([moved[pk] for pk in sorted(moved)])


def _move_on(
    outcome: Outcome, claimed: ScheduleRow, schedule: ScheduleRow, state: StateRow, using: str, *, explain: bool
) -> None:
    """Advance a state by an outcome that was won; with `explain`, record what edits since the claim left."""
    outcome.schedule = schedule
    if outcome.repeated:
        outcome.next_point = state.next_due_at
        return
    if chain.advance(state, outcome.run):
        if explain and claimed.effective_from < schedule.effective_from:
            _record_left(outcome.run, claimed, schedule, state, using)
        outcome.next_point = chain.settle_state(schedule, state)
        if outcome.owner is not None:
            outcome.owner.next_point = outcome.next_point


def _record_left(run: RunRow, claimed: ScheduleRow, schedule: ScheduleRow, state: StateRow, using: str) -> None:
    """Record the points that the definition before an edit left. See Note [Winners record left points]."""
    if state.last_due_at is not None and state.last_due_at >= schedule.effective_from:
        return
    others = schedule.replaced_from is not None and schedule.replaced_from > claimed.effective_from
    first = chain.find_next_point(claimed, state)
    if not others and (first is None or first > schedule.effective_from):
        return
    # Do not begin at `first`: other definitions may have been in force in between.
    begin = max(run.last_due_at or run.due_at, claimed.effective_from)
    old = {"task": claimed.task, "queue": claimed.queue, "generation": claimed.generation}
    left = build_stretch(schedule, begin, finished_at=run.finished_at or utcnow(), **old)
    writer(Run, _NEW, using).insert([_new_values(left)])
    chain.advance(state, left)


def build_stretch(schedule: AnySchedule, decided: datetime, **values: Any) -> RunRow:
    """Return an unsaved stretch with an unknown number of points, from 1 ms after `decided` to the last edit."""
    return RunRow.build_for(
        schedule,
        decided + timedelta(milliseconds=1),
        last_due_at=schedule.effective_from,
        points=0,
        status=Status.SKIPPED,
        reason="edited" if schedule.enabled else "paused",
        **values,
    )


def _keep_outputs(outcomes: Sequence[Outcome], using: str) -> None:
    """Insert the outputs of the last attempts, if they do not exist yet. If only this fails, the outcomes are kept."""
    outputs = [
        Output(run_id=each.run.pk, attempt=list_attempts(each.run)[-1].number, text=each.output) for each in outcomes
    ]
    try:
        with transaction.atomic(using=using):
            Output._base_manager.using(using).bulk_create(outputs, ignore_conflicts=True)
    except DatabaseError as error:
        if connections[using].needs_rollback or connections[using].closed_in_transaction:
            raise
        note_failure("The table of outputs", error)
