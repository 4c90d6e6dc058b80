"""Records outcomes: rows and states in one transaction.

Note [Edited while it was held]
While a point is executed, later ones may fall due, and then an edit ends the definition that had them. The next claimer
sees only the new definition, whose points begin after the edit. So whoever records the point, and still has the
definition that it was claimed with, records what that one left up to the edit, as one stretch (rule R8).

Note [Committed without a reply]
Whoever records once more what was committed changes nothing: others may have gone on from it meanwhile, and be at the
next point. Where the chain goes on stands in the state, as the first commit, or an edit since, has left it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from .. import chain
from ..fields import utcnow
from ..models import Run, Schedule, ScheduleState, Status
from ..models.locks import locked
from .database import database
from .outcome import Outcome, Won
from .reading import load_schedules
from .rows import write
from .states import STATE_FIELDS, advance, decides, save_states, settle_state


def record(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write rows and states in one transaction; say per outcome whether it was won. See Note [Compare and set].

    After an exception nothing is written, and the same call may be repeated.

    Raises:
        IntegrityError: The table refuses a row, and not because of another one: it is of another release.
    """
    using = database()
    with transaction.atomic(using=using):
        won = write(outcomes, using)
        _advance(outcomes, won, using)
    return won


def start(outcomes: Sequence[Outcome]) -> list[Won]:
    """Write `running` rows before an execution that may be a repetition, and what is skipped for them (rule R9).

    See Note [Compare and set]. A row that the table refuses is lost: what cannot be recorded is not executed again.
    """
    using = database()
    with transaction.atomic(using=using):
        won = write(outcomes, using, refused=Won.LOST)
        _advance(outcomes, won, using)
    return won


def _advance(outcomes: Sequence[Outcome], won: list[Won], using: str) -> None:
    """Move the states of the won outcomes on. The schedules are locked, so that a deletion or a second worker waits.

    A `running` row alone moves nothing, and its definition stays the one that it was claimed with.
    """
    yes = [outcome for outcome, result in zip(outcomes, won, strict=True) if result is Won.YES]
    pks = {outcome.schedule.pk for outcome in yes if outcome.run.status != Status.RUNNING}
    if not pks:
        return
    current = _lock_schedules(sorted(pks), outcomes, using)
    states = ScheduleState._base_manager.using(using).in_bulk(pks)
    for index, outcome in enumerate(outcomes):
        if won[index] is not Won.YES or outcome.schedule.pk not in pks:
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
        state = states.setdefault(row.pk, ScheduleState(schedule_id=row.pk))
        if outcome.repeated:
            outcome.next_point = state.next_due_at
            continue
        advance(state, outcome.run)
        if decides(outcome.run):
            if claimed.effective_from < row.effective_from:
                _record_left(outcome, claimed, state, using)
            outcome.next_point = settle_state(row, state)
            if outcome.owner is not None:
                outcome.owner.next_point = outcome.next_point
    save_states([states[pk] for pk in sorted(pks) if pk in states and pk in current], STATE_FIELDS)


def _record_left(outcome: Outcome, claimed: Schedule, state: ScheduleState, using: str) -> None:
    """Record what the definition before an edit left, and move the state on. See Note [Edited while it was held]."""
    run, schedule = outcome.run, outcome.schedule
    first = chain.next_point(claimed, state)
    if first is None or first > schedule.effective_from:
        return
    # Not from `first` on: there may have been other definitions meanwhile.
    begin = max(run.last_due_at or run.due_at, claimed.effective_from)
    old = {"task": claimed.task, "queue": claimed.queue, "generation": claimed.generation}
    left = left_behind(schedule, begin, finished_at=run.finished_at or utcnow(), **old)
    left.save(using=using, force_insert=True)
    advance(state, left)


def left_behind(schedule: Schedule, decided: datetime, **values: Any) -> Run:
    """Return an unsaved stretch of unknown length: from just after `decided` to the last edit of the definition."""
    return Run.of(
        schedule,
        decided + timedelta(milliseconds=1),
        last_due_at=schedule.effective_from,
        points=0,
        status=Status.SKIPPED,
        reason="edited" if schedule.enabled else "paused",
        **values,
    )


def _lock_schedules(pks: list[int], outcomes: Sequence[Outcome], using: str) -> dict[int, Schedule]:
    """Lock these schedules and return them as they stand now; those that were not edited are not read again."""
    rows = locked(Schedule._base_manager.using(using).filter(pk__in=pks))
    generations = dict(rows.values_list("pk", "generation"))
    current = {
        outcome.schedule.pk: outcome.schedule
        for outcome in outcomes
        if generations.get(outcome.schedule.pk) == outcome.schedule.generation
    }
    edited = generations.keys() - current.keys()
    return current | load_schedules(edited) if edited else current
