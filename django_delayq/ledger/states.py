"""Moves the states of schedules on by what was recorded."""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter

from django.db import connections

from .. import chain
from ..exceptions import InvalidRecurrence
from ..models import Condition, Origin, ScheduleState, Status
from ..models.run import OPEN
from ..rows import RunRow, ScheduleRow, StateRow
from .bulk import database, writer
from .reading import STATE

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
    state.last_status, state.last_outcome_at, state.last_lag_ms = run.status, run.finished_at, None
    if run.status != Status.SKIPPED and run.started_at is not None and run.claimed_at is not None:
        _count_execution(state, run, run.started_at, run.claimed_at)


def _count_execution(state: StateRow, run: RunRow, started: datetime, claimed: datetime) -> None:
    state.last_lag_ms = None if run.lag is None else int(run.lag.total_seconds() * 1000)
    state.failing_streak = 0 if run.status == Status.SUCCEEDED else state.failing_streak + 1
    if run.origin != Origin.DUE:
        return
    state.run_count += not run.apart
    finished = run.finished_at or started
    unbroken = state.last_finished_at is not None and run.due_at <= state.last_finished_at
    if not unbroken or state.busy_from is None:
        state.busy_from = claimed
    state.last_finished_at = finished if state.last_finished_at is None else max(state.last_finished_at, finished)


def settle_state(schedule: ScheduleRow, state: StateRow) -> datetime | None:
    """Write the chain's next point, or why there is none, into a state (in memory), and return the point.

    One that is switched off has none, and keeps what it said of why.
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
    """Write these fields of states whose rows, as far as there are any, are locked; insert those that have none."""
    using = database()
    read = attrgetter("schedule_id", *fields)
    writer(ScheduleState, ("schedule_id", *fields), using).update(read(state) for state in states if state.stored)
    new = [state for state in states if not state.stored]  # another one may insert them at the same time
    if new and connections[using].features.supports_update_conflicts_with_target:
        writer(ScheduleState, STATE, using).insert(map(attrgetter(*STATE), new), over=fields)
    elif new:
        rows = [ScheduleState(**{name: getattr(state, name) for name in ("schedule_id", *fields)}) for state in new]
        ScheduleState._base_manager.using(using).bulk_create(rows, update_conflicts=True, update_fields=[*fields])
